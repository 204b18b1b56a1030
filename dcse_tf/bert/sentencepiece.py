"""The vocabulary of XLM-R: SentencePiece's unigram model.

The model is built here from the pieces, their scores and the table that normalises characters,
whichever file they came from.
"""

import base64
import binascii
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.normalizers
import tokenizers.pre_tokenizers

from dcse_tf.bert.fast_vocabulary import SPECIAL_TOKENS, FastVocabulary, complete_tokens
from dcse_tf.bert.vocabulary import END_OF_TURN, Split
from dcse_tf.errors import InputError

if TYPE_CHECKING:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    from dcse_tf.bert.graph_tokenizers import SentencePieceTokenizer

SPACE = "\u2581"  # first character of a piece that begins a word


@dataclasses.dataclass(frozen=True)
class SentencePiece(FastVocabulary):
    """A unigram vocabulary: a text is split in the most probable way.

    Attributes:
        scores: the log probability of each piece; [EOT] has none.
        charsmap: SentencePiece's compiled table of character replacements.
    """

    scores: tuple[float, ...]
    charsmap: bytes

    def _content(self) -> bytes:
        tokens = "\n".join(self.text_tokens).encode()
        return tokens + np.array(self.scores, np.float32).tobytes() + self.charsmap

    def describe(self) -> str:
        return "cased, normalised by SentencePiece"

    def begins_word(self, token: str) -> bool:
        return token.startswith(SPACE) and token != SPACE

    def spell(self, tokens: Iterable[str]) -> str:
        return "".join(tokens).replace(SPACE, " ").strip()

    def make_tokenizer(self) -> "SentencePieceTokenizer":
        from dcse_tf.bert.graph_tokenizers import SentencePieceTokenizer

        return SentencePieceTokenizer(self)

    def make_split(self) -> Split:
        import sentencepiece

        # Not HuggingFace's tokenizer: it normalises half-width kana in another way.
        model = make_model(self).SerializeToString()
        return sentencepiece.SentencePieceProcessor(model_proto=model).encode

    def _make_fast(self) -> tokenizers.Tokenizer:
        pieces = list(self.list_pieces())
        tokenizer = tokenizers.Tokenizer(
            tokenizers.models.Unigram(pieces, unk_id=self.unk_id, byte_fallback=False)
        )
        if self.charsmap:
            tokenizer.normalizer = tokenizers.normalizers.Precompiled(self.charsmap)
        steps = tokenizers.pre_tokenizers
        tokenizer.pre_tokenizer = steps.Sequence(
            [steps.WhitespaceSplit(), steps.Metaspace(SPACE, "always")]
        )
        tokenizer.decoder = tokenizers.decoders.Metaspace(SPACE, "always")
        return tokenizer

    def list_pieces(self) -> Iterator[tuple[str, float]]:
        """The entries with their scores; [EOT], if there is one, has score 0."""
        yield from zip(self.tokens, (*self.scores, 0.0))


def make_model(vocabulary: SentencePiece) -> "ModelProto":
    """The vocabulary as a SentencePiece model with the same ids."""
    from sentencepiece import sentencepiece_model_pb2 as protobuf

    model, kind = protobuf.ModelProto(), protobuf.ModelProto.SentencePiece
    kinds = dict.fromkeys((*SPECIAL_TOKENS, END_OF_TURN), kind.CONTROL)
    kinds[SPECIAL_TOKENS.unk] = kind.UNKNOWN
    for token, score in vocabulary.list_pieces():
        model.pieces.add(piece=token, score=score, type=kinds.get(token, kind.NORMAL))
    model.trainer_spec.model_type = protobuf.TrainerSpec.UNIGRAM
    model.normalizer_spec.precompiled_charsmap = vocabulary.charsmap
    return model


def read_sentencepiece(path: pathlib.Path) -> SentencePiece:
    """Reads `sentencepiece.bpe.model`, to whose pieces XLM-R adds <pad> and <mask>.

    Raises:
        InputError: it is not a unigram model like XLM-R's.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2 as protobuf

    model = protobuf.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    names = [piece.piece for piece in model.pieces]
    special = SPECIAL_TOKENS
    if names[:3] != [special.unk, special.cls, special.sep] or (
        model.trainer_spec.model_type != protobuf.TrainerSpec.UNIGRAM
    ):
        raise InputError(
            f"{path}: expected a model of unigrams that begins with {special.unk}, {special.cls} "
            f"and {special.sep}, found {', '.join(names[:3]) or 'nothing'}"
        )
    scores = {piece.piece: piece.score for piece in model.pieces[3:]}
    heads = (special.cls, special.pad, special.sep, special.unk)
    tokens = complete_tokens(path, [*heads, *scores, special.mask], {})
    return _make_vocabulary(tokens, scores, model.normalizer_spec.precompiled_charsmap)


def parse_unigram(path: pathlib.Path, content: Any) -> SentencePiece:
    """The vocabulary of a `tokenizer.json` with a unigram model.

    Args:
        path: the file's path, for error messages.
        content: the file's parsed content.

    Raises:
        InputError: it tokenises in another way than XLM-R's SentencePiece.
    """
    try:
        entries = [(str(token), float(score)) for token, score in content["model"]["vocab"]]
        added = {int(each["id"]): str(each["content"]) for each in content["added_tokens"]}
        charsmap = _find_charsmap(path, content["normalizer"])
        _check_splitting(path, content["pre_tokenizer"])
        if content["model"].get("byte_fallback"):
            raise InputError(f"{path}: byte_fallback is not supported")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: expected a tokenizer of unigrams: {error!r}") from error
    scores = dict(entries)
    if len(scores) < len(entries):
        raise InputError(f"{path}: contains an entry twice")
    tokens = complete_tokens(path, list(scores), added)
    return _make_vocabulary(tokens, scores, charsmap)


def _make_vocabulary(
    tokens: tuple[str, ...], scores: dict[str, float], charsmap: bytes
) -> SentencePiece:
    texts = tokens[:-1] if tokens[-1] == END_OF_TURN else tokens
    return SentencePiece(tokens, False, tuple(scores.get(t, 0.0) for t in texts), charsmap)


def _find_charsmap(path: pathlib.Path, normalizer: dict[str, Any] | None) -> bytes:
    """The compiled table of character replacements in a normalizer.

    Its other steps may only do what SentencePiece always does: collapse spaces and strip them at
    the ends.
    """
    steps = [normalizer] if normalizer else []
    if normalizer and normalizer["type"] == "Sequence":
        steps = normalizer["normalizers"]
    charsmap = b""
    for step in steps:
        if step["type"] == "Precompiled":
            try:
                charsmap = base64.b64decode(step["precompiled_charsmap"] or "", validate=True)
            except binascii.Error as error:
                raise InputError(f"{path}: precompiled_charsmap: {error}") from error
        elif step["type"] != "Strip" and (
            step["type"] != "Replace" or step["pattern"] != {"Regex": " {2,}"}
        ):
            raise InputError(
                f"{path}: normalizer {step['type']!r:.40}, expected Precompiled, Strip, or Replace "
                "of spaces in a row"
            )
    return charsmap


def _check_splitting(path: pathlib.Path, splitting: dict[str, Any]) -> None:
    steps = splitting["pretokenizers"] if splitting["type"] == "Sequence" else [splitting]
    for step in steps:
        kind = step["type"]
        always = step.get("prepend_scheme", "always") == "always"
        if kind == "Metaspace" and step["replacement"] == SPACE and always:
            continue
        if kind != "WhitespaceSplit":
            raise InputError(
                f"{path}: pre_tokenizer {kind!r:.40}, expected Metaspace with {SPACE} before every "
                "word, with or without WhitespaceSplit"
            )
