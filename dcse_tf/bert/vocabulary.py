"""Vocabularies: entries with ids, special entries, and what tokenises by them.

`dcse_tf.bert.wordpiece` and `dcse_tf.bert.subwords` have the kinds; `dcse_tf.bert.tokenizer` reads
them from a checkpoint's folder.
"""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import tokenizers
import tokenizers.processors

from dcse_tf.bert.sentence_modules import write_prefix
from dcse_tf.errors import InputError
from dcse_tf.files import hash_bytes, write_json

if TYPE_CHECKING:
    from dcse_tf.bert.graph_tokenizers import Tokenizer

# Follows every turn when a dialogue is one sequence. No text is tokenised to it.
END_OF_TURN = "[EOT]"

# A function from texts to the token ids of each, without [CLS] and [SEP].
Split = Callable[[list[str]], list[list[int]]]


class SpecialTokens(NamedTuple):
    """The special entries, which stand for no text, by their role."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


@dataclasses.dataclass(frozen=True)
class Vocabulary(abc.ABC):
    """The entries of a tokenizer and everything else that determines how it tokenises a text.

    The first entry is the padding, so that 0 marks padding in tables of tokens. If a checkpoint has
    another entry first, the two are swapped when it is read, see
    `dcse_tf.bert.weights.read_tensors`.

    Attributes:
        tokens: the entries; a token's id is its index.
        lowercase: whether text is lower-cased before it is tokenised.
        prefix: text put before every text, such as "query: " for E5.
        special: the entries that stand for no text.
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
        """The ids of the special entries, including [EOT] if there is one."""
        found = [*self.special, *([END_OF_TURN] if self.has_end_of_turn else [])]
        return tuple(map(self.index, found))

    @property
    def has_end_of_turn(self) -> bool:
        return self.tokens[-1] == END_OF_TURN

    @property
    def text_tokens(self) -> tuple[str, ...]:
        """The entries without a final [EOT], which no text contains."""
        return self.tokens[:-1] if self.has_end_of_turn else self.tokens

    def with_end_of_turn(self) -> Self:
        """This vocabulary with [EOT] added as its last entry, unless it has one."""
        if END_OF_TURN in self.tokens:
            return self
        return dataclasses.replace(self, tokens=(*self.tokens, END_OF_TURN))

    def with_prefix(self, prefix: str) -> Self:
        """This vocabulary with another prefix."""
        return dataclasses.replace(self, prefix=prefix)

    def count_prefix(self) -> int:
        """The number of the prefix's tokens, between [CLS] and a text's own."""
        if not self.prefix:
            return 0
        # In a byte-level vocabulary, the space at its end belongs to the first token of the text.
        return len(self.make_split()([self.prefix.rstrip()])[0])

    def require_room(self, max_sequence_length: int) -> None:
        """Checks that not all of a text is cut off behind the prefix.

        Raises:
            InputError: no token of a text would be left.
        """
        least = self.count_prefix() + 3  # [CLS], a token of the text and [SEP]
        if max_sequence_length < least:
            raise InputError(
                f"`max_sequence_length`={max_sequence_length}: the prefix {self.prefix!r} leaves "
                f"no room for a text; expected at least {least}"
            )

    def fingerprint(self) -> str:
        """SHA-256 of all that affects tokenisation: equal fingerprints tokenise equally.

        [EOT] is left out, since a corpus can be used with encoders that have it or not.
        """
        content = self._content()
        return hash_bytes(content + f"\nprefix={self.prefix}".encode() if self.prefix else content)

    def write(self, folder: pathlib.Path) -> None:
        """Writes the files that `dcse_tf.bert.tokenizer.read_vocabulary` reads."""
        self._write_files(folder, {})
        write_prefix(folder, self.prefix)

    def write_tokenizer(self, folder: pathlib.Path, max_sequence_length: int) -> None:
        """Writes the files of a tokenizer that HuggingFace's libraries read, without the prefix.

        It truncates texts to `max_sequence_length` tokens, including [CLS] and [SEP]. Like this
        class's own tokenizer, it splits special tokens in a text like any other text. Unlike it, it
        recognises the vocabulary's [EOT], so that it can be given whole dialogues.
        """
        limits = {"model_max_length": max_sequence_length, "split_special_tokens": True}
        self._write_files(folder, limits)

    def _write_files(self, folder: pathlib.Path, further: dict[str, Any]) -> None:
        names = {f"{role}_token": token for role, token in self.special._asdict().items()}
        settings = {**self._settings(), **names, **further}
        write_json(folder / "tokenizer_config.json", settings)

        special, tokenizer = self.special, self.make_fast()
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{special.cls} $A {special.sep}",
            pair=f"{special.cls} $A {special.sep} $B:1 {special.sep}:1",
            special_tokens=[(token, self.index(token)) for token in (special.cls, special.sep)],
        )
        tokenizer.add_special_tokens(list(special))
        if self.has_end_of_turn:
            # Not as a special token, since those are split in texts, see `write_tokenizer`.
            # It takes the spaces around it, so that a turn begins as the text that it is.
            end = tokenizers.AddedToken(END_OF_TURN, normalized=False, lstrip=True, rstrip=True)
            tokenizer.add_tokens([end])
        tokenizer.save(str(folder / "tokenizer.json"))

    @abc.abstractmethod
    def _settings(self) -> dict[str, Any]:
        """HuggingFace's settings of the tokenizer, except the names of special entries."""

    @abc.abstractmethod
    def _content(self) -> bytes:
        """Everything that affects tokenisation, except the prefix."""

    @abc.abstractmethod
    def describe(self) -> str:
        """How a text is normalised, in a few words."""

    @abc.abstractmethod
    def begins_word(self, token: str) -> bool:
        """Whether an entry that is not special can begin a word."""

    @abc.abstractmethod
    def spell(self, tokens: Iterable[str]) -> str:
        """The entries joined to a readable text."""

    @abc.abstractmethod
    def make_fast(self) -> tokenizers.Tokenizer:
        """HuggingFace's tokenizer of this vocabulary, without the special entries."""

    def make_tokenizer(self) -> "Tokenizer":
        """The tokenizer in TensorFlow's graph that uses this vocabulary."""
        from dcse_tf.bert.graph_tokenizers import build_tokenizer

        return build_tokenizer(self)

    @abc.abstractmethod
    def make_split(self) -> Split:
        """The same tokenisation without TensorFlow, by libraries of their own."""


def make_fast_split(
    tokenizer: tokenizers.Tokenizer, prepare: Callable[[str], str] | None = None
) -> Split:
    """Splits texts with HuggingFace's tokenizer, one without special entries.

    Args:
        tokenizer: the tokenizer.
        prepare: changes each text before.
    """

    def split(texts: list[str]) -> list[list[int]]:
        prepared = list(map(prepare, texts)) if prepare else texts
        found = tokenizer.encode_batch_fast(prepared, add_special_tokens=False)
        return [each.ids for each in found]

    return split
