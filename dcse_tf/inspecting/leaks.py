"""Finds evaluation sentences in a corpus: a score on them would measure memorization.

Two sentences are near-duplicates if they share enough of their character trigrams (Jaccard index).
The index is computed exactly for every pair, by a sparse product over the trigrams of the set.
"""

import re
from collections.abc import Sequence

import numpy as np
import scipy.sparse

from dcse_tf.data.words import list_marks

LONG = 8  # characters; shorter sentences occur in almost every corpus
NEAR = 0.8  # lowest Jaccard index of near-duplicates
_AT_A_TIME = 2048  # utterances compared with a set

# Similarity (1 if equal but for case, spaces and punctuation), sentence, utterance, session's id.
Leak = tuple[float, str, str, str]


class LeakFinder:
    """Looks for the sentences of an evaluation set in a stream of utterances.

    Args:
        source: the set's file.
        sentences: the set's sentences; those with fewer than LONG characters are not looked for.
        threshold: the lowest Jaccard index of near-duplicates.
    """

    def __init__(self, source: str, sentences: Sequence[str], threshold: float = NEAR):
        self.source = source
        self._threshold = threshold
        self._sentences: dict[str, str] = {}
        for sentence in sentences:
            if len(key := _normalize(sentence)) >= LONG:
                self._sentences.setdefault(key, sentence)
        self._keys = list(self._sentences)
        trigrams = sorted({trigram for key in self._keys for trigram in _trigrams(key)})
        self._columns = {trigram: column for column, trigram in enumerate(trigrams)}
        self._matrix, self._sizes = self._vectors(self._keys)
        self._best: dict[str, Leak] = {}
        self._waiting: dict[str, tuple[str, str]] = {}

    def add(self, session_id: str, text: str) -> None:
        """Compares an utterance, sooner or later."""
        if key := _normalize(text):
            self._waiting.setdefault(key, (text, session_id))
            if len(self._waiting) >= _AT_A_TIME:
                self._compare()

    def finish(self) -> tuple[int, list[Leak]]:
        """The number of distinct sentences looked for, and the best match of each that was found,
        the longest first.
        """
        self._compare()
        found = sorted(self._best, key=lambda key: (-len(key), key))
        return len(self._keys), [self._best[key] for key in found]

    def _vectors(self, keys: Sequence[str]) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
        """Which of the set's trigrams each text has, `[texts, trigrams]`, and its trigram count."""
        rows = [_trigrams(key) for key in keys]
        known = [[self._columns[s] for s in row if s in self._columns] for row in rows]
        ends = np.cumsum([0, *map(len, known)])
        columns = np.array([column for row in known for column in row], np.int64)
        ones = np.ones(len(columns), np.float32)
        matrix = scipy.sparse.csr_matrix((ones, columns, ends), (len(keys), len(self._columns)))
        return matrix, np.array([len(row) for row in rows], np.int64)

    def _compare(self) -> None:
        keys, waiting = list(self._waiting), self._waiting
        self._waiting = {}
        if not keys or not self._keys:
            return
        vectors, sizes = self._vectors(keys)
        common = (vectors @ self._matrix.T).tocoo()
        similarity = common.data / (sizes[common.row] + self._sizes[common.col] - common.data)
        # Sums of ones are exact in float32; the tolerance is for thresholds such as 0.8.
        for place in np.flatnonzero(similarity >= self._threshold - 1e-6).tolist():
            key, sentence = keys[common.row[place]], self._keys[common.col[place]]
            # Different texts can have the same trigrams; only equal texts count as exact.
            value = 1.0 if key == sentence else min(round(float(similarity[place]), 3), 0.999)
            if sentence not in self._best or value > self._best[sentence][0]:
                self._best[sentence] = (value, self._sentences[sentence], *waiting[key])


def _normalize(text: str) -> str:
    """The text without case, spaces and punctuation."""
    return re.sub(rf"[^\w{list_marks()}]+|_+", "", text.casefold())


def _trigrams(key: str) -> set[str]:
    """The character trigrams of a text; for a shorter text, the text itself."""
    return {key[place : place + 3] for place in range(len(key) - 2)} or {key}
