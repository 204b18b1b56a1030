"""Averaged word vectors: the mean vector of a sentence's words (Avg. GloVe)."""

import logging as standard_logging
import pathlib
from collections.abc import Callable

import numpy as np
from absl import logging

from dcse_tf import input_files
from dcse_tf.baselines.registry import BaselineOptions, Fitted
from dcse_tf.data.dialogue import make_splitter
from dcse_tf.errors import InputError, name_input, require
from dcse_tf.options import OptionError, option

# `word_unit` -> the argument of `make_splitter`.
_SPLITTERS = {"words": "auto", "characters": "characters"}
_BROKEN = (*input_files.UNREADABLE, ValueError, TypeError)


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


def fit_word_vectors(options: WordVectorsOptions) -> Fitted:
    """Reads the vectors that the options name, by case-folded word."""
    index = pathlib.Path(options.word_index) if options.word_index else None
    rows, matrix = read_word_vectors(pathlib.Path(options.word_vectors), index)
    if not rows or matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise InputError(f"{options.word_vectors}: expected [words, dim], all of finite numbers")
    # If words differ only in case, the first one's vector is used: files list frequent words first.
    folded: dict[str, int] = {}
    for word in sorted(rows, key=rows.__getitem__):
        folded.setdefault(word.casefold(), rows[word])
    matrix = matrix[[*folded.values()]]
    return Fitted(
        tensors={"matrix": matrix},
        facts={"word_unit": options.word_unit, "words": [*folded]},
        summary=f"{len(folded)} {options.word_unit} with vectors of {matrix.shape[1]} dimensions",
    )


def make_encode(fitted: Fitted) -> Callable[[list[str]], np.ndarray]:
    """From texts to the means of their words' vectors, float32 `[n, dim]`; zeros without one."""
    words, matrix = fitted.facts["words"], fitted.tensors["matrix"]
    if matrix.ndim != 2 or len(matrix) != len(words):
        raise InputError(f"expected a vector for each of {len(words)} words")
    rows = {word: row for row, word in enumerate(words)}
    split = make_splitter(_SPLITTERS[fitted.facts["word_unit"]])

    def encode(texts: list[str]) -> np.ndarray:
        means = np.zeros([len(texts), matrix.shape[1]], np.float32)
        for mean, text in zip(means, texts, strict=True):
            if known := [rows[word] for word in split(text) if word in rows]:
                mean[:] = matrix[known].mean(axis=0)
        if (unknown := sum(map(bool, texts)) - np.count_nonzero(means.any(axis=1))) > 0:
            message = "%d of %d sentences have no word with a vector: zeros (logged only once)"
            logging.log_first_n(logging.INFO, message, 1, unknown, len(texts))
        return means

    return encode


def read_word_vectors(
    path: pathlib.Path, index: pathlib.Path | None = None
) -> tuple[dict[str, int], np.ndarray]:
    """Reads the row of each word, and the matrix, float32 `[words, dim]`. `.npz` is one NumPy
    array, with the row of each word in `index`, a JSON file; `.json` and `.json.gz` are {word:
    [numbers]}, `.bin` and `.bin.gz` word2vec's binary format; others its text format, or GloVe's,
    which lacks the line of counts. Raises InputError if the file is not in that format.
    """
    if index:
        problem = f"{path}: expected one array [words, dim] as .npz"
        readable = name_input(problem, input_files.UNREADABLE_ARRAY)
        with readable, np.load(path, allow_pickle=False) as arrays:
            (matrix,) = (np.array(arrays[name], np.float32, ndmin=2) for name in arrays.files)
        rows, last = input_files.read_json_object(index, "the row of each word"), len(matrix) - 1
        for word, row in rows.items():
            if type(row) is not int or not 0 <= row <= last:
                expected = f"expected 0 to {last} of {path}"
                raise InputError(f"{index}: {word!r} has row {row!r}, {expected}")
        return rows, matrix

    if path.name.endswith((".json", ".json.gz")):
        problem = f"{path}: expected a JSON object with equally long lists of numbers by word"
        with name_input(problem, *_BROKEN, AttributeError):
            with input_files.open_input(path) as file:
                content = input_files.parse_json(file.read())
            matrix = np.array(list(content.values()), np.float32)
            if matrix.ndim != 2 or not matrix.size:
                raise ValueError(f"found an array {list(matrix.shape)}")
        return {word: row for row, word in enumerate(content)}, matrix

    models = require("gensim.models", extra="vectors", why=f"reading word vectors from {path}")
    standard_logging.getLogger("gensim").setLevel(standard_logging.WARNING)
    binary = path.name.endswith((".bin", ".bin.gz"))
    problem = f"{path}: expected word2vec's text or .bin form, or GloVe's text"
    with name_input(problem, *_BROKEN, IndexError, OverflowError, MemoryError):
        with input_files.open_input(path) as file:
            no_header = not binary and len(file.readline(4096).split()) != 2
        vectors = models.KeyedVectors.load_word2vec_format(
            str(path), binary=binary, no_header=no_header, unicode_errors="replace"
        )
    if not vectors.vectors.size:
        raise InputError(f"{path}: no vectors in it; fields must be separated by single spaces")
    return dict(vectors.key_to_index), vectors.vectors
