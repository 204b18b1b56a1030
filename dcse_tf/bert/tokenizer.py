"""Reads the vocabulary of a checkpoint's folder, whatever its kind, and trains new ones."""

import base64
import collections
import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from absl import logging
from tokenizers import models, normalizers, pre_tokenizers, trainers

from dcse_tf.bert import vocabulary as kinds
from dcse_tf.bert.checkpoints import LENGTH_FILES, VOCABULARY_FILES, find_padding
from dcse_tf.bert.families import is_relative
from dcse_tf.bert.sentence_modules import read_prefix
from dcse_tf.bert.vocabulary import PIECE, MPNetPieces, Subwords, Vocabulary, WordPiece
from dcse_tf.errors import InputError, name_input
from dcse_tf.input_files import parse_json, read_json_object

_LONGEST_ENTRY = 256  # bytes; a limit of tensorflow-text's FastBertTokenizer
_LONG_RUN = re.compile(rf"\S{{{kinds.LONGEST_WORD + 1}}}")
# The files that RoBERTa and XLM-R were first published with, and transformers' classes.
_CLASSES = {
    "sentencepiece.bpe.model": "XLMRobertaTokenizerFast",
    "vocab.json": "RobertaTokenizerFast",
}
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
    """Reads a folder's vocabulary, from the first of vocab.txt, tokenizer.json,
    sentencepiece.bpe.model and vocab.json that exists, and its prefix (`read_prefix`). Raises
    InputError if there is no such file, or the tokenizer is invalid or not supported.
    """
    path = next(filter(pathlib.Path.is_file, (folder / name for name in VOCABULARY_FILES)), None)
    if path is None:
        problem = "no vocabulary in it" if folder.is_dir() else "no such file or folder"
        known = " or ".join(VOCABULARY_FILES)
        raise InputError(f"{folder}: {problem}; a checkpoint has it as {known}")
    vocabulary: Vocabulary
    if path.name == "vocab.txt":
        vocabulary = _read_wordpiece(folder)
    elif path.name == "tokenizer.json":
        vocabulary = _parse(path, path.read_text(encoding="utf-8", errors="replace"))
    else:
        vocabulary = _convert(path)
    config = read_json_object(folder / "config.json", optional=True)
    size, kind, count = config.get("vocab_size"), config.get("model_type"), len(vocabulary.tokens)
    if type(size) is int and count > size:
        raise InputError(f"{path}: {count} entries, but config.json has vocab_size {size}")
    if kind == "mpnet" and not (isinstance(vocabulary, MPNetPieces) and find_padding(folder) == 1):
        raise InputError(f"{folder}: expected the vocabulary of an MPNet, which begins <s>, <pad>")
    path = min(folder.glob(LENGTH_FILES), default=folder)
    if read_json_object(path, optional=True).get("do_lower_case") and not vocabulary.lowercase:
        raise InputError(f"{path}: do_lower_case is true; the vocabulary keeps the case of texts")
    path = folder / "added_tokens.json"
    _tell_of_added(path, read_json_object(path, optional=True), vocabulary)
    return vocabulary.with_prefix(read_prefix(folder))


def _tell_of_added(path: pathlib.Path, added: Iterable[str], vocabulary: Vocabulary) -> None:
    if told := ", ".join(sorted({*added} - {*vocabulary.special, "<unk>", kinds.END_OF_TURN})[:5]):
        logging.log_first_n(logging.WARNING, "%s: splits up added tokens: %s", 1, path, told)


def _convert(path: pathlib.Path) -> Vocabulary:
    """Reads a file that a model was first published with, by way of transformers."""
    # It takes two seconds to import, and is needed for no folder that has a tokenizer.json.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that PyTorch is missing
    import transformers

    name = _CLASSES[path.name]
    # The library raises many kinds of errors, also Exception itself.
    with name_input(f"{path}: cannot be read by {name}", Exception):
        tokenizer = getattr(transformers, name).from_pretrained(path.parent)
    return _parse(path, tokenizer.backend_tokenizer.to_str())


def number_as_written(vocabulary: Vocabulary, config: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary in the order in which an encoder's weights are written, see `write_bert`."""
    if is_relative(config):
        assert isinstance(vocabulary, MPNetPieces)
        return vocabulary.number_as_mpnet()
    return vocabulary


def _read_wordpiece(folder: pathlib.Path) -> WordPiece:
    """Reads `vocab.txt` and the casing of `tokenizer_config.json` (HuggingFace's names)."""
    path, config_path = folder / "vocab.txt", folder / "tokenizer_config.json"
    with name_input(f"{path}: not UTF-8", UnicodeDecodeError):
        text = path.read_text(encoding="utf-8")
    settings = read_json_object(config_path, optional=True)
    lowercase = bool(settings.get("do_lower_case", True))
    expected = {"strip_accents": lowercase, "tokenize_chinese_chars": True, "unk_token": "[UNK]"}
    expected |= {"do_basic_tokenize": True, "word_tokenizer_type": "basic"}  # others: Japanese ones
    for name, value in expected.items():
        found = settings.get(name)
        found = found.get("content") if isinstance(found, dict) else found
        if found not in (None, value):
            raise InputError(f"{config_path}: {name} is {found!r:.40}, expected {value!r}")
    return _make_wordpiece(tuple(text.removesuffix("\n").split("\n")), lowercase, path)


def _make_wordpiece(tokens: tuple[str, ...], lowercase: bool, path: pathlib.Path) -> WordPiece:
    """Makes a vocabulary of a file's entries by id: MPNet's if its padding is the first or the
    second entry, else BERT's. Errors count the file's lines from 1.
    """
    kind = MPNetPieces if MPNetPieces.special.pad in tokens[:2] else WordPiece
    if missing := [token for token in kind.special if token not in tokens]:
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    if kind is WordPiece and tokens[0] != kind.special.pad:
        raise InputError(f"{path}:1: expected [PAD], found {tokens[0]!r:.40}")
    lines: dict[str, int] = {}
    for line, token in enumerate(tokens, start=1):
        if lines.setdefault(token, line) != line:
            raise InputError(f"{path}:{line}: {token!r:.40} is already on line {lines[token]}")
        if not _is_entry(token):
            wanted = f"an entry of {_LONGEST_ENTRY} bytes at most, without null characters"
            raise InputError(f"{path}:{line}: expected {wanted}, found {token!r:.40}")
    if tokens[1] == MPNetPieces.special.pad:
        return MPNetPieces(tokens, lowercase).number_as_mpnet()
    return kind(tokens, lowercase)


def _is_entry(token: str) -> bool:
    return len(token.removeprefix(PIECE).encode()) <= _LONGEST_ENTRY and "\0" not in token


def _parse(path: pathlib.Path, text: str) -> Vocabulary:
    """The vocabulary of a tokenizer.json, `path`, from its content; raises InputError if it is
    invalid, or tokenises in another way than BERT, RoBERTa or XLM-R.
    """
    with name_input(f"{path}: expected a tokenizer", Exception):
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
            vocabulary = _make_wordpiece(tuple(tokens), bool(normalizer.get("lowercase")), path)
        elif kind == "Unigram":
            by_token = {str(token): float(score) for token, score in entries}
            steps = normalizer.get("normalizers", [normalizer])
            maps = (step.get("precompiled_charsmap") for step in steps)
            charsmap = base64.b64decode(next(filter(None, maps), ""), validate=True)
            own = _order(path, tokens)
            scores = tuple(by_token.get(token, 0.0) for token in own)
            scores = scores[:-1] if own[-1] == kinds.END_OF_TURN else scores
            vocabulary = kinds.SentencePiece(own, False, scores, charsmap)
        elif kind == "BPE":
            merges = tuple(m if isinstance(m, str) else " ".join(m) for m in model["merges"])
            vocabulary = kinds.BytePair(_order(path, tokens), False, merges)
        else:
            raise InputError(f"{path}: model {kind!r:.40}, expected WordPiece, Unigram or BPE")
    _check_settings(path, content, vocabulary)
    _tell_of_added(path, added.values(), vocabulary)
    return vocabulary


def _order(path: pathlib.Path, tokens: list[str]) -> tuple[str, ...]:
    """A subword vocabulary's entries by id, with the padding swapped with the first entry."""
    if missing := [token for token in Subwords.special if token not in tokens]:
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    if len(set(tokens)) < len(tokens):
        raise InputError(f"{path}: contains an entry twice")
    place = tokens.index(Subwords.special.pad)
    tokens[0], tokens[place] = tokens[place], tokens[0]
    return tuple(tokens)


def _check_settings(path: pathlib.Path, content: dict[str, Any], vocabulary: Vocabulary) -> None:
    """Raises InputError if a file's settings make other tokens of a few texts than its kind does.

    Both tokenizers get the same few entries: a large vocabulary takes a second to build, and
    another one may hide a difference.
    """
    # One letter is left out, so that it is unknown. The merge is of two parts that words are split
    # into first.
    letters = [*sorted({*"".join(_PROBES), *"fi1"} - {"한"}), "\u2581"]
    pieces = [PIECE + letter for letter in letters] + [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = tuple(dict.fromkeys((*vocabulary.special, *letters, *pieces, *alphabet, "o:")))
    own: dict[str, Any] = {"scores": (-1.0,) * len(tokens), "merges": ("o :",)}
    own = {name: value for name, value in own.items() if hasattr(vocabulary, name)}
    ours = dataclasses.replace(vocabulary, tokens=tokens, **own).make_fast()

    entries = parse_json(ours.to_str())["model"]
    same = {name: entries[name] for name in ("vocab", "merges", "unk_id") if name in entries}
    without = dict.fromkeys(("truncation", "padding", "decoder"))
    changed = {**content, **without, "added_tokens": [], "model": {**content["model"], **same}}
    with name_input(f"{path}: expected a tokenizer", Exception):  # the library raises that itself
        theirs = tokenizers.Tokenizer.from_str(json.dumps(changed))
    cls, sep = vocabulary.special.cls, vocabulary.special.sep
    for probe in _PROBES:
        found, expected = theirs.encode(probe).tokens, [cls, *ours.encode(probe).tokens, sep]
        if found != expected:
            made, wanted = (" ".join(each)[:60] for each in (found, expected))
            raise InputError(
                f"{path}: has other settings than those of {type(vocabulary).__name__}: from "
                f"{probe[:40]!r} it makes {made!r}, expected {wanted!r}; only the tokenizers of "
                "BERT, MPNet, RoBERTa and XLM-R are supported"
            )


def train_vocabulary(texts: Iterable[str], size: int, lowercase: bool) -> WordPiece:
    """Trains a WordPiece vocabulary, of at most `size` entries with the five special ones, on the
    texts of a corpus, which are iterated over twice (HuggingFace tokenizers' trainer).

    The letters are counted first and given to the trainer in a fixed order: by default it keeps
    1,000 of them, too few for Chinese, in an order that differs between runs. Words of more than
    100 characters, which are unknown to BERT, are left out.
    """
    model = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    before = pre_tokenizers.BertPreTokenizer()
    model.normalizer, model.pre_tokenizer = normalizer, before

    def split(text: str) -> list[str]:
        words = before.pre_tokenize_str(normalizer.normalize_str(text))
        return [word for word, _ in words if len(word) <= kinds.LONGEST_WORD]

    def known(text: str) -> str:
        """The text without overlong words, on which the trainer would take quadratic time.

        The model cannot be asked for its parts here: the trainer has locked it.
        """
        return " ".join(split(text)) if _LONG_RUN.search(text) else text

    letters: collections.Counter[str] = collections.Counter()
    for word in (word for text in texts for word in split(text)):
        letters.update([*word, *(f"{PIECE}{letter}" for letter in word[1:])])
    kept = sorted(letters, key=lambda letter: (-letters[letter], letter))
    given = [*kinds.SPECIAL_TOKENS, *kept[: size - len(kinds.SPECIAL_TOKENS)]]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, limit_alphabet=0, special_tokens=given, show_progress=False
    )
    model.train_from_iterator(map(known, texts), trainer)
    ordered = sorted(entries := model.get_vocab(), key=entries.__getitem__)
    return WordPiece(tuple(filter(_is_entry, ordered)), lowercase)
