"""The vocabularies of RoBERTa (byte pairs) and XLM-R (SentencePiece's unigrams)."""

import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.normalizers
import tokenizers.pre_tokenizers

from dcse_tf.bert.vocabulary import (
    END_OF_TURN,
    SpecialTokens,
    Split,
    Vocabulary,
    make_fast_split,
)

if TYPE_CHECKING:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

SPECIAL_TOKENS = SpecialTokens(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")
# Stands for a space: the first character of an entry that begins a word.
_BYTE_SPACE, _PIECE_SPACE = "\u0120", "\u2581"

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
class _Subwords(Vocabulary):
    """A vocabulary with RoBERTa's special entries, written as a `tokenizer.json`."""

    special: ClassVar[SpecialTokens] = SPECIAL_TOKENS
    space: ClassVar[str]

    def begins_word(self, token: str) -> bool:
        return token.startswith(self.space) and token != self.space

    def _settings(self) -> dict[str, Any]:
        # HuggingFace's generic class, since RoBERTa's classes expect <s> before <pad>.
        ends = {"bos_token": self.special.cls, "eos_token": self.special.sep}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **ends}


@dataclasses.dataclass(frozen=True)
class BytePair(_Subwords):
    """A vocabulary of byte-pair encoding.

    Attributes:
        merges: pairs of tokens to merge, "first second", the highest priority first.
    """

    space: ClassVar[str] = _BYTE_SPACE
    merges: tuple[str, ...]

    def _content(self) -> bytes:
        return "\n".join((*self.text_tokens, "", *self.merges)).encode()

    def describe(self) -> str:
        return "cased, in bytes"

    def spell(self, tokens: Iterable[str]) -> str:
        return tokenizers.decoders.ByteLevel().decode(list(tokens)).strip()

    def make_split(self) -> Split:
        tokenizer, steps = self.make_fast(), tokenizers.pre_tokenizers
        parts = [steps.Split(tokenizers.Regex(pattern), "isolated") for pattern in _SPLITS]
        marks = steps.Split(tokenizers.Regex(rf"\A{_MARK}\z"), "removed")
        as_bytes = steps.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = steps.Sequence([*parts, marks, as_bytes])
        # As in the graph, null characters are left out.
        mark = functools.partial(_WORD_BEGINS.sub, _MARK)
        return make_fast_split(tokenizer, lambda text: mark(text.replace("\0", "")))

    def make_fast(self) -> tokenizers.Tokenizer:
        entries = {token: index for index, token in enumerate(self.tokens)}
        pairs = [(first, second) for first, second in map(str.split, self.merges)]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(entries, pairs))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        return tokenizer


@dataclasses.dataclass(frozen=True)
class SentencePiece(_Subwords):
    """A unigram vocabulary: a text is split in the most probable way.

    Attributes:
        scores: the log probability of each piece; [EOT] has none.
        charsmap: SentencePiece's compiled table of character replacements.
    """

    space: ClassVar[str] = _PIECE_SPACE
    scores: tuple[float, ...]
    charsmap: bytes

    def _content(self) -> bytes:
        tokens = "\n".join(self.text_tokens).encode()
        return tokens + np.array(self.scores, np.float32).tobytes() + self.charsmap

    def describe(self) -> str:
        return "cased, normalised by SentencePiece"

    def spell(self, tokens: Iterable[str]) -> str:
        return "".join(tokens).replace(self.space, " ").strip()

    def make_split(self) -> Split:
        import sentencepiece

        # Not HuggingFace's tokenizer: it normalises half-width kana in another way.
        model = make_model(self).SerializeToString()
        return sentencepiece.SentencePieceProcessor(model_proto=model).encode

    def make_fast(self) -> tokenizers.Tokenizer:
        pieces = list(zip(self.tokens, (*self.scores, 0.0)))
        tokenizer = tokenizers.Tokenizer(
            tokenizers.models.Unigram(pieces, unk_id=self.unk_id, byte_fallback=False)
        )
        if self.charsmap:
            tokenizer.normalizer = tokenizers.normalizers.Precompiled(self.charsmap)
        steps = tokenizers.pre_tokenizers
        tokenizer.pre_tokenizer = steps.Sequence(
            [steps.WhitespaceSplit(), steps.Metaspace(self.space, "always")]
        )
        tokenizer.decoder = tokenizers.decoders.Metaspace(self.space, "always")
        return tokenizer


def make_model(vocabulary: SentencePiece) -> "ModelProto":
    """The vocabulary as a SentencePiece model with the same ids."""
    from sentencepiece import sentencepiece_model_pb2 as protobuf

    model, kind = protobuf.ModelProto(), protobuf.ModelProto.SentencePiece
    kinds = dict.fromkeys((*SPECIAL_TOKENS, END_OF_TURN), kind.CONTROL)
    kinds[SPECIAL_TOKENS.unk] = kind.UNKNOWN
    for token, score in zip(vocabulary.tokens, (*vocabulary.scores, 0.0)):
        model.pieces.add(piece=token, score=score, type=kinds.get(token, kind.NORMAL))
    model.trainer_spec.model_type = protobuf.TrainerSpec.UNIGRAM
    model.normalizer_spec.precompiled_charsmap = vocabulary.charsmap
    return model
