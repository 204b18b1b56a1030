"""The vocabulary of RoBERTa: byte-pair encoding."""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.pre_tokenizers

from dcse_tf.bert.fast_vocabulary import FastVocabulary, complete_tokens
from dcse_tf.bert.vocabulary import Split, make_fast_split
from dcse_tf.errors import InputError
from dcse_tf.input_files import parse_json

if TYPE_CHECKING:
    from dcse_tf.bert.graph_tokenizers import BytePairTokenizer

SPACE = "\u0120"  # stands for a space: first character of a token that begins a word

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
class BytePair(FastVocabulary):
    """A vocabulary of byte-pair encoding.

    Attributes:
        merges: pairs of tokens to merge, "first second", the highest priority first.
    """

    merges: tuple[str, ...]

    def _content(self) -> bytes:
        return "\n".join((*self.text_tokens, "", *self.merges)).encode()

    def describe(self) -> str:
        return "cased, in bytes"

    def begins_word(self, token: str) -> bool:
        return token.startswith(SPACE) and token != SPACE

    def spell(self, tokens: Iterable[str]) -> str:
        return tokenizers.decoders.ByteLevel().decode(list(tokens)).strip()

    def make_tokenizer(self) -> "BytePairTokenizer":
        from dcse_tf.bert.graph_tokenizers import BytePairTokenizer

        return BytePairTokenizer(self)

    def make_split(self) -> Split:
        tokenizer, steps = self._make_fast(), tokenizers.pre_tokenizers
        parts = [steps.Split(tokenizers.Regex(pattern), "isolated") for pattern in _SPLITS]
        marks = steps.Split(tokenizers.Regex(rf"\A{_MARK}\z"), "removed")
        as_bytes = steps.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = steps.Sequence([*parts, marks, as_bytes])
        # As in the graph, null characters are left out.
        mark = functools.partial(_WORD_BEGINS.sub, _MARK)
        return make_fast_split(tokenizer, lambda text: mark(text.replace("\0", "")))

    def _make_fast(self) -> tokenizers.Tokenizer:
        entries = {token: index for index, token in enumerate(self.tokens)}
        pairs = [(first, second) for first, second in map(str.split, self.merges)]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(entries, pairs))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        return tokenizer


def parse_byte_pairs(path: pathlib.Path, content: Any) -> BytePair:
    """The vocabulary of a `tokenizer.json` with byte-pair encoding.

    Args:
        path: the file's path, for error messages.
        content: the file's parsed content.

    Raises:
        InputError: it tokenises in another way than RoBERTa's.
    """
    try:
        model, splitting = content["model"], content["pre_tokenizer"]
        entries: dict[str, int] = model["vocab"]
        order = sorted(entries, key=entries.__getitem__)
        whole = [entries[token] for token in order] == list(range(len(order)))
        added = {int(each["id"]): str(each["content"]) for each in content["added_tokens"]}
        merges = tuple(m if isinstance(m, str) else " ".join(m) for m in model["merges"])
        expected = {
            "normalizer": (content.get("normalizer"), None),
            "pre_tokenizer.type": (splitting["type"], "ByteLevel"),
            "pre_tokenizer.add_prefix_space": (splitting.get("add_prefix_space", True), False),
            "pre_tokenizer.use_regex": (splitting.get("use_regex", True), True),
            "model.continuing_subword_prefix": (model.get("continuing_subword_prefix") or "", ""),
            "model.end_of_word_suffix": (model.get("end_of_word_suffix") or "", ""),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: expected a tokenizer of byte pairs: {error!r}") from error
    for name, (value, wanted) in expected.items():
        if value != wanted:
            raise InputError(f"{path}: {name} is {value!r:.60}, expected {wanted!r}")
    if not whole:
        raise InputError(f"{path}: expected entries numbered from 0")
    return BytePair(complete_tokens(path, order, added), False, merges)


def read_byte_pairs(folder: pathlib.Path) -> BytePair:
    """Reads `vocab.json` and `merges.txt`, the files that RoBERTa was published with.

    Raises:
        InputError: a file cannot be read or is not in the expected format.
    """
    path, rules = folder / "vocab.json", folder / "merges.txt"
    try:
        entries = parse_json(path.read_text(encoding="utf-8"))
        lines = rules.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: expected vocab.json and merges.txt: {error}") from error
    merges = [line for line in lines if not line.startswith("#version")]
    content = {
        "model": {"vocab": entries, "merges": merges},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "added_tokens": [],
    }
    return parse_byte_pairs(path, content)
