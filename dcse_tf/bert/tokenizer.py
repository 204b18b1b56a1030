"""Reads the vocabulary of a checkpoint's folder, whatever its kind."""

import base64
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import tokenizers
import tokenizers.pre_tokenizers

from dcse_tf.bert.checkpoints import find_padding, is_mpnet
from dcse_tf.bert.families import is_relative
from dcse_tf.bert.sentence_modules import read_prefix
from dcse_tf.bert.subwords import BytePair, SentencePiece
from dcse_tf.bert.vocabulary import END_OF_TURN, Vocabulary
from dcse_tf.bert.wordpiece import PIECE, MPNetPieces, WordPiece, make_wordpiece, read_wordpiece
from dcse_tf.errors import InputError
from dcse_tf.input_files import parse_json

# Texts that are tokenised in another way if a setting is another: lower-casing, accents, control
# characters, ideographs, words of over 100 characters, spaces at the start, normal forms.
_PROBES = (
    "The café in São-Paulo: 'naïve', e\u0301lan!",
    "ÉCOLE Straße, don't 12,345.67",
    "中文def 한국어",
    "a\x07b c",
    "a" * 100,
    "a" * 101,
    "ﬁ① 😀",
)


def read_vocabulary(folder: pathlib.Path) -> Vocabulary:
    """Reads a folder's vocabulary, including the prefix of every text (`read_prefix`).

    It uses the first of these files that exists: vocab.txt, tokenizer.json,
    sentencepiece.bpe.model, vocab.json.

    Raises:
        InputError: there is no such file, or the tokenizer is invalid or not supported.
    """
    path = folder / "tokenizer.json"
    if (folder / "vocab.txt").is_file():
        vocabulary: Vocabulary = read_wordpiece(folder)
    elif path.is_file():
        vocabulary = _parse(path, path.read_text(encoding="utf-8", errors="replace"))
    elif (path := folder / "sentencepiece.bpe.model").is_file():
        vocabulary = _parse(path, _convert(path, "XLMRobertaTokenizerFast"))
    elif (path := folder / "vocab.json").is_file():
        vocabulary = _parse(path, _convert(path, "RobertaTokenizerFast"))
    else:
        problem = "no vocabulary in it" if folder.is_dir() else "no such file or folder"
        raise InputError(
            f"{folder}: {problem}; a checkpoint has it as vocab.txt, tokenizer.json, "
            "sentencepiece.bpe.model or vocab.json"
        )
    if is_mpnet(folder) and not (isinstance(vocabulary, MPNetPieces) and find_padding(folder) == 1):
        raise InputError(f"{folder}: expected the vocabulary of an MPNet, which begins <s>, <pad>")
    return vocabulary.with_prefix(read_prefix(folder))


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


def _convert(path: pathlib.Path, name: str) -> str:
    """The tokenizer.json that transformers makes of the files a model was first published with.

    Args:
        path: the file with the entries.
        name: transformers' class.
    """
    # It takes two seconds to import, and is needed for no folder that has a tokenizer.json.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that PyTorch is missing
    import transformers

    try:
        tokenizer = getattr(transformers, name).from_pretrained(path.parent)
    except Exception as error:  # the library raises many kinds, also Exception itself
        raise InputError(f"{path}: cannot be read by {name}: {error}") from error
    return tokenizer.backend_tokenizer.to_str()


def _parse(path: pathlib.Path, text: str) -> Vocabulary:
    """The vocabulary of a tokenizer.json.

    Args:
        path: the file that it is from, for error messages.
        text: its content.

    Raises:
        InputError: it is invalid, or tokenises in another way than BERT, RoBERTa or XLM-R.
    """
    try:
        content = parse_json(text)
        model, normalizer = content["model"], content["normalizer"] or {}
        # Files of old libraries do not say that they have byte pairs.
        kind = model.get("type", "BPE" if "merges" in model else None)
        entries = model["vocab"]
        added = {int(each["id"]): str(each["content"]) for each in content["added_tokens"]}
        if isinstance(entries, dict):
            tokens = sorted(entries, key=entries.__getitem__)
            if [entries[token] for token in tokens] != list(range(len(tokens))):
                raise InputError(f"{path}: expected entries numbered from 0")
        else:
            tokens = [str(token) for token, _ in entries]
        while (token := added.get(len(tokens))) is not None:
            tokens.append(token)

        vocabulary: Vocabulary
        if kind == "WordPiece":
            lowercase = bool(normalizer.get("lowercase"))
            vocabulary = make_wordpiece(tuple(tokens), lowercase, path)
        elif kind == "Unigram":
            scores = {str(token): float(score) for token, score in entries}
            steps = normalizer.get("normalizers", [normalizer])
            maps = (step.get("precompiled_charsmap") for step in steps)
            charsmap = base64.b64decode(next(filter(None, maps), ""), validate=True)
            own = _order(path, tokens)
            texts = own[:-1] if own[-1] == END_OF_TURN else own
            vocabulary = SentencePiece(
                own, False, tuple(scores.get(token, 0.0) for token in texts), charsmap
            )
        elif kind == "BPE":
            merges = tuple(m if isinstance(m, str) else " ".join(m) for m in model["merges"])
            vocabulary = BytePair(_order(path, tokens), False, merges)
        else:
            raise InputError(f"{path}: model {kind!r:.40}, expected WordPiece, Unigram or BPE")
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: expected a tokenizer: {error!r:.200}") from error
    _check_settings(path, content, vocabulary)
    return vocabulary


def _order(path: pathlib.Path, tokens: list[str]) -> tuple[str, ...]:
    """A subword vocabulary's entries by id, with the padding swapped with the first entry."""
    if missing := [token for token in SentencePiece.special if token not in tokens]:
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    if len(set(tokens)) < len(tokens):
        raise InputError(f"{path}: contains an entry twice")
    place = tokens.index(SentencePiece.special.pad)
    tokens[0], tokens[place] = tokens[place], tokens[0]
    return tuple(tokens)


def _check_settings(path: pathlib.Path, content: dict[str, Any], vocabulary: Vocabulary) -> None:
    """Compares a file's settings with those of its kind by what they make of a few texts.

    Both tokenizers get the same few entries: a large vocabulary takes a second to build, and
    another one may hide a difference.

    Raises:
        InputError: the tokens differ.
    """
    # One letter is left out, so that it is unknown.
    letters = [*sorted({*"".join(_PROBES), *"fi1"} - {"한"}), "\u2581"]
    kind, special = type(vocabulary), vocabulary.special
    if isinstance(vocabulary, WordPiece):
        tokens = (*special, *letters, *(PIECE + letter for letter in letters))
        small: Vocabulary = kind(tokens, vocabulary.lowercase)
        further: dict[str, Any] = {}
    elif isinstance(vocabulary, SentencePiece):
        tokens = (*special, *letters, *(f"<0x{byte:02X}>" for byte in range(256)))
        scores = (-1.0,) * len(tokens)
        small = SentencePiece(tokens, False, scores, vocabulary.charsmap)
        further = {"vocab": list(zip(tokens, scores)), "unk_id": small.unk_id}
    else:
        # The merge is of two parts that words are split into first.
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        tokens = (*special, *alphabet, "o:")
        small = BytePair(tokens, False, ("o :",))
        further = {"merges": ["o :"]}
    further = {"vocab": {token: index for index, token in enumerate(tokens)}, **further}
    without = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    changed = {**content, **without, "added_tokens": [], "model": {**content["model"], **further}}
    try:
        theirs = tokenizers.Tokenizer.from_str(json.dumps(changed))
    except Exception as error:  # the library raises Exception itself
        raise InputError(f"{path}: expected a tokenizer: {error}") from error
    ours = small.make_fast()
    for probe in _PROBES:
        found, expected = (x.encode(probe, add_special_tokens=False).tokens for x in (theirs, ours))
        if found != expected:
            raise InputError(
                f"{path}: has other settings than those of {type(vocabulary).__name__}: from "
                f"{probe[:40]!r} it makes {' '.join(found)[:60]!r}, expected "
                f"{' '.join(expected)[:60]!r}; only the tokenizers of BERT, MPNet, RoBERTa and "
                "XLM-R are supported"
            )
