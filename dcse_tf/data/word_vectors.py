"""Word vectors: from a file, or trained on a corpus (gensim). No TensorFlow here."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence

import numpy as np

from dcse_tf.errors import InputError
from dcse_tf.input_files import UNREADABLE, open_input


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """A vector a word.

    Attributes:
        rows: the row of each word.
        matrix: float32 `[words, dim]`.
    """

    rows: dict[str, int]
    matrix: np.ndarray

    def mean(self, words: Sequence[str]) -> np.ndarray:
        """The mean vector of the words that have one, `[dim]`; zeros if none has."""
        known = [self.rows[word] for word in words if word in self.rows]
        if not known:
            return np.zeros(self.matrix.shape[1], np.float32)
        return self.matrix[known].mean(axis=0)


def read_word_vectors(path: pathlib.Path) -> WordVectors:
    """Reads word2vec's text form, GloVe's (which has no first line of counts), or word2vec's
    binary form (`.bin`, `.bin.gz`).

    Raises:
        InputError: the file is of none of these forms.
    """
    from gensim.models import KeyedVectors  # takes a second to import

    logging.getLogger("gensim").setLevel(logging.WARNING)
    binary = path.name.endswith((".bin", ".bin.gz"))
    try:
        with open_input(path) as file:
            head = file.readline(4096).split()
        no_header = not binary and len(head) != 2
        vectors = KeyedVectors.load_word2vec_format(
            str(path), binary=binary, no_header=no_header, unicode_errors="replace"
        )
    except (ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        raise InputError(
            f"{path}: expected word2vec's text or .bin form, or GloVe's text: {error}"
        ) from error
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not vectors.vectors.size:
        raise InputError(f"{path}: no vectors in it; fields are parted by single spaces")
    return WordVectors(dict(vectors.key_to_index), vectors.vectors)


def train_word_vectors(sentences: Sequence[Sequence[str]], size: int, seed: int) -> WordVectors:
    """Trains skip-gram word2vec (Mikolov et al. 2013) on the words of sentences.

    One thread and one seed: the same input gives the same vectors.

    Args:
        sentences: the words of each.
        size: of a vector.
        seed: the seed.

    Raises:
        InputError: no word occurs.
    """
    from gensim.models import Word2Vec

    logging.getLogger("gensim").setLevel(logging.WARNING)
    if not any(sentences):
        raise InputError("no sentence has a word to train vectors on")
    model = Word2Vec(
        [list(words) for words in sentences],
        vector_size=size,
        sg=1,
        window=5,
        min_count=1,
        workers=1,
        epochs=10,
        seed=seed,
    )
    return WordVectors(dict(model.wv.key_to_index), model.wv.vectors)
