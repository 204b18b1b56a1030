"""RoBERTa's tokenisation in the graph: byte-pair encoding.

keras-hub's BytePairTokenizer computes it and caches the words that it has seen. The tests compare
the result with the HuggingFace tokenizer token for token.
"""

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.pre_tokenizers

from dcse_tf.errors import InputError
from dcse_tf.input_files import parse_json
from dcse_tf.model.fast_vocabulary import FastVocabulary, complete_tokens
from dcse_tf.model.vocabulary import Tokenizer

SPACE = "\u0120"  # stands for a space: first character of a token that begins a word


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
        return BytePairTokenizer(self)

    def _make_fast(self) -> tokenizers.Tokenizer:
        entries = {token: index for index, token in enumerate(self.tokens)}
        pairs = [(first, second) for first, second in map(str.split, self.merges)]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(entries, pairs))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        return tokenizer


class BytePairTokenizer(Tokenizer):
    """RoBERTa's tokenisation."""

    def __init__(self, vocabulary: BytePair):
        super().__init__(vocabulary)
        # Not at the top: keras-hub takes half a second to import.
        import keras_hub

        entries = {token: index for index, token in enumerate(vocabulary.tokens)}
        self._pairs = keras_hub.tokenizers.BytePairTokenizer(entries, list(vocabulary.merges))

    # Outside a graph, the library uses another tokenizer, which splits texts as Llama's does.
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def split(self, texts: tf.Tensor) -> tf.RaggedTensor:
        # The library truncates a text at a null character.
        return self._pairs(tf.strings.regex_replace(texts, r"\x00", ""))


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
