"""The vocabularies of BERT and MPNet: WordPiece."""

import collections
import dataclasses
import pathlib
import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self

import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.normalizers
import tokenizers.pre_tokenizers
import tokenizers.trainers

from dcse_tf.bert.vocabulary import (
    END_OF_TURN,
    SpecialTokens,
    Split,
    Vocabulary,
    make_fast_split,
    save_tokenizer,
)
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.input_files import read_json_object

if TYPE_CHECKING:
    from dcse_tf.bert.graph_tokenizers import WordPieceTokenizer

_LONGEST_WORD = 100  # characters; to BERT, a longer one is unknown
PIECE = "##"  # prefix of entries that continue a word


SPECIAL_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


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

    def _write_files(self, folder: pathlib.Path) -> None:
        end_of_turn = {"additional_special_tokens": [END_OF_TURN]} if self.has_end_of_turn else {}
        _write_files(folder, self, end_of_turn)

    def write_tokenizer(self, folder: pathlib.Path, max_sequence_length: int) -> None:
        limits = {"model_max_length": max_sequence_length, "split_special_tokens": True}
        _write_files(folder, self, limits)
        write_json(folder / "special_tokens_map.json", _name_tokens(self))
        save_tokenizer(folder / "tokenizer.json", self, _make_fast(self))

    def make_tokenizer(self) -> "WordPieceTokenizer":
        from dcse_tf.bert.graph_tokenizers import WordPieceTokenizer

        return WordPieceTokenizer(self)

    def make_split(self) -> Split:
        return _make_split(self)


@dataclasses.dataclass(frozen=True)
class MPNetPieces(WordPiece):
    """MPNet's vocabulary: BERT's pieces with RoBERTa's special entries, except [UNK]."""

    special: ClassVar[SpecialTokens] = SpecialTokens("<pad>", "[UNK]", "<s>", "</s>", "<mask>")

    def number_as_mpnet(self) -> Self:
        """This vocabulary in the order in which MPNet stores it, with padding as second entry."""
        first, second, *rest = self.tokens
        return dataclasses.replace(self, tokens=(second, first, *rest))


def parse_wordpiece(path: pathlib.Path, content: Any) -> WordPiece:
    """The vocabulary of a `tokenizer.json`, the only file that newer libraries write.

    Args:
        path: the file's path, for error messages.
        content: the file's parsed content.

    Raises:
        InputError: it is not BERT's WordPiece, or one of its settings is not supported.
    """
    try:
        model, normalizer = content["model"], content["normalizer"]
        kinds = (model["type"], normalizer["type"], content["pre_tokenizer"]["type"])
        entries: dict[str, int] = model["vocab"]
        order = sorted(entries, key=entries.__getitem__)
        whole = [entries[token] for token in order] == list(range(len(order)))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: expected a tokenizer of BERT: {error!r}") from error
    if kinds != ("WordPiece", "BertNormalizer", "BertPreTokenizer") or not whole:
        raise InputError(
            f"{path}: {', '.join(map(str, kinds))}; expected WordPiece, BertNormalizer and "
            "BertPreTokenizer, with entries numbered from 0"
        )
    _check_settings(path, model, normalizer)
    return _make_vocabulary(tuple(order), bool(normalizer["lowercase"]), path)


def _check_settings(path: pathlib.Path, model: dict[str, Any], normalizer: dict[str, Any]) -> None:
    lowercase = normalizer.get("lowercase")
    expected = {
        "normalizer.lowercase": (lowercase, (True, False)),
        "normalizer.clean_text": (normalizer.get("clean_text"), (True,)),
        "normalizer.handle_chinese_chars": (normalizer.get("handle_chinese_chars"), (True,)),
        "normalizer.strip_accents": (normalizer.get("strip_accents"), (None, lowercase)),
        "model.unk_token": (model.get("unk_token"), ("[UNK]",)),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix"), (PIECE,)),
        "model.max_input_chars_per_word": (
            model.get("max_input_chars_per_word"),
            (_LONGEST_WORD,),
        ),
    }
    for name, (value, allowed) in expected.items():
        if value not in allowed:
            raise InputError(f"{path}: {name} is {value!r}, expected {allowed[0]!r}")


def _make_fast(vocabulary: WordPiece) -> tokenizers.Tokenizer:
    """HuggingFace's tokenizer as `parse_wordpiece` expects it, without the special entries."""
    entries = {token: index for index, token in enumerate(vocabulary.tokens)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            entries, unk_token=SPECIAL_TOKENS.unk, max_input_chars_per_word=_LONGEST_WORD
        )
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=None,
        lowercase=vocabulary.lowercase,
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    return tokenizer


# What HuggingFace's BertNormalizer and BertPreTokenizer miss, since their tables of characters are
# of an older Unicode, and one block of ideographs.
_REMOVED, _ACCENTS = (tokenizers.Regex(pattern) for pattern in (r"[\p{Cf}\p{Co}]", r"\p{Mn}"))
_ALONE = tokenizers.Regex(r"[\p{P}\x{2B820}-\x{2B91F}]")


def _make_split(vocabulary: WordPiece) -> Split:
    """See `Vocabulary.make_split`. The graph's tokenizer differs in characters of Unicode 15 and
    later, and in words of 101 to 133 symbols, which are unknown here.
    """
    tokenizer, replace = _make_fast(vocabulary), tokenizers.normalizers.Replace
    strip = [tokenizers.normalizers.NFD(), replace(_ACCENTS, "")] if vocabulary.lowercase else []
    steps = [replace(_REMOVED, ""), *strip, tokenizer.normalizer]
    tokenizer.normalizer = tokenizers.normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.Split(_ALONE, "isolated")]
    )
    return make_fast_split(tokenizer, _lower_sigmas if vocabulary.lowercase else None)


def _lower_sigmas(text: str) -> str:
    """Lower-cases a text that has a capital sigma: at the end of a word it is another letter.

    HuggingFace's tokenizer lower-cases one character after the other.
    """
    if "Σ" not in text:
        return text
    # The characters that are removed anyway, which would hide whether a word goes on.
    return "".join(c for c in text if c in "\t\n\r" or unicodedata.category(c)[0] != "C").lower()


_LONGEST_ENTRY = 256  # bytes; a limit of FastBertTokenizer
_LONG_RUN = re.compile(rf"\S{{{_LONGEST_WORD + 1}}}")


def read_wordpiece(folder: pathlib.Path) -> WordPiece:
    """Reads `vocab.txt` and the casing of `tokenizer_config.json` (HuggingFace's names).

    Raises:
        InputError: a file is missing or invalid, or a setting is not supported.
    """
    path = folder / "vocab.txt"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason}") from error
    tokens = tuple(text.removesuffix("\n").split("\n"))
    config_path = folder / "tokenizer_config.json"
    settings = read_json_object(config_path) if config_path.is_file() else {}
    lowercase = bool(settings.get("do_lower_case", True))
    strip_accents = settings.get("strip_accents")
    if strip_accents is not None and bool(strip_accents) != lowercase:
        raise InputError(f"{config_path}: strip_accents other than do_lower_case is not supported")
    unknown = settings.get("unk_token", SPECIAL_TOKENS.unk)
    if (unknown.get("content") if isinstance(unknown, dict) else unknown) != SPECIAL_TOKENS.unk:
        raise InputError(f"{config_path}: unk_token is {unknown!r:.40}, expected [UNK]")
    if not settings.get("tokenize_chinese_chars", True):
        raise InputError(f"{config_path}: tokenize_chinese_chars=false is not supported")
    return _make_vocabulary(tokens, lowercase, path)


def _make_vocabulary(tokens: tuple[str, ...], lowercase: bool, path: pathlib.Path) -> WordPiece:
    """Makes a vocabulary of a file's entries: MPNet's if it begins with its padding, else BERT's.

    MPNet's padding may be the first or the second entry.
    """
    kind = MPNetPieces if MPNetPieces.special.pad in tokens[:2] else WordPiece
    missing = [token for token in kind.special if token not in tokens]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    if kind is WordPiece and tokens[0] != kind.special.pad:
        raise InputError(f"{path}:1: expected [PAD], found {tokens[0]!r:.40}")
    _check_entries(path, tokens)
    if tokens[1] == MPNetPieces.special.pad:
        return MPNetPieces(tokens, lowercase).number_as_mpnet()
    return kind(tokens, lowercase)


def _check_entries(path: pathlib.Path, tokens: tuple[str, ...]) -> None:
    """Refuses duplicate entries and those that FastBertTokenizer cannot hold."""
    lines: dict[str, int] = {}
    for line, token in enumerate(tokens, start=1):
        if lines.setdefault(token, line) != line:
            raise InputError(f"{path}:{line}: {token!r:.40} is already on line {lines[token]}")
        if not _is_entry(token):
            raise InputError(
                f"{path}:{line}: expected an entry of {_LONGEST_ENTRY} bytes at most, without null "
                f"characters, found {token!r:.40}"
            )


def _is_entry(token: str) -> bool:
    return len(token.removeprefix(PIECE).encode()) <= _LONGEST_ENTRY and "\0" not in token


def _name_tokens(vocabulary: WordPiece) -> dict[str, str]:
    return {f"{role}_token": token for role, token in vocabulary.special._asdict().items()}


def _write_files(folder: pathlib.Path, vocabulary: WordPiece, further: dict[str, Any]) -> None:
    """Writes `vocab.txt` and `tokenizer_config.json`, which HuggingFace's tokenizer reads too."""
    text = "\n".join(vocabulary.tokens) + "\n"
    (folder / "vocab.txt").write_text(text, encoding="utf-8")
    kind = "BertTokenizer" if vocabulary.tokens[0] == vocabulary.special.pad else "MPNetTokenizer"
    settings = {
        "do_lower_case": vocabulary.lowercase,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "tokenizer_class": kind,
        **_name_tokens(vocabulary),
        **further,
    }
    write_json(folder / "tokenizer_config.json", settings)


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
