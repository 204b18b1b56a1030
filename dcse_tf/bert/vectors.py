"""Word vectors and their files. No TensorFlow here."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence

import numpy as np

from dcse_tf.errors import InputError, require
from dcse_tf.input_files import (
    UNREADABLE,
    UNREADABLE_ARRAY,
    open_input,
    parse_json,
    read_json_object,
)


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """A vector for each word.

    Attributes:
        rows: the row of each word in the matrix.
        matrix: float32 `[words, dim]`.
    """

    rows: dict[str, int]
    matrix: np.ndarray

    def mean(self, words: Sequence[str]) -> np.ndarray:
        """The mean vector of those words that have one, `[dim]`; zeros if none has."""
        known = [self.rows[word] for word in words if word in self.rows]
        if not known:
            return np.zeros(self.matrix.shape[1], np.float32)
        return self.matrix[known].mean(axis=0)


def fold_case(vectors: WordVectors) -> WordVectors:
    """The vectors of case-folded words.

    If words differ only in case, the first one's vector is used: files list frequent words first.
    """
    rows: dict[str, int] = {}
    for word, row in sorted(vectors.rows.items(), key=lambda item: item[1]):
        rows.setdefault(word.casefold(), row)
    return WordVectors(rows, vectors.matrix)


def read_word_vectors(path: pathlib.Path, index: pathlib.Path | None = None) -> WordVectors:
    """Reads word vectors in the format that the file's name implies.

    `.npz` is one NumPy array, with the row of each word in `index`, a JSON file; `.json` and
    `.json.gz` are {word: [numbers]}; `.bin` and `.bin.gz` are word2vec's binary format. Any other
    file is in word2vec's text format, or in GloVe's, which lacks its line of counts.

    Raises:
        InputError: the file is not in that format.
    """
    if index:
        try:
            with np.load(path, allow_pickle=False) as arrays:
                (matrix,) = (np.array(arrays[name], np.float32, ndmin=2) for name in arrays.files)
        except UNREADABLE_ARRAY as error:
            raise InputError(f"{path}: expected one array [words, dim] as .npz: {error}") from error
        rows, count = read_json_object(index, "the row of each word"), len(matrix)
        for word, row in rows.items():
            if type(row) is not int or not 0 <= row < count:
                expected = f"expected 0 to {count - 1} of {path}"
                raise InputError(f"{index}: {word!r} has row {row!r}, {expected}")
        return WordVectors(rows, matrix)
    if not path.name.endswith((".json", ".json.gz")):
        return _read_word2vec(path)
    try:
        with open_input(path) as file:
            content = parse_json(file.read())
        matrix = np.array(list(content.values()), np.float32)
    except (*UNREADABLE, ValueError, TypeError, AttributeError) as error:
        problem = "expected a JSON object with a list of numbers for each word, all of one length"
        raise InputError(f"{path}: {problem}: {error}") from error
    if matrix.ndim != 2 or not matrix.size:
        raise InputError(f"{path}: expected a list of numbers for each word")
    return WordVectors({word: row for row, word in enumerate(content)}, matrix)


def _read_word2vec(path: pathlib.Path) -> WordVectors:
    models = require("gensim.models", extra="vectors", why=f"reading word vectors from {path}")
    logging.getLogger("gensim").setLevel(logging.WARNING)
    binary = path.name.endswith((".bin", ".bin.gz"))
    try:
        with open_input(path) as file:
            head = file.readline(4096).split()
        no_header = not binary and len(head) != 2
        vectors = models.KeyedVectors.load_word2vec_format(
            str(path), binary=binary, no_header=no_header, unicode_errors="replace"
        )
    except (*UNREADABLE, ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        raise InputError(
            f"{path}: expected word2vec's text or .bin form, or GloVe's text: {error}"
        ) from error
    if not vectors.vectors.size:
        raise InputError(f"{path}: no vectors in it; fields must be separated by single spaces")
    return WordVectors(dict(vectors.key_to_index), vectors.vectors)
