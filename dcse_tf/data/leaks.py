"""Sentences of an evaluation set that stand in a training corpus, exactly or nearly.

A test on sentences that were trained on measures memory. Two sentences are near-duplicates from a
share of common character trigrams on (Jaccard's index), computed exactly for every pair: a sparse
product over the trigrams that the evaluation set has.
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import scipy.sparse

_UNHEARD = re.compile(r"[\W_]+")
_SHINGLE = 3
_CHUNK = 2048  # utterances compared at a time
LONG = 8  # characters from which a repeated sentence is hardly chance


@dataclasses.dataclass(frozen=True)
class Leak:
    """The corpus' nearest utterance to a sentence of the set."""

    sentence: str
    utterance: str
    session_id: str
    similarity: float


@dataclasses.dataclass(frozen=True)
class LeakReport:
    """What of a set stands in the corpus.

    Attributes:
        source: the set's file.
        sentences: different sentences, case, spaces and punctuation apart.
        exact, near: how many have an equal utterance, or none but a near one.
        long_exact, long_near: those of LONG characters or more: shorter ones stand in every corpus.
        leaks: all of these sentences, the longest first.
    """

    source: str
    sentences: int
    exact: int
    near: int
    long_sentences: int
    long_exact: int
    long_near: int
    leaks: list[Leak]


class LeakFinder:
    """Looks for the sentences of a set in utterances as they come."""

    def __init__(self, source: str, sentences: Sequence[str], threshold: float):
        """Args:
        source: the set's file.
        sentences: its sentences.
        threshold: the share of common trigrams from which two are near-duplicates.
        """
        self._source = source
        self._threshold = threshold
        self._sentences: dict[str, str] = {}
        for sentence in sentences:
            if key := _normalize(sentence):
                self._sentences.setdefault(key, sentence)
        self._keys = list(self._sentences)
        self._columns: dict[str, int] = {}
        for key in self._keys:
            for shingle in _shingles(key):
                self._columns.setdefault(shingle, len(self._columns))
        self._matrix, self._sizes = self._vectors(self._keys)
        self._best: dict[int, Leak] = {}
        self._waiting: dict[str, tuple[str, str]] = {}

    def add(self, session_id: str, text: str) -> None:
        key = _normalize(text)
        if key:
            self._waiting.setdefault(key, (session_id, text))
            if len(self._waiting) >= _CHUNK:
                self._compare()

    def _vectors(self, keys: Sequence[str]) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
        """Which of the set's trigrams each text has, and how many trigrams it has in all."""
        rows = [_shingles(key) for key in keys]
        known = [[self._columns[s] for s in row if s in self._columns] for row in rows]
        starts = np.cumsum([0, *map(len, known)])
        columns = np.array([column for row in known for column in row], np.int64)
        shape = (len(keys), len(self._columns))
        ones = np.ones(len(columns), np.float32)
        matrix = scipy.sparse.csr_matrix((ones, columns, starts), shape=shape)
        return matrix, np.array([len(row) for row in rows], np.int64)

    def _compare(self) -> None:
        keys, found = list(self._waiting), list(self._waiting.values())
        self._waiting = {}
        if not keys or not self._keys:
            return
        vectors, sizes = self._vectors(keys)
        common = (vectors @ self._matrix.T).tocoo()
        union = sizes[common.row] + self._sizes[common.col] - common.data
        similarity = common.data / union
        for place in np.flatnonzero(similarity >= self._threshold - 1e-6).tolist():
            utterance, sentence = int(common.row[place]), int(common.col[place])
            # Texts of other order can have the same trigrams; only equal texts are exact.
            equal = keys[utterance] == self._keys[sentence]
            value = 1.0 if equal else min(float(similarity[place]), 0.999)
            best = self._best.get(sentence)
            if best is None or value > best.similarity:
                session_id, text = found[utterance]
                original = self._sentences[self._keys[sentence]]
                self._best[sentence] = Leak(original, text, session_id, value)

    def finish(self) -> LeakReport:
        """What was found in all utterances."""
        self._compare()
        exact = [self._best[place].similarity == 1.0 for place in self._best]
        long = [len(self._keys[place]) >= LONG for place in self._best]
        both = sum(e and n for e, n in zip(exact, long, strict=True))
        ordered = sorted(self._best, key=lambda p: (-len(self._keys[p]), self._keys[p]))
        return LeakReport(
            source=self._source,
            sentences=len(self._keys),
            exact=sum(exact),
            near=len(exact) - sum(exact),
            long_sentences=sum(len(key) >= LONG for key in self._keys),
            long_exact=both,
            long_near=sum(long) - both,
            leaks=[self._best[place] for place in ordered],
        )


def _normalize(text: str) -> str:
    return _UNHEARD.sub("", text.casefold())


def _shingles(key: str) -> set[str]:
    if len(key) <= _SHINGLE:
        return {key}
    return {key[place : place + _SHINGLE] for place in range(len(key) - _SHINGLE + 1)}
