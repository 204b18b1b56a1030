"""Averaged word vectors: the mean vector of a sentence's words (Avg. GloVe)."""

import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np
from absl import logging

from dcse_tf.baselines.registry import BaselineOptions, BaselineSpec, Fitted
from dcse_tf.bert.vectors import WordVectors, fold_case, read_word_vectors
from dcse_tf.data.words import make_splitter
from dcse_tf.errors import InputError
from dcse_tf.options import OptionError, option

# `word_unit` -> the argument of `make_splitter`.
_SPLITTERS = {"words": "auto", "characters": "characters"}


@dataclasses.dataclass(frozen=True)
class WordVectorsOptions(BaselineOptions):
    """Settings of `kind`=word_vectors."""

    word_vectors: str = option(
        "",
        "File of word vectors: GloVe text, word2vec text or .bin, .json ({word: [numbers]}), "
        "or .npz (one array [words, dim], with `word_index`).",
        required=True,
        path="files",
    )
    word_index: str = option(
        "", "For .npz: JSON file that gives the row of each word ({word: row}).", path="files"
    )
    word_unit: str = option(
        "words", "What has a vector; words of Chinese are jieba's.", choices=tuple(_SPLITTERS)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.word_vectors.endswith(".npz") != bool(self.word_index):
            raise OptionError("`word_index` goes with `word_vectors`=FILE.npz, and only with it")


def _fit(options: WordVectorsOptions, corpus: object) -> Fitted:
    index = pathlib.Path(options.word_index) if options.word_index else None
    vectors = fold_case(read_word_vectors(pathlib.Path(options.word_vectors), index))
    words = sorted(vectors.rows, key=vectors.rows.__getitem__)
    matrix = vectors.matrix[[vectors.rows[word] for word in words]]
    return Fitted(
        tensors={"matrix": matrix},
        facts={"word_unit": options.word_unit, "words": words},
        summary=f"{len(words)} {options.word_unit} with vectors of {matrix.shape[1]} dimensions",
    )


def _make_encode(fitted: Fitted) -> Callable[[list[str]], np.ndarray]:
    """A function from texts to the mean vectors of their words, float32 `[n, dim]`.

    Words without a vector are skipped. A text in which no word has one is all zeros.
    """
    words, matrix = fitted.facts["words"], fitted.tensors["matrix"]
    if matrix.ndim != 2 or len(matrix) != len(words):
        raise InputError(f"expected a vector for each of {len(words)} words")
    vectors = WordVectors({word: row for row, word in enumerate(words)}, matrix)
    split = make_splitter(_SPLITTERS[fitted.facts["word_unit"]])

    def encode(texts: list[str]) -> np.ndarray:
        means = [vectors.mean(split(text)) for text in texts]
        unknown = sum(not mean.any() for mean in means)
        if unknown:
            message = "%d of %d sentences have no word with a vector: zeros (logged only once)"
            logging.log_first_n(logging.INFO, message, 1, unknown, len(texts))
        return np.array(means, np.float32).reshape(len(texts), matrix.shape[1])

    return encode


WORD_VECTORS = BaselineSpec(
    name="word_vectors",
    help="the mean of the words' vectors, without an encoder",
    options=WordVectorsOptions,
    fit=_fit,
    make_encode=_make_encode,
)
