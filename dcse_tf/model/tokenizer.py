"""WordPiece in the graph, and the vocabulary it reads.

tensorflow-text's FastBertTokenizer does the splitting. What comes before it (control characters,
accents, case) is done here with TensorFlow's own string operations, because the normaliser inside
FastBertTokenizer folds by NFKC when it lower-cases ("，" becomes ",", "ﬁ" becomes "fi", "ß"
becomes "ss"), which BERT's own tokenizer does not; and it cuts words at control characters, which
BERT's removes. The tests compare the result with the HuggingFace tokenizer token for token.
"""

import collections
import dataclasses
import json
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_text as tf_text
import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.normalizers
import tokenizers.pre_tokenizers
import tokenizers.processors
import tokenizers.trainers

from dcse_tf.errors import InputError
from dcse_tf.files import hash_bytes
from dcse_tf.input_files import parse_json, read_json_object

_LONGEST_WORD = 100


def read_tokenizer_json(path: pathlib.Path) -> tuple[tuple[str, ...], bool]:
    """The entries of the vocabulary in order, and whether text is lower-cased.

    Raises:
        InputError: it is not BERT's WordPiece, or a setting of it is not supported.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        model, normalizer = content["model"], content["normalizer"]
        kinds = (model["type"], normalizer["type"], content["pre_tokenizer"]["type"])
        entries: dict[str, int] = model["vocab"]
        order = sorted(entries, key=entries.__getitem__)
        whole = [entries[token] for token in order] == list(range(len(order)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: expected a tokenizer of BERT: {error!r}") from error
    if kinds != ("WordPiece", "BertNormalizer", "BertPreTokenizer") or not whole:
        raise InputError(
            f"{path}: {', '.join(map(str, kinds))}; expected WordPiece, BertNormalizer and "
            "BertPreTokenizer, with entries numbered from 0"
        )
    _check_settings(path, model, normalizer)
    return tuple(order), bool(normalizer["lowercase"])


def _check_settings(path: pathlib.Path, model: dict[str, Any], normalizer: dict[str, Any]) -> None:
    lowercase = normalizer.get("lowercase")
    expected = {
        "normalizer.lowercase": (lowercase, (True, False)),
        "normalizer.clean_text": (normalizer.get("clean_text"), (True,)),
        "normalizer.handle_chinese_chars": (normalizer.get("handle_chinese_chars"), (True,)),
        "normalizer.strip_accents": (normalizer.get("strip_accents"), (None, lowercase)),
        "model.unk_token": (model.get("unk_token"), ("[UNK]",)),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix"), ("##",)),
        "model.max_input_chars_per_word": (
            model.get("max_input_chars_per_word"),
            (_LONGEST_WORD,),
        ),
    }
    for name, (value, allowed) in expected.items():
        if value not in allowed:
            raise InputError(f"{path}: {name} is {value!r}, expected {allowed[0]!r}")


def write_tokenizer_json(
    path: pathlib.Path,
    tokens: Sequence[str],
    lowercase: bool,
    special_tokens: Sequence[str],
    found_tokens: Sequence[str] = (),
) -> None:
    """Writes a vocabulary as the tokenizer that `read_tokenizer_json` expects.

    Args:
        path: the file.
        tokens: entries of the vocabulary, in order.
        lowercase: whether text is lower-cased and stripped of accents.
        special_tokens: those of the entries that stand for no text; [CLS] and [SEP] among them.
        found_tokens: entries that a text can name, as "a [EOT] b" does.
    """
    entries = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            entries, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD
        )
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, entries[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens(list(special_tokens))
    # Not as special ones, for those are split where a text has them, see `write_tokenizer`.
    tokenizer.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in found_tokens])
    tokenizer.save(str(path))


SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Follows every turn of a dialogue that is one sequence. No text is tokenised to it.
END_OF_TURN = "[EOT]"

# Everything of Unicode's category C ("other": control, format, private use) but the white space
# among it, and the replacement character.
_REMOVED = r"[\x{FFFD}]|[^\P{C}\t\n\r]"

# A word of more than 100 characters is unknown to BERT; FastBertTokenizer counts bytes. Naming the
# letters of the scripts that part words by spaces keeps the pattern small: with all of Unicode's
# classes, a hundred times over, it outgrows RE2's memory. Other characters (symbols above all) are
# held to 400 bytes instead, 100 characters of four bytes or 133 of three.
_LONG_WORD = (
    r"[0-9A-Za-z\x{C0}-\x{24F}\x{370}-\x{37D}\x{37F}-\x{386}\x{388}-\x{52F}\x{5D0}-\x{5EA}"
    r"\x{620}-\x{64A}\x{900}-\x{963}\x{E01}-\x{E4E}\x{1100}-\x{11FF}\x{AC00}-\x{D7A3}]{101,}"
)
_TOKENIZATION_LONGEST_WORD = 100
_LONGEST_ENTRY = 256  # bytes, of FastBertTokenizer
_LONG_RUN = re.compile(rf"\S{{{_TOKENIZATION_LONGEST_WORD + 1}}}")
# For private use, and removed from every text: no vocabulary can find it in one.
_UNKNOWN_WORD = "\ue000"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The entries of a WordPiece vocabulary and whether text is lower-cased before the look-up."""

    tokens: tuple[str, ...]
    lowercase: bool

    def fingerprint(self) -> str:
        """SHA-256 over the entries and the casing: equal fingerprints tokenise equally.

        An [EOT] at the end, which no text has, does not count: a corpus serves encoders with it and
        without.
        """
        tokens = self.tokens[:-1] if self.tokens[-1] == END_OF_TURN else self.tokens
        content = "\n".join((*tokens, f"lowercase={self.lowercase}"))
        return hash_bytes(content.encode())

    def with_end_of_turn(self) -> "Vocabulary":
        """This vocabulary with [EOT] as its last entry; itself if it has one."""
        if END_OF_TURN in self.tokens:
            return self
        return dataclasses.replace(self, tokens=(*self.tokens, END_OF_TURN))

    def index(self, token: str) -> int:
        return self.tokens.index(token)


def read_vocabulary(folder: pathlib.Path) -> Vocabulary:
    """Reads `vocab.txt` and the casing of `tokenizer_config.json` (HuggingFace's names).

    Without `vocab.txt`, which newer libraries do not write, both are in `tokenizer.json`.

    Raises:
        InputError: a file is missing, or asks for something that BERT's WordPiece has not.
    """
    path = folder / "vocab.txt"
    if not path.is_file() and (folder / "tokenizer.json").is_file():
        path = folder / "tokenizer.json"
        tokens, lowercase = read_tokenizer_json(path)
        _check_tokens(tokens, path)
        return Vocabulary(tokens, lowercase)
    if not path.is_file():
        raise InputError(f"{path}: no such file; a BERT checkpoint has its WordPiece entries there")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason}") from error
    tokens = tuple(text.removesuffix("\n").split("\n"))
    _check_tokens(tokens, path)
    config_path = folder / "tokenizer_config.json"
    settings = read_json_object(config_path) if config_path.is_file() else {}
    lowercase = bool(settings.get("do_lower_case", True))
    strip_accents = settings.get("strip_accents")
    if strip_accents is not None and bool(strip_accents) != lowercase:
        raise InputError(f"{config_path}: strip_accents other than do_lower_case is not supported")
    if not settings.get("tokenize_chinese_chars", True):
        raise InputError(f"{config_path}: tokenize_chinese_chars=false is not supported")
    return Vocabulary(tokens, lowercase)


def _check_tokens(tokens: tuple[str, ...], path: pathlib.Path) -> None:
    missing = [token for token in SPECIAL_TOKENS if token not in tokens]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    if tokens[0] != "[PAD]":
        raise InputError(f"{path}:1: expected [PAD], found {tokens[0]!r:.40}")
    _check_entries(path, tokens)


def _check_entries(path: pathlib.Path, tokens: tuple[str, ...]) -> None:
    """Refuses entries of which no look-up table can be made."""
    lines: dict[str, int] = {}
    for line, token in enumerate(tokens, start=1):
        if lines.setdefault(token, line) != line:
            raise InputError(f"{path}:{line}: {token!r:.40} stands on line {lines[token]} already")
        if not _is_entry(token):
            raise InputError(
                f"{path}:{line}: expected an entry of {_LONGEST_ENTRY} bytes at most, without null "
                f"characters, found {token!r:.40}"
            )


def _is_entry(token: str) -> bool:
    return len(token.removeprefix("##").encode()) <= _LONGEST_ENTRY and "\0" not in token


def write_vocabulary(folder: pathlib.Path, vocabulary: Vocabulary) -> None:
    """Writes what `read_vocabulary` reads, in a form that HuggingFace's tokenizer reads too."""
    text = "\n".join(vocabulary.tokens) + "\n"
    (folder / "vocab.txt").write_text(text, encoding="utf-8")
    settings: dict[str, Any] = {
        "do_lower_case": vocabulary.lowercase,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
        **{f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS},
    }
    if END_OF_TURN in vocabulary.tokens:
        settings["additional_special_tokens"] = [END_OF_TURN]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def write_tokenizer(folder: pathlib.Path, vocabulary: Vocabulary, max_sequence_length: int) -> None:
    """Writes all files that HuggingFace's libraries look for.

    Texts are cut to `max_sequence_length` tokens, [CLS] and [SEP] counted. Special tokens in a text
    ("[SEP]") are split like any other text, as here; but an [EOT] of the vocabulary is found in a
    text, for that is how such a tokenizer is given the turns of a dialogue.
    """
    write_vocabulary(folder, vocabulary)
    path = folder / "tokenizer_config.json"
    settings = read_json_object(path)
    settings |= {"model_max_length": max_sequence_length, "split_special_tokens": True}
    found = settings.pop("additional_special_tokens", [])
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    names = {key: value for key, value in settings.items() if key.endswith("_token")}
    text = json.dumps(names, indent=2) + "\n"
    (folder / "special_tokens_map.json").write_text(text, encoding="utf-8")
    write_tokenizer_json(
        folder / "tokenizer.json", vocabulary.tokens, vocabulary.lowercase, SPECIAL_TOKENS, found
    )


class Tokenizer(tf.Module):
    """Strings to token ids, in the graph, the same operations in training and in serving."""

    def __init__(self, vocabulary: Vocabulary):
        super().__init__()
        self._lowercase = vocabulary.lowercase
        self.cls_id = vocabulary.index("[CLS]")
        self.sep_id = vocabulary.index("[SEP]")
        self.size = len(vocabulary.tokens)
        try:
            self._wordpiece = tf_text.FastBertTokenizer(
                vocab=list(vocabulary.tokens),
                suffix_indicator="##",
                max_bytes_per_word=400,  # of a character at most four
                token_out_type=tf.int32,
                unknown_token="[UNK]",
                lower_case_nfd_strip_accents=False,
            )
        except RuntimeError as error:
            raise InputError(f"the vocabulary cannot be used: {error}") from error

    def tokenize(self, texts: tf.Tensor, max_sequence_length: int) -> tf.RaggedTensor:
        """Token ids with [CLS] and [SEP], cut to a length.

        Args:
            texts: strings `[texts]`, UTF-8.
            max_sequence_length: most tokens of a text, [CLS] and [SEP] counted.

        Returns:
            int32 `[texts, (tokens)]`.
        """
        ids = self._wordpiece.tokenize(self._normalize(texts))
        ids = ids[:, : max_sequence_length - 2]
        ends = tf.ones([tf.shape(texts)[0], 1], tf.int32)
        return tf.concat([ends * self.cls_id, ids, ends * self.sep_id], axis=1)

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        texts = tf.strings.regex_replace(texts, _REMOVED, "")
        # Of all white space but the space itself, which is in every text and stays as it is.
        texts = tf.strings.regex_replace(texts, r"[^\P{Z} ]|[\t\n\r]", " ")
        if self._lowercase:
            texts = tf_text.normalize_utf8(texts, "NFD")
            texts = tf.strings.regex_replace(texts, r"\p{Mn}", "")
            texts = tf.strings.lower(texts, encoding="utf-8")
        return tf.strings.regex_replace(texts, _LONG_WORD, _UNKNOWN_WORD)


def train_vocabulary(texts: Iterable[str], size: int, lowercase: bool) -> Vocabulary:
    """Trains a WordPiece vocabulary on a corpus (HuggingFace tokenizers' trainer).

    The letters are counted first and given to the trainer in a fixed order: by itself it keeps
    1,000 of them, too few for Chinese, in an order that differs from run to run. Words of more
    than 100 characters, which are unknown to BERT, are not trained on.

    Args:
        texts: the corpus; read twice.
        size: most entries, the five special ones included.
        lowercase: whether text is lower-cased and stripped of accents.
    """
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    letters: collections.Counter[str] = collections.Counter()

    def known(text: str) -> str:
        """The text without its unknown words, on which the trainer would take quadratic time."""
        if not _LONG_RUN.search(text):
            return text
        words = splitter.pre_tokenize_str(normalizer.normalize_str(text))
        return " ".join(word for word, _ in words if len(word) <= _TOKENIZATION_LONGEST_WORD)

    for text in map(known, texts):
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)):
            letters.update(word)
            letters.update(f"##{letter}" for letter in word[1:])
    kept = sorted(letters, key=lambda letter: (-letters[letter], letter))
    kept = kept[: size - len(SPECIAL_TOKENS)]

    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    model.normalizer = normalizer
    model.pre_tokenizer = splitter
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size,
        limit_alphabet=0,
        special_tokens=[*SPECIAL_TOKENS, *kept],
        show_progress=False,
    )
    model.train_from_iterator(map(known, texts), trainer)
    entries = model.get_vocab()
    ordered = sorted(entries, key=entries.__getitem__)
    return Vocabulary(tuple(filter(_is_entry, ordered)), lowercase)
