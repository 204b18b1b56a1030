"""Tokenisation in TensorFlow's graph, with the same operations in training and serving.

The tests compare each kind's tokens with HuggingFace's.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_text as tf_text

from dcse_tf.bert.vocabulary import PIECE, BytePair, SentencePiece, Vocabulary, WordPiece
from dcse_tf.errors import name_input


class Tokenizer(tf.Module):
    """Maps strings to token ids in the graph."""

    def __init__(self, vocabulary: Vocabulary):
        super().__init__()
        self.cls_id = vocabulary.cls_id
        self.sep_id = vocabulary.sep_id
        self._prefix = vocabulary.prefix
        if isinstance(vocabulary, WordPiece):
            self._pieces, self._split = _split_words(vocabulary)
        elif isinstance(vocabulary, BytePair):
            self._pieces, self._split = _split_bytes(vocabulary)
        else:
            assert isinstance(vocabulary, SentencePiece)
            model = vocabulary.make_model().SerializeToString()
            self._pieces = tf_text.SentencepieceTokenizer(model, out_type=tf.int32)
            self._split = self._pieces.tokenize

    def tokenize(self, texts: tf.Tensor, length: int) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Token ids, int32 `[texts, (tokens)]`, of strings `[texts]`, UTF-8, with prefix, [CLS] and
        [SEP], truncated to a length that includes these; and whether each text was truncated, bool
        `[texts]`.
        """
        if self._prefix:
            texts = tf.strings.join([self._prefix, texts])
        whole, ends = self._split(texts), tf.ones([tf.shape(texts)[0], 1], tf.int32)
        ids = [ends * self.cls_id, whole[:, : length - 2], ends * self.sep_id]
        return tf.concat(ids, axis=1), whole.row_lengths() > length - 2

    def as_graph(self, length: int) -> Callable[[tf.Tensor], tuple[tf.RaggedTensor, tf.Tensor]]:
        """`tokenize` as one graph, which takes a tenth of the time for a few texts."""
        # Traced once, here: several models in a process would seem to trace it again and again.
        return tf.function(
            lambda texts: self.tokenize(texts, length),
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        ).get_concrete_function()


# What splits, and its function from strings `[texts]` to token ids, int32 `[texts, (tokens)]`.
_Splitter = tuple[Any, Callable[[tf.Tensor], tf.RaggedTensor]]
# All characters of Unicode's category C ("other": control, format, private use) except white space,
# and the replacement character.
_REMOVED = r"[\x{FFFD}]|[^\P{C}\t\n\r]"

# A word of more than 100 characters; FastBertTokenizer counts bytes instead.
# The pattern lists the letters of scripts that separate words by spaces, because a hundred
# repetitions of all of Unicode's classes exceed RE2's memory. Words of other characters (mostly
# symbols) are limited to 400 bytes instead: 100 characters of four bytes or 133 of three.
_LONG_WORD = (
    r"[0-9A-Za-z\x{C0}-\x{24F}\x{370}-\x{37D}\x{37F}-\x{386}\x{388}-\x{52F}\x{5D0}-\x{5EA}"
    r"\x{620}-\x{64A}\x{900}-\x{963}\x{E01}-\x{E4E}\x{1100}-\x{11FF}\x{AC00}-\x{D7A3}]{101,}"
)
# A private-use character, which is removed from every text, so that no vocabulary can match it.
_UNKNOWN_WORD = "\ue000"


def _split_words(vocabulary: WordPiece) -> _Splitter:
    """BERT's tokenisation.

    tensorflow-text's FastBertTokenizer splits the text. Normalisation (control characters, accents,
    case) is done here with TensorFlow's string operations, because FastBertTokenizer's own differs
    from BERT's: it applies NFKC case folding when it lower-cases ("，" becomes ",", "ﬁ" becomes
    "fi", "ß" becomes "ss"), and it splits words at control characters, which BERT removes.
    """
    with name_input("the vocabulary cannot be used", RuntimeError):
        pieces = tf_text.FastBertTokenizer(
            vocab=list(vocabulary.tokens),
            suffix_indicator=PIECE,
            max_bytes_per_word=400,  # a character has up to four
            token_out_type=tf.int32,
            unknown_token=vocabulary.special.unk,
            lower_case_nfd_strip_accents=False,
        )

    def split(texts: tf.Tensor) -> tf.RaggedTensor:
        texts = tf.strings.regex_replace(texts, _REMOVED, "")
        # White space other than the space itself, which nearly every text contains.
        texts = tf.strings.regex_replace(texts, r"[^\P{Z} ]|[\t\n\r]", " ")
        if vocabulary.lowercase:
            texts = tf_text.normalize_utf8(texts, "NFD")
            texts = tf.strings.regex_replace(texts, r"\p{Mn}", "")
            texts = tf.strings.lower(texts, encoding="utf-8")
        return pieces.tokenize(tf.strings.regex_replace(texts, _LONG_WORD, _UNKNOWN_WORD))

    return pieces, split


def _split_bytes(vocabulary: BytePair) -> _Splitter:
    """RoBERTa's tokenisation, by keras-hub, which caches the words that it has seen."""
    import keras_hub  # not at the top, since it takes half a second

    entries = {token: index for index, token in enumerate(vocabulary.tokens)}
    pairs = keras_hub.tokenizers.BytePairTokenizer(entries, list(vocabulary.merges))

    # Outside a graph, the library uses another tokenizer, which splits texts as Llama's does.
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def split(texts: tf.Tensor) -> tf.RaggedTensor:
        # The library truncates a text at a null character.
        return pairs(tf.strings.regex_replace(texts, r"\x00", ""))

    return pairs, split
