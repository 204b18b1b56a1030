"""Vocabularies: entries with ids, special entries, and what tokenises by them.

BERT and MPNet have WordPiece, RoBERTa has byte pairs, and XLM-R SentencePiece's unigrams.
`dcse_tf.bert.tokenizer` reads vocabularies from a checkpoint's folder and trains new ones.
"""

import abc
import dataclasses
import functools
import pathlib
import re
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from dcse_tf.bert.sentence_modules import write_prefix
from dcse_tf.errors import InputError
from dcse_tf.files import hash_bytes, write_json

if TYPE_CHECKING:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    from dcse_tf.bert.graph_tokenizers import Tokenizer

# Follows every turn when a dialogue is one sequence. No text is tokenised to it.
END_OF_TURN = "[EOT]"
PIECE = "##"  # prefix of WordPiece's entries that continue a word
LONGEST_WORD = 100  # characters; to BERT, a longer one is unknown
# The score of a blank candidate. Not minus infinity, which JSON cannot represent.
NO_CANDIDATE = -1e9
# What `is_blank` accepts, as a regular expression of RE2, for TensorFlow's graphs.
BLANK = r"[\pZ\pC]*"
_CATEGORIES = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"}

# A function from texts to the token ids of each, without [CLS] and [SEP].
Split = Callable[[list[str]], list[list[int]]]


def is_blank(text: str) -> bool:
    """Whether a text has nothing to read, only white space and control characters.

    Characters that this Python's Unicode version does not know (category Cn) count as readable.
    """
    for char in text:  # noqa: SIM110 - all() takes three times as long
        if unicodedata.category(char) not in _CATEGORIES:
            return False
    return True


class SpecialTokens(NamedTuple):
    """The special entries, which stand for no text, by their role."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


SPECIAL_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclasses.dataclass(frozen=True)
class Vocabulary(abc.ABC):
    """The entries of a tokenizer and everything else that determines how it tokenises a text.

    The first entry is the padding, so that 0 marks padding in tables of tokens. If a checkpoint has
    another entry first, the two are swapped when it is read, see
    `dcse_tf.bert.weights.read_tensors`.
    """

    tokens: tuple[str, ...]  # a token's id is its index
    lowercase: bool  # whether text is lower-cased before it is tokenised
    # Text put before every text, such as "query: " for E5.
    prefix: str = dataclasses.field(default="", kw_only=True)
    special: ClassVar[SpecialTokens]

    cls_id = property(lambda self: self.tokens.index(self.special.cls))
    sep_id = property(lambda self: self.tokens.index(self.special.sep))
    mask_id = property(lambda self: self.tokens.index(self.special.mask))
    unk_id = property(lambda self: self.tokens.index(self.special.unk))

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the special entries, including [EOT] if there is one."""
        special = {*self.special, END_OF_TURN}
        return tuple(i for i, token in enumerate(self.tokens) if token in special)

    @property
    def text_tokens(self) -> tuple[str, ...]:
        """The entries without a final [EOT], which no text contains."""
        return self.tokens[:-1] if self.tokens[-1] == END_OF_TURN else self.tokens

    def with_end_of_turn(self) -> Self:
        """This vocabulary with [EOT] added as its last entry, unless it has one."""
        if END_OF_TURN in self.tokens:
            return self
        return dataclasses.replace(self, tokens=(*self.tokens, END_OF_TURN))

    def with_prefix(self, prefix: str) -> Self:
        return dataclasses.replace(self, prefix=prefix)

    def count_prefix(self) -> int:
        """The number of the prefix's tokens, between [CLS] and a text's own."""
        # In a byte-level vocabulary, the space at its end belongs to the first token of the text.
        return len(self.make_split()([self.prefix.rstrip()])[0]) if self.prefix else 0

    def require_room(self, max_sequence_length: int) -> None:
        """Raises InputError if the prefix would leave no token of a text."""
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
        self.write_tokenizer(folder)
        write_prefix(folder, self.prefix)

    def write_tokenizer(self, folder: pathlib.Path, max_sequence_length: int = 0) -> None:
        """Writes the files of a tokenizer that HuggingFace's libraries read, without the prefix.

        Given a length, which includes [CLS] and [SEP], it truncates texts to it and, like this
        class's own tokenizer, splits special tokens in a text like any other text. Unlike it, it
        recognises the vocabulary's [EOT], so that it can be given whole dialogues.
        """
        names = {f"{role}_token": token for role, token in self.special._asdict().items()}
        limits = {"model_max_length": max_sequence_length, "split_special_tokens": True}
        settings = self._settings() | names | (limits if max_sequence_length else {})
        write_json(folder / "tokenizer_config.json", settings)
        special, tokenizer = self.special, self.make_fast()
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{special.cls} $A {special.sep}",
            pair=f"{special.cls} $A {special.sep} $B:1 {special.sep}:1",
            special_tokens=[(special.cls, self.cls_id), (special.sep, self.sep_id)],
        )
        tokenizer.add_special_tokens(list(special))
        if self.tokens[-1] == END_OF_TURN:
            # Not as a special token, since those are split in texts.
            # It takes the spaces around it, so that a turn begins as the text that it is.
            end = tokenizers.AddedToken(END_OF_TURN, normalized=False, lstrip=True, rstrip=True)
            tokenizer.add_tokens([end])
        tokenizer.save(str(folder / "tokenizer.json"))

    def make_tokenizer(self) -> "Tokenizer":
        """The tokenizer in TensorFlow's graph that uses this vocabulary."""
        from dcse_tf.bert.graph_tokenizers import Tokenizer

        return Tokenizer(self)

    @abc.abstractmethod
    def _settings(self) -> dict[str, Any]:
        """HuggingFace's settings of the tokenizer, except the names of special entries."""

    @abc.abstractmethod
    def _content(self) -> bytes:
        """Everything that affects tokenisation, except the prefix."""

    @abc.abstractmethod
    def begins_word(self, token: str) -> bool:
        """Whether an entry that is not special can begin a word."""

    @abc.abstractmethod
    def make_fast(self) -> tokenizers.Tokenizer:
        """HuggingFace's tokenizer of this vocabulary, without the special entries."""

    @abc.abstractmethod
    def make_split(self) -> Split:
        """The tokenisation of `make_tokenizer` without TensorFlow, by libraries of their own."""


def _split_by(tokenizer: tokenizers.Tokenizer, prepare: Callable[[str], str] | None) -> Split:
    """Splits texts, changed by `prepare`, with a tokenizer without special entries."""
    encode = functools.partial(tokenizer.encode_batch_fast, add_special_tokens=False)
    return lambda texts: [x.ids for x in encode([*map(prepare, texts)] if prepare else texts)]


# What HuggingFace's BertNormalizer and BertPreTokenizer miss, since their tables of characters are
# of an older Unicode, and one block of ideographs.
_REMOVED, _ACCENTS = (tokenizers.Regex(pattern) for pattern in (r"[\p{Cf}\p{Co}]", r"\p{Mn}"))
_ALONE = tokenizers.Regex(r"[\p{P}\x{2B820}-\x{2B91F}]")


@dataclasses.dataclass(frozen=True)
class WordPiece(Vocabulary):
    """BERT's vocabulary; lower-casing includes stripping accents."""

    special: ClassVar[SpecialTokens] = SPECIAL_TOKENS

    def _content(self) -> bytes:
        return "\n".join((*self.text_tokens, f"lowercase={self.lowercase}")).encode()

    def begins_word(self, token: str) -> bool:
        return not token.startswith(PIECE) and not (token.startswith("[") and token.endswith("]"))

    def _settings(self) -> dict[str, Any]:
        kind = "BertTokenizer" if self.tokens[0] == self.special.pad else "MPNetTokenizer"
        settings = {"strip_accents": None, "tokenize_chinese_chars": True, "tokenizer_class": kind}
        return {"do_lower_case": self.lowercase, **settings}

    def write_tokenizer(self, folder: pathlib.Path, max_sequence_length: int = 0) -> None:
        (folder / "vocab.txt").write_text("\n".join(self.tokens) + "\n", encoding="utf-8")
        super().write_tokenizer(folder, max_sequence_length)

    def make_fast(self) -> tokenizers.Tokenizer:
        entries = {token: index for index, token in enumerate(self.tokens)}
        limits = {"unk_token": self.special.unk, "max_input_chars_per_word": LONGEST_WORD}
        tokenizer = tokenizers.Tokenizer(models.WordPiece(entries, **limits))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer

    def make_split(self) -> Split:
        """The graph's tokenizer differs in characters of Unicode 15 and later, and in words of 101
        to 133 symbols, which are unknown here.
        """
        tokenizer, replace = self.make_fast(), normalizers.Replace
        strip = [normalizers.NFD(), replace(_ACCENTS, "")] if self.lowercase else []
        steps = [replace(_REMOVED, ""), *strip, tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence(steps)
        alone = pre_tokenizers.Split(_ALONE, "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, alone])
        return _split_by(tokenizer, _lower_sigmas if self.lowercase else None)


@dataclasses.dataclass(frozen=True)
class MPNetPieces(WordPiece):
    """MPNet's vocabulary: BERT's pieces with RoBERTa's special entries, except [UNK]."""

    special: ClassVar[SpecialTokens] = SpecialTokens("<pad>", "[UNK]", "<s>", "</s>", "<mask>")

    def number_as_mpnet(self) -> Self:
        """This vocabulary in the order in which MPNet stores it, with padding as second entry."""
        first, second, *rest = self.tokens
        return dataclasses.replace(self, tokens=(second, first, *rest))


def _lower_sigmas(text: str) -> str:
    """Lower-cases a text that has a capital sigma: at the end of a word it is another letter, which
    HuggingFace's tokenizer, that lower-cases one character after the other, does not know.
    """
    if "Σ" not in text:
        return text
    # The characters that are removed anyway, which would hide whether a word goes on.
    return "".join(c for c in text if c in "\t\n\r" or unicodedata.category(c)[0] != "C").lower()


# How keras-hub splits a text in the graph, see its `split_strings_for_bpe`. Its regular expressions
# have no lookahead, so it puts a mark before the space of a word and removes it afterwards. With
# spaces at the end of a text, and the mark itself, this is not what HuggingFace does.
_MARK = "\u096c"
_WIDE = "\u00a0\u2009\u202f\u3000"
_BLANK = rf"\t\n\f\r {_WIDE}"
_WORD_BEGINS = re.compile(rf"(?= [^{_BLANK}])|(?<=[\t\n\f\r ]{_WIDE})\Z")
_SPLITS = (
    rf"'s|'t|'re|'ve|'m|'ll|'d|[{_BLANK}]+[\n\r\t\f{_MARK}{_WIDE}]"
    rf"| ?\p{{L}}+| ?\p{{N}}+| ?[^{_BLANK}\p{{L}}\p{{N}}]+",
    rf"[ \t\r\f\v{_MARK}{_WIDE}]\z",
)


@dataclasses.dataclass(frozen=True)
class Subwords(Vocabulary):
    """A vocabulary with RoBERTa's special entries, written as a `tokenizer.json`."""

    special: ClassVar[SpecialTokens] = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    space: ClassVar[str]  # the first character of an entry that begins a word

    def begins_word(self, token: str) -> bool:
        return token.startswith(self.space) and token != self.space

    def _settings(self) -> dict[str, Any]:
        # HuggingFace's generic class, since RoBERTa's classes expect <s> before <pad>.
        ends = {"bos_token": self.special.cls, "eos_token": self.special.sep}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **ends}


@dataclasses.dataclass(frozen=True)
class BytePair(Subwords):
    """A vocabulary of byte-pair encoding."""

    space: ClassVar[str] = "\u0120"
    merges: tuple[str, ...]  # pairs of tokens, "first second", the highest priority first

    def _content(self) -> bytes:
        return "\n".join((*self.text_tokens, "", *self.merges)).encode()

    def make_split(self) -> Split:
        tokenizer, steps = self.make_fast(), pre_tokenizers
        parts = [steps.Split(tokenizers.Regex(pattern), "isolated") for pattern in _SPLITS]
        marks = steps.Split(tokenizers.Regex(rf"\A{_MARK}\z"), "removed")
        as_bytes = steps.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = steps.Sequence([*parts, marks, as_bytes])
        # As in the graph, null characters are left out.
        mark = functools.partial(_WORD_BEGINS.sub, _MARK)
        return _split_by(tokenizer, lambda text: mark(text.replace("\0", "")))

    def make_fast(self) -> tokenizers.Tokenizer:
        entries = {token: index for index, token in enumerate(self.tokens)}
        pairs = [(first, second) for first, second in map(str.split, self.merges)]
        tokenizer = tokenizers.Tokenizer(models.BPE(entries, pairs))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer


@dataclasses.dataclass(frozen=True)
class SentencePiece(Subwords):
    """A unigram vocabulary: a text is split in the most probable way."""

    space: ClassVar[str] = "\u2581"
    scores: tuple[float, ...]  # the log probability of each piece; [EOT] has none
    charsmap: bytes  # SentencePiece's compiled table of character replacements

    def _content(self) -> bytes:
        tokens = "\n".join(self.text_tokens).encode()
        return tokens + np.array(self.scores, np.float32).tobytes() + self.charsmap

    def make_split(self) -> Split:
        import sentencepiece

        # Not HuggingFace's tokenizer: it normalises half-width kana in another way.
        model = self.make_model().SerializeToString()
        return sentencepiece.SentencePieceProcessor(model_proto=model).encode

    def make_fast(self) -> tokenizers.Tokenizer:
        pieces = list(zip(self.tokens, (*self.scores, 0.0)))
        model = models.Unigram(pieces, unk_id=self.unk_id, byte_fallback=False)
        tokenizer, steps = tokenizers.Tokenizer(model), pre_tokenizers
        if self.charsmap:
            tokenizer.normalizer = normalizers.Precompiled(self.charsmap)
        words = [steps.WhitespaceSplit(), steps.Metaspace(self.space, "always")]
        tokenizer.pre_tokenizer = steps.Sequence(words)
        tokenizer.decoder = decoders.Metaspace(self.space, "always")
        return tokenizer

    def make_model(self) -> "ModelProto":
        """The vocabulary as a SentencePiece model with the same ids."""
        from sentencepiece import sentencepiece_model_pb2 as protobuf

        model, kind = protobuf.ModelProto(), protobuf.ModelProto.SentencePiece
        kinds = dict.fromkeys((*self.special, END_OF_TURN), kind.CONTROL)
        kinds[self.special.unk] = kind.UNKNOWN
        for token, score in zip(self.tokens, (*self.scores, 0.0)):
            model.pieces.add(piece=token, score=score, type=kinds.get(token, kind.NORMAL))
        model.trainer_spec.model_type = protobuf.TrainerSpec.UNIGRAM
        model.normalizer_spec.precompiled_charsmap = self.charsmap
        return model
