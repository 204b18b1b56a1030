"""The vocabularies of BERT and MPNet: WordPiece."""

import collections
import dataclasses
import pathlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.normalizers
import tokenizers.pre_tokenizers
import tokenizers.trainers

from dcse_tf.bert.vocabulary import SpecialTokens, Split, Vocabulary, make_fast_split
from dcse_tf.errors import InputError
from dcse_tf.input_files import read_json_object

PIECE = "##"  # prefix of entries that continue a word
SPECIAL_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LONGEST_WORD = 100  # characters; to BERT, a longer one is unknown
_LONG_RUN = re.compile(rf"\S{{{_LONGEST_WORD + 1}}}")
_LONGEST_ENTRY = 256  # bytes; a limit of tensorflow-text's FastBertTokenizer

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

    def describe(self) -> str:
        return "lower-cased, accents removed" if self.lowercase else "cased"

    def begins_word(self, token: str) -> bool:
        return not token.startswith(PIECE) and not (token.startswith("[") and token.endswith("]"))

    def spell(self, tokens: Iterable[str]) -> str:
        return " ".join(tokens).replace(f" {PIECE}", "")

    def _settings(self) -> dict[str, Any]:
        kind = "BertTokenizer" if self.tokens[0] == self.special.pad else "MPNetTokenizer"
        return {
            "do_lower_case": self.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "tokenizer_class": kind,
        }

    def _write_files(self, folder: pathlib.Path, further: dict[str, Any]) -> None:
        text = "\n".join(self.tokens) + "\n"
        (folder / "vocab.txt").write_text(text, encoding="utf-8")
        super()._write_files(folder, further)

    def make_fast(self) -> tokenizers.Tokenizer:
        entries = {token: index for index, token in enumerate(self.tokens)}
        tokenizer = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(
                entries, unk_token=self.special.unk, max_input_chars_per_word=_LONGEST_WORD
            )
        )
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=None,
            lowercase=self.lowercase,
        )
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = tokenizers.decoders.WordPiece()
        return tokenizer

    def make_split(self) -> Split:
        """The graph's tokenizer differs in characters of Unicode 15 and later, and in words of 101
        to 133 symbols, which are unknown here.
        """
        tokenizer, replace = self.make_fast(), tokenizers.normalizers.Replace
        strip = [tokenizers.normalizers.NFD(), replace(_ACCENTS, "")] if self.lowercase else []
        steps = [replace(_REMOVED, ""), *strip, tokenizer.normalizer]
        tokenizer.normalizer = tokenizers.normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
            [tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.Split(_ALONE, "isolated")]
        )
        return make_fast_split(tokenizer, _lower_sigmas if self.lowercase else None)


@dataclasses.dataclass(frozen=True)
class MPNetPieces(WordPiece):
    """MPNet's vocabulary: BERT's pieces with RoBERTa's special entries, except [UNK]."""

    special: ClassVar[SpecialTokens] = SpecialTokens("<pad>", "[UNK]", "<s>", "</s>", "<mask>")

    def number_as_mpnet(self) -> Self:
        """This vocabulary in the order in which MPNet stores it, with padding as second entry."""
        first, second, *rest = self.tokens
        return dataclasses.replace(self, tokens=(second, first, *rest))


def _lower_sigmas(text: str) -> str:
    """Lower-cases a text that has a capital sigma: at the end of a word it is another letter.

    HuggingFace's tokenizer lower-cases one character after the other.
    """
    if "Σ" not in text:
        return text
    # The characters that are removed anyway, which would hide whether a word goes on.
    return "".join(c for c in text if c in "\t\n\r" or unicodedata.category(c)[0] != "C").lower()


def read_wordpiece(folder: pathlib.Path) -> WordPiece:
    """Reads `vocab.txt` and the casing of `tokenizer_config.json` (HuggingFace's names).

    Raises:
        InputError: a file is missing or invalid, or a setting is not supported.
    """
    path, config_path = folder / "vocab.txt", folder / "tokenizer_config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason}") from error
    settings = read_json_object(config_path) if config_path.is_file() else {}
    lowercase = bool(settings.get("do_lower_case", True))
    expected = {
        "strip_accents": lowercase,
        "tokenize_chinese_chars": True,
        "unk_token": SPECIAL_TOKENS.unk,
    }
    for name, value in expected.items():
        found = settings.get(name)
        found = found.get("content") if isinstance(found, dict) else found
        if found not in (None, value):
            raise InputError(f"{config_path}: {name} is {found!r:.40}, expected {value!r}")
    return make_wordpiece(tuple(text.removesuffix("\n").split("\n")), lowercase, path)


def make_wordpiece(tokens: tuple[str, ...], lowercase: bool, path: pathlib.Path) -> WordPiece:
    """Makes a vocabulary of a file's entries: MPNet's if it begins with its padding, else BERT's.

    MPNet's padding may be the first or the second entry.

    Args:
        tokens: the entries by id.
        lowercase: whether text is lower-cased and stripped of accents.
        path: the file, for error messages, which count its lines from 1.

    Raises:
        InputError: a special entry is missing or in another place, or an entry occurs twice or
            cannot be held by FastBertTokenizer.
    """
    kind = MPNetPieces if MPNetPieces.special.pad in tokens[:2] else WordPiece
    missing = [token for token in kind.special if token not in tokens]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    if kind is WordPiece and tokens[0] != kind.special.pad:
        raise InputError(f"{path}:1: expected [PAD], found {tokens[0]!r:.40}")
    lines: dict[str, int] = {}
    for line, token in enumerate(tokens, start=1):
        if lines.setdefault(token, line) != line:
            raise InputError(f"{path}:{line}: {token!r:.40} is already on line {lines[token]}")
        if not _is_entry(token):
            raise InputError(
                f"{path}:{line}: expected an entry of {_LONGEST_ENTRY} bytes at most, without null "
                f"characters, found {token!r:.40}"
            )
    if tokens[1] == MPNetPieces.special.pad:
        return MPNetPieces(tokens, lowercase).number_as_mpnet()
    return kind(tokens, lowercase)


def _is_entry(token: str) -> bool:
    return len(token.removeprefix(PIECE).encode()) <= _LONGEST_ENTRY and "\0" not in token


def train_vocabulary(texts: Iterable[str], size: int, lowercase: bool) -> WordPiece:
    """Trains a WordPiece vocabulary on a corpus (HuggingFace tokenizers' trainer).

    The letters are counted first and given to the trainer in a fixed order: by default it keeps
    1,000 of them, too few for Chinese, in an order that differs between runs. Words of more than
    100 characters, which are unknown to BERT, are left out.

    Args:
        texts: the texts of the corpus; iterated over twice.
        size: the largest number of entries, including the five special ones.
        lowercase: whether text is lower-cased and stripped of accents.
    """
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    letters: collections.Counter[str] = collections.Counter()

    def known(text: str) -> str:
        """The text without overlong words, on which the trainer would take quadratic time."""
        if not _LONG_RUN.search(text):
            return text
        words = splitter.pre_tokenize_str(normalizer.normalize_str(text))
        return " ".join(word for word, _ in words if len(word) <= _LONGEST_WORD)

    for text in map(known, texts):
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)):
            letters.update(word)
            letters.update(f"{PIECE}{letter}" for letter in word[1:])
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
    return WordPiece(tuple(filter(_is_entry, ordered)), lowercase)
