"""What every tokenizer has in common: entries with ids, the special ones, and text to ids."""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple, Self

import tensorflow as tf
import tokenizers
import tokenizers.processors

from dcse_tf.files import hash_bytes
from dcse_tf.model.checkpoints import write_prefix

# Follows every turn of a dialogue that is one sequence. No text is tokenised to it.
END_OF_TURN = "[EOT]"


class SpecialTokens(NamedTuple):
    """The entries that stand for no text, by what they are for."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


@dataclasses.dataclass(frozen=True)
class Vocabulary(abc.ABC):
    """The entries of a tokenizer, and all else that decides what a text is tokenised to.

    The first entry is the padding: in tables of tokens 0 is where there is none. A checkpoint with
    another entry there is read with the two exchanged, see `dcse_tf.model.weights.read_tensors`.

    Attributes:
        tokens: the entries; a token's id is its place.
        lowercase: whether text is lower-cased before the look-up.
        prefix: put before every text, such as "query: " for E5.
        special: those that stand for no text.
    """

    tokens: tuple[str, ...]
    lowercase: bool
    prefix: str = dataclasses.field(default="", kw_only=True)
    special: ClassVar[SpecialTokens]

    def index(self, token: str) -> int:
        return self.tokens.index(token)

    @property
    def cls_id(self) -> int:
        return self.index(self.special.cls)

    @property
    def sep_id(self) -> int:
        return self.index(self.special.sep)

    @property
    def mask_id(self) -> int:
        return self.index(self.special.mask)

    @property
    def unk_id(self) -> int:
        return self.index(self.special.unk)

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Of the special entries, an [EOT] among them if there is one."""
        found = [*self.special, *([END_OF_TURN] if self.has_end_of_turn else [])]
        return tuple(map(self.index, found))

    @property
    def has_end_of_turn(self) -> bool:
        return self.tokens[-1] == END_OF_TURN

    @property
    def text_tokens(self) -> tuple[str, ...]:
        """The entries without an [EOT] at the end, which no text has."""
        return self.tokens[:-1] if self.has_end_of_turn else self.tokens

    def with_end_of_turn(self) -> Self:
        """This vocabulary with [EOT] as its last entry; itself if it has one."""
        if END_OF_TURN in self.tokens:
            return self
        return dataclasses.replace(self, tokens=(*self.tokens, END_OF_TURN))

    def with_prefix(self, prefix: str) -> Self:
        """This vocabulary with another text before every text."""
        return dataclasses.replace(self, prefix=prefix)

    def count_prefix(self) -> int:
        """How many tokens stand between [CLS] and those of a text."""
        return self.make_tokenizer().count_prefix() if self.prefix else 0

    def fingerprint(self) -> str:
        """SHA-256 of what tokenises: equal fingerprints tokenise equally.

        An [EOT] does not count: a corpus serves encoders with it and without.
        """
        content = self._content()
        return hash_bytes(content + f"\nprefix={self.prefix}".encode() if self.prefix else content)

    @abc.abstractmethod
    def _content(self) -> bytes:
        """All that tokenises but the prefix."""

    @abc.abstractmethod
    def describe(self) -> str:
        """What becomes of a text, in a few words."""

    @abc.abstractmethod
    def begins_word(self, token: str) -> bool:
        """Whether an entry that is not special can stand where a word begins."""

    @abc.abstractmethod
    def spell(self, tokens: Iterable[str]) -> str:
        """Entries as a text that a person can read."""

    def write(self, folder: pathlib.Path) -> None:
        """Writes what `dcse_tf.model.tokenizer.read_vocabulary` reads."""
        self._write_files(folder)
        write_prefix(folder, self.prefix)

    @abc.abstractmethod
    def _write_files(self, folder: pathlib.Path) -> None:
        """Writes all but the prefix."""

    @abc.abstractmethod
    def write_tokenizer(self, folder: pathlib.Path, max_sequence_length: int) -> None:
        """Writes all files that HuggingFace's libraries look for, without the prefix.

        Texts are cut to `max_sequence_length` tokens, those of the ends counted. Special tokens in
        a text are split like any other text, as here; but an [EOT] of the vocabulary is found in a
        text, for that is how such a tokenizer is given the turns of a dialogue.
        """

    @abc.abstractmethod
    def make_tokenizer(self) -> "Tokenizer":
        """The operations that tokenise."""


def save_tokenizer(
    path: pathlib.Path, vocabulary: Vocabulary, tokenizer: tokenizers.Tokenizer
) -> None:
    """Writes a `tokenizer.json`: HuggingFace's tokenizer, with the ends of a text and of two.

    Args:
        path: the file.
        vocabulary: of the tokenizer.
        tokenizer: without special entries; they are added to it.
    """
    special = vocabulary.special
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{special.cls} $A {special.sep}",
        pair=f"{special.cls} $A {special.sep} $B:1 {special.sep}:1",
        special_tokens=[(token, vocabulary.index(token)) for token in (special.cls, special.sep)],
    )
    tokenizer.add_special_tokens(list(special))
    if vocabulary.has_end_of_turn:
        # Not as a special one, for those are split where a text has them, see `write_tokenizer`.
        tokenizer.add_tokens([tokenizers.AddedToken(END_OF_TURN, normalized=False)])
    tokenizer.save(str(path))


class Tokenizer(tf.Module, abc.ABC):
    """Strings to token ids, in the graph, the same operations in training and in serving."""

    def __init__(self, vocabulary: Vocabulary):
        super().__init__()
        self.cls_id = vocabulary.cls_id
        self.sep_id = vocabulary.sep_id
        self.size = len(vocabulary.tokens)
        self._prefix = vocabulary.prefix

    @abc.abstractmethod
    def split(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Token ids of strings `[texts]`, int32 `[texts, (tokens)]`, without the ends."""

    def count_prefix(self) -> int:
        """How many tokens stand between [CLS] and those of a text."""
        if not self._prefix:
            return 0
        return int(self.split(tf.constant([self._prefix])).row_lengths()[0])

    def tokenize(self, texts: tf.Tensor, max_sequence_length: int) -> tf.RaggedTensor:
        """Token ids between [CLS] and [SEP], those of the prefix first, cut to a length.

        Args:
            texts: strings `[texts]`, UTF-8.
            max_sequence_length: most tokens of a text, [CLS] and [SEP] counted.

        Returns:
            int32 `[texts, (tokens)]`.
        """
        if self._prefix:
            texts = tf.strings.join([self._prefix, texts])
        ids = self.split(texts)[:, : max_sequence_length - 2]
        ends = tf.ones([tf.shape(texts)[0], 1], tf.int32)
        return tf.concat([ends * self.cls_id, ids, ends * self.sep_id], axis=1)

    def as_graph(self, max_sequence_length: int) -> Callable[[tf.Tensor], tf.RaggedTensor]:
        """`tokenize` as one graph, which takes a few texts in a tenth of the time."""
        signature = [tf.TensorSpec([None], tf.string)]
        return tf.function(
            lambda texts: self.tokenize(texts, max_sequence_length),
            input_signature=signature,
            autograph=False,
        )
