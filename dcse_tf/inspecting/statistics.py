"""Statistics of a corpus, and evaluation sentences that leak into it.

A score on sentences that the model was trained on measures memorization. Two sentences are
near-duplicates if they share enough of their character trigrams (Jaccard index). The index is
computed exactly for every pair, by a sparse product over the trigrams of the evaluation set.
"""

import array
import collections
import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse

from dcse_tf.data.dialogue import Session
from dcse_tf.data.words import list_marks
from dcse_tf.files import hash_number

_FREQUENT = 20  # how many of the most frequent utterances are reported
_CANDIDATES = 20_000  # texts held in memory while looking for them

# Texts -> for each, the number of tokens (with [CLS] and [SEP]) and of unknown tokens.
CountTokens = Callable[[list[str]], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Lengths:
    """A distribution of lengths.

    Attributes:
        counts: length -> how many items have it, by ascending length.
        total: the sum of all lengths.
    """

    counts: dict[int, int]
    total: int

    @classmethod
    def of(cls, counts: collections.Counter[int]) -> "Lengths":
        return cls(dict(sorted(counts.items())), sum(n * count for n, count in counts.items()))

    def share_above(self, limit: int) -> float:
        """Share of items longer than a limit, 0 to 1."""
        number = sum(self.counts.values())
        return sum(count for n, count in self.counts.items() if n > limit) / max(1, number)

    def mean(self) -> float:
        return self.total / max(1, sum(self.counts.values()))

    def quantile(self, share: float) -> int:
        """The smallest length that at least this share of items do not exceed."""
        wanted, seen = share * sum(self.counts.values()), 0
        for length, count in self.counts.items():
            seen += count
            if seen >= wanted:
                return length
        return 0


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Statistics of a corpus. Shares are 0 to 1.

    Attributes:
        speakers, intents: number of turns of each, most frequent first. A turn with several intents
            counts once for each.
        labelled_turns: number of turns with an intent.
        turns_a_session, words_an_utterance, characters_an_utterance, tokens_an_utterance:
            distributions of lengths; the last is None without a tokenizer.
        unknown_tokens: number of [UNK] tokens.
        repeated_utterances: share of turns whose text occurs in another turn, ignoring case.
        repeated_sessions: share of sessions whose texts equal those of another one, ignoring case.
        frequent_utterances: the most frequent texts with their counts.
    """

    sessions: int
    turns: int
    speakers: dict[str, int]
    intents: dict[str, int]
    labelled_turns: int
    turns_a_session: Lengths
    words_an_utterance: Lengths
    characters_an_utterance: Lengths
    tokens_an_utterance: Lengths | None
    unknown_tokens: int
    repeated_utterances: float
    repeated_sessions: float
    frequent_utterances: list[tuple[str, int]]


class StatisticsCollector:
    """Collects statistics from a stream of sessions.

    Memory: eight bytes for each turn and for each session, and a bounded number of texts.

    Args:
        split_words: splits a text into words.
        count_tokens: counts the tokens of texts; None to leave tokens out.
        utterances_at_a_time: about how many utterances `count_tokens` gets at a time.
    """

    def __init__(
        self,
        split_words: Callable[[str], list[str]],
        count_tokens: CountTokens | None,
        utterances_at_a_time: int = 4096,
    ):
        self._utterances_at_a_time = utterances_at_a_time
        self._split_words = split_words
        self._count_tokens = count_tokens
        self._turns, self._words = collections.Counter[int](), collections.Counter[int]()
        self._characters, self._tokens = collections.Counter[int](), collections.Counter[int]()
        self._speakers, self._intents = collections.Counter[str](), collections.Counter[str]()
        self._labelled = self._unknown = 0
        self._texts, self._sessions = array.array("Q"), array.array("Q")
        self._candidates = collections.Counter[str]()
        self._waiting: list[str] = []

    def add(self, session: Session) -> None:
        texts = [turn.text.casefold() for turn in session.turns]
        self._turns[len(texts)] += 1
        self._sessions.append(hash_number("\n".join(texts)))
        self._texts.extend(map(hash_number, texts))
        self._candidates.update(texts)
        if len(self._candidates) > _CANDIDATES:
            self._candidates = collections.Counter(
                dict(self._candidates.most_common(_CANDIDATES // 2))
            )
        for turn in session.turns:
            self._speakers[turn.role] += 1
            self._intents.update(turn.intents)
            self._labelled += bool(turn.intents)
            self._characters[len(turn.text)] += 1
            self._words[len(self._split_words(turn.text))] += 1
            self._waiting.append(turn.text)
        if len(self._waiting) >= self._utterances_at_a_time:
            self._count_waiting()

    def _count_waiting(self) -> None:
        if self._count_tokens and self._waiting:
            tokens, unknown = self._count_tokens(self._waiting)
            self._tokens.update(tokens.tolist())
            self._unknown += int(unknown.sum())
        self._waiting = []

    def finish(self) -> Statistics:
        """The statistics of all sessions added."""
        self._count_waiting()
        texts, counts = np.unique(np.frombuffer(self._texts, np.uint64), return_counts=True)
        # The counts in `_candidates` lack those of texts dropped in between; these are exact.
        exact = {
            text: int(counts[np.searchsorted(texts, np.uint64(hash_number(text)))])
            for text, _ in self._candidates.most_common(10 * _FREQUENT)
        }
        frequent = sorted(exact.items(), key=lambda item: (-item[1], item[0]))[:_FREQUENT]
        return Statistics(
            sessions=len(self._sessions),
            turns=len(self._texts),
            speakers=dict(self._speakers.most_common()),
            intents=dict(self._intents.most_common()),
            labelled_turns=self._labelled,
            turns_a_session=Lengths.of(self._turns),
            words_an_utterance=Lengths.of(self._words),
            characters_an_utterance=Lengths.of(self._characters),
            tokens_an_utterance=Lengths.of(self._tokens) if self._count_tokens else None,
            unknown_tokens=self._unknown,
            repeated_utterances=float(counts[counts > 1].sum() / max(1, len(self._texts))),
            repeated_sessions=_repeated_share(self._sessions),
            frequent_utterances=[(text, count) for text, count in frequent if count > 1],
        )


def _repeated_share(fingerprints: Sequence[int]) -> float:
    _, counts = np.unique(np.frombuffer(fingerprints, np.uint64), return_counts=True)  # type: ignore[call-overload]
    return float(counts[counts > 1].sum() / max(1, len(fingerprints)))


_IGNORED = re.compile(rf"[^\w{list_marks()}]+|_+")  # spaces and punctuation
LONG = 8  # characters; shorter sentences may recur by chance


@dataclasses.dataclass(frozen=True)
class Leak:
    """An evaluation sentence and the most similar utterance of the corpus."""

    sentence: str
    utterance: str
    session_id: str
    similarity: float


@dataclasses.dataclass(frozen=True)
class LeakReport:
    """Sentences of an evaluation set that occur in the corpus.

    Attributes:
        source: the set's file.
        sentences: number of distinct sentences, ignoring case, spaces and punctuation.
        exact: how many of them the corpus contains.
        near: how many others have a near-duplicate in the corpus.
        long_sentences, long_exact, long_near: the same for sentences of LONG characters or more,
            because shorter ones occur in almost every corpus.
        leaks: all sentences found, exact or near, longest first.
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
    """Looks for the sentences of an evaluation set in a stream of utterances.

    Args:
        source: the set's file.
        sentences: the set's sentences.
        threshold: the lowest Jaccard index of near-duplicates.
        utterances_at_a_time: how many utterances are compared at a time.
    """

    def __init__(
        self,
        source: str,
        sentences: Sequence[str],
        threshold: float,
        utterances_at_a_time: int = 2048,
    ):
        self._source = source
        self._threshold = threshold
        self._utterances_at_a_time = utterances_at_a_time
        self._sentences: dict[str, str] = {}
        for sentence in sentences:
            if key := _normalize(sentence):
                self._sentences.setdefault(key, sentence)
        self._keys = list(self._sentences)
        self._columns: dict[str, int] = {}
        for key in self._keys:
            for trigram in _trigrams(key):
                self._columns.setdefault(trigram, len(self._columns))
        self._matrix, self._sizes = self._vectors(self._keys)
        self._best: dict[int, Leak] = {}
        self._waiting: dict[str, tuple[str, str]] = {}

    def add(self, session_id: str, text: str) -> None:
        key = _normalize(text)
        if key:
            self._waiting.setdefault(key, (session_id, text))
            if len(self._waiting) >= self._utterances_at_a_time:
                self._compare()

    def _vectors(self, keys: Sequence[str]) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
        """Which of the set's trigrams each text has, `[texts, trigrams]`, and its trigram count."""
        rows = [_trigrams(key) for key in keys]
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

        # Sums of ones are exact in float32; the tolerance is for thresholds such as 0.8.
        for place in np.flatnonzero(similarity >= self._threshold - 1e-6).tolist():
            utterance, sentence = int(common.row[place]), int(common.col[place])
            # Different texts can have the same trigrams; only equal texts count as exact.
            equal = keys[utterance] == self._keys[sentence]
            value = 1.0 if equal else min(float(similarity[place]), 0.999)
            best = self._best.get(sentence)
            if best is None or value > best.similarity:
                session_id, text = found[utterance]
                original = self._sentences[self._keys[sentence]]
                self._best[sentence] = Leak(original, text, session_id, value)

    def finish(self) -> LeakReport:
        """The report on all utterances added."""
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
    return _IGNORED.sub("", text.casefold())


def _trigrams(key: str) -> set[str]:
    """The character trigrams of a text; for a shorter text, the text itself."""
    return {key[place : place + 3] for place in range(len(key) - 2)} or {key}
