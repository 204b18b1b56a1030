"""Reads the vocabulary of a checkpoint's folder, whatever its kind."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from dcse_tf.bert.byte_pair import parse_byte_pairs, read_byte_pairs
from dcse_tf.bert.checkpoints import find_padding, is_mpnet
from dcse_tf.bert.families import is_relative
from dcse_tf.bert.sentence_modules import read_prefix
from dcse_tf.bert.sentencepiece import parse_unigram, read_sentencepiece
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.bert.wordpiece import MPNetPieces, parse_wordpiece, read_wordpiece
from dcse_tf.errors import InputError
from dcse_tf.input_files import parse_json

_PARSERS: dict[str, Callable[[pathlib.Path, Any], Vocabulary]] = {
    "WordPiece": parse_wordpiece,
    "Unigram": parse_unigram,
    "BPE": parse_byte_pairs,
}


def read_vocabulary(folder: pathlib.Path) -> Vocabulary:
    """Reads a folder's vocabulary, including the prefix of every text (`read_prefix`).

    It uses the first of these files that exists: vocab.txt, tokenizer.json,
    sentencepiece.bpe.model, vocab.json.

    Raises:
        InputError: there is no such file, or the tokenizer is invalid or not supported.
    """
    vocabulary = _read_entries(folder).with_prefix(read_prefix(folder))
    if is_mpnet(folder) and not (isinstance(vocabulary, MPNetPieces) and find_padding(folder) == 1):
        raise InputError(f"{folder}: expected the vocabulary of an MPNet, which begins <s>, <pad>")
    return vocabulary


def number_as_written(vocabulary: Vocabulary, config: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary in the order in which an encoder's weights are written, see `write_bert`.

    Args:
        vocabulary: the encoder's vocabulary.
        config: the encoder's configuration, see `read_config`.
    """
    if is_relative(config):
        assert isinstance(vocabulary, MPNetPieces)
        return vocabulary.number_as_mpnet()
    return vocabulary


def _read_entries(folder: pathlib.Path) -> Vocabulary:
    if (folder / "vocab.txt").is_file():
        return read_wordpiece(folder)
    path = folder / "tokenizer.json"
    if path.is_file():
        return _read_tokenizer_json(path)
    if (path := folder / "sentencepiece.bpe.model").is_file():
        return read_sentencepiece(path)
    if (folder / "vocab.json").is_file():
        return read_byte_pairs(folder)
    problem = "no vocabulary in it" if folder.is_dir() else "no such file or folder"
    raise InputError(
        f"{folder}: {problem}; a checkpoint has it as vocab.txt, tokenizer.json, "
        "sentencepiece.bpe.model or vocab.json"
    )


def _read_tokenizer_json(path: pathlib.Path) -> Vocabulary:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        kind = content["model"]["type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: expected a tokenizer: {error!r}") from error
    if kind not in _PARSERS:
        raise InputError(f"{path}: model {kind!r:.40}, expected {' or '.join(_PARSERS)}")
    return _PARSERS[kind](path, content)
