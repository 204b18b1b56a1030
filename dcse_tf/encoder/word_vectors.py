"""The mean of word vectors as a sentence's embedding (Avg. GloVe)."""

import hashlib
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.data.words import make_splitter
from dcse_tf.model.vectors import WordVectors

# What `word_unit` means to `make_splitter`.
WORD_UNITS = {"words": "auto", "characters": "characters"}


class WordVectorBackend:
    """Averages the vectors of a sentence's words, case-folded.

    Words without a vector are skipped; a sentence without any word that has one is all zeros, whose
    cosine with anything is 0.

    Args:
        vectors: their words are case-folded, as the sentences' are.
        word_unit: one of WORD_UNITS.
        batch_tokens: most words of a batch.
    """

    match = None  # there are no token embeddings in context

    def __init__(self, vectors: WordVectors, word_unit: str, batch_tokens: int):
        self.batch_tokens = batch_tokens
        self.settings: dict[str, Any] = {"max_sequence_length": None}
        self._vectors = vectors
        self._word_unit = word_unit
        self._split = make_splitter(WORD_UNITS[word_unit])

    def read(self, sentences: list[str]) -> tuple[tf.RaggedTensor, np.ndarray]:
        """Rows of the words that have a vector, int `[sentences, (words)]`, and their number."""
        vector_row = self._vectors.rows
        rows = [[vector_row[w] for w in self._split(text) if w in vector_row] for text in sentences]
        lengths = np.array([len(known) for known in rows], np.int64)
        unknown = int(np.sum(lengths == 0))
        if unknown and any(sentences):
            logging.info(
                "%d of %d distinct sentences have no word with a vector: their embedding is zero",
                unknown,
                len(sentences),
            )
        values = np.array([row for known in rows for row in known], np.int64)
        return tf.RaggedTensor.from_row_lengths(values, lengths), lengths

    def embed(self, rows: tf.RaggedTensor, tokens: int) -> tf.Tensor:
        """The mean vector of each sentence's words; float32 `[n, dim]`."""
        matrix = self._vectors.matrix
        means = np.zeros([int(rows.nrows()), matrix.shape[1]], np.float32)
        for mean, known in zip(means, np.split(rows.values.numpy(), rows.row_splits.numpy()[1:-1])):
            if len(known):
                mean[:] = matrix[known].mean(axis=0)
        return tf.constant(means)

    def fingerprint(self) -> str:
        """SHA-256 over the words, their vectors and the word unit."""
        words = sorted(self._vectors.rows, key=self._vectors.rows.__getitem__)
        digest = hashlib.sha256("\n".join([self._word_unit, *words]).encode())
        digest.update(np.ascontiguousarray(self._vectors.matrix).data)
        return digest.hexdigest()
