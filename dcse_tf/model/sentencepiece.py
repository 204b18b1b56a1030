"""XLM-R's tokenisation in the graph: SentencePiece's unigrams, and the files that hold them.

tensorflow-text's SentencepieceTokenizer computes it, from a model that is made here of the pieces,
their scores and the table by which characters are normalised, whichever file they came from. The
tests compare the result with the HuggingFace tokenizer token for token.
"""

import base64
import binascii
import dataclasses
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.normalizers
import tokenizers.pre_tokenizers
import tokenizers.processors
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as protobuf

from dcse_tf.errors import InputError
from dcse_tf.model.vocabulary import END_OF_TURN, SpecialTokens, Tokenizer, Vocabulary

SPECIAL_TOKENS = SpecialTokens(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")
SPACE = "\u2581"  # begins a piece that begins a word
_PIECE = protobuf.ModelProto.SentencePiece


@dataclasses.dataclass(frozen=True)
class SentencePiece(Vocabulary):
    """A vocabulary of unigrams: of all ways to cut a text the likeliest is taken.

    Attributes:
        scores: of each piece the logarithm of its probability; of [EOT] none.
        charsmap: SentencePiece's compiled table of what characters are replaced by.
    """

    scores: tuple[float, ...]
    charsmap: bytes
    special: ClassVar[SpecialTokens] = SPECIAL_TOKENS

    def _content(self) -> bytes:
        tokens = "\n".join(self.text_tokens).encode()
        return tokens + np.array(self.scores, np.float32).tobytes() + self.charsmap

    def describe(self) -> str:
        return "cased, normalised by SentencePiece"

    def begins_word(self, token: str) -> bool:
        return token.startswith(SPACE) and token != SPACE

    def spell(self, tokens: Iterable[str]) -> str:
        return "".join(tokens).replace(SPACE, " ").strip()

    def _write_files(self, folder: pathlib.Path) -> None:
        _write_files(folder, self, {})

    def write_tokenizer(self, folder: pathlib.Path, max_sequence_length: int) -> None:
        limits = {"model_max_length": max_sequence_length, "split_special_tokens": True}
        _write_files(folder, self, limits)
        path, names = folder / "special_tokens_map.json", _name_tokens()
        path.write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")

    def make_tokenizer(self) -> "SentencePieceTokenizer":
        return SentencePieceTokenizer(self)

    def list_pieces(self) -> Iterator[tuple[str, float]]:
        """The entries with their scores, an [EOT] with 0."""
        yield from zip(self.tokens, (*self.scores, 0.0))


class SentencePieceTokenizer(Tokenizer):
    """XLM-R's tokenisation."""

    def __init__(self, vocabulary: SentencePiece):
        super().__init__(vocabulary)
        self._pieces = tf_text.SentencepieceTokenizer(
            make_model(vocabulary).SerializeToString(), out_type=tf.int32
        )

    def split(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._pieces.tokenize(texts)


def make_model(vocabulary: SentencePiece) -> protobuf.ModelProto:
    """SentencePiece's own form of a vocabulary, whose ids are the vocabulary's."""
    model = protobuf.ModelProto()
    kinds = dict.fromkeys((*SPECIAL_TOKENS, END_OF_TURN), _PIECE.CONTROL)
    kinds[SPECIAL_TOKENS.unk] = _PIECE.UNKNOWN
    for token, score in vocabulary.list_pieces():
        model.pieces.add(piece=token, score=score, type=kinds.get(token, _PIECE.NORMAL))
    model.trainer_spec.model_type = protobuf.TrainerSpec.UNIGRAM
    model.normalizer_spec.precompiled_charsmap = vocabulary.charsmap
    return model


def read_sentencepiece(path: pathlib.Path) -> SentencePiece:
    """Reads `sentencepiece.bpe.model`, to whose pieces XLM-R adds <pad> and <mask>.

    Raises:
        InputError: it is not a model of unigrams as XLM-R has one.
    """
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
    pieces = [(piece.piece, piece.score) for piece in model.pieces[3:]]
    heads = [(token, 0.0) for token in (special.pad, special.cls, special.sep, special.unk)]
    entries = [*heads, *pieces, (special.mask, 0.0)]
    return _make_vocabulary(path, entries, model.normalizer_spec.precompiled_charsmap)


def parse_unigram(path: pathlib.Path, content: Any) -> SentencePiece:
    """The vocabulary of a `tokenizer.json` of unigrams.

    Args:
        path: the file, for messages.
        content: what is in it.

    Raises:
        InputError: it does something that SentencePiece as XLM-R has it does not.
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
    while (token := added.get(len(entries))) is not None:
        entries.append((token, 0.0))
    names = [token for token, _ in entries]
    if SPECIAL_TOKENS.pad in names:
        place = names.index(SPECIAL_TOKENS.pad)
        entries[0], entries[place] = entries[place], entries[0]
    return _make_vocabulary(path, entries, charsmap)


def _make_vocabulary(
    path: pathlib.Path, entries: Sequence[tuple[str, float]], charsmap: bytes
) -> SentencePiece:
    tokens = tuple(token for token, _ in entries)
    missing = [token for token in SPECIAL_TOKENS if token not in tokens]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    if len(set(tokens)) < len(tokens):
        raise InputError(f"{path}: has an entry twice")
    count = len(tokens) - (tokens[-1] == END_OF_TURN)
    return SentencePiece(tokens, False, tuple(score for _, score in entries[:count]), charsmap)


def _find_charsmap(path: pathlib.Path, normalizer: dict[str, Any] | None) -> bytes:
    """The compiled table among the steps of a normalizer, the others being what SentencePiece does
    anyway: spaces in a row are one, and those at the ends none.
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
                "word, and WhitespaceSplit before it perhaps"
            )


def _name_tokens() -> dict[str, str]:
    names = {f"{role}_token": token for role, token in SPECIAL_TOKENS._asdict().items()}
    return {**names, "bos_token": SPECIAL_TOKENS.cls, "eos_token": SPECIAL_TOKENS.sep}


def _write_files(folder: pathlib.Path, vocabulary: SentencePiece, further: dict[str, Any]) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`.

    The class is HuggingFace's for any tokenizer.json: XLM-R's own has <s> before <pad>.
    """
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **_name_tokens(), **further}
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")

    pieces = list(vocabulary.list_pieces())
    special = SPECIAL_TOKENS
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.Unigram(pieces, unk_id=vocabulary.unk_id, byte_fallback=False)
    )
    if vocabulary.charsmap:
        tokenizer.normalizer = tokenizers.normalizers.Precompiled(vocabulary.charsmap)
    spaces = tokenizers.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    split = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, spaces])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{special.cls} $A {special.sep}",
        pair=f"{special.cls} $A {special.sep} $B:1 {special.sep}:1",
        special_tokens=[(token, vocabulary.index(token)) for token in (special.cls, special.sep)],
    )
    tokenizer.decoder = tokenizers.decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.add_special_tokens(list(special))
    if vocabulary.has_end_of_turn:
        # Not as a special one, for those are split where a text has them.
        tokenizer.add_tokens([tokenizers.AddedToken(END_OF_TURN, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
