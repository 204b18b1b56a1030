"""Counts over a corpus of dialogues, in one pass. No TensorFlow here."""

import array
import collections
import dataclasses
import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from dcse_tf.data.dialogue import Session

_CHUNK = 4096  # utterances counted at a time
_FREQUENT = 20  # utterances named
_CANDIDATES = 20_000  # texts held while looking for them
_LONG_SESSION = 1000  # turns; a histogram needs no more

# list[str] to (tokens with [CLS] and [SEP], unknown ones) of each.
CountTokens = Callable[[list[str]], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Lengths:
    """How long things are: `counts[n]` of them have length n.

    Attributes:
        total: the sum of all lengths.
    """

    counts: dict[int, int]
    total: int

    @classmethod
    def of(cls, counts: collections.Counter[int]) -> "Lengths":
        return cls(dict(sorted(counts.items())), sum(n * count for n, count in counts.items()))

    def share_above(self, limit: int) -> float:
        """Share of things longer than a limit, 0 to 1."""
        number = sum(self.counts.values())
        return sum(count for n, count in self.counts.items() if n > limit) / max(1, number)

    def mean(self) -> float:
        return self.total / max(1, sum(self.counts.values()))

    def quantile(self, share: float) -> int:
        """The smallest length that this share of things do not go beyond."""
        wanted, seen = share * sum(self.counts.values()), 0
        for length, count in self.counts.items():
            seen += count
            if seen >= wanted:
                return length
        return 0


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What a corpus holds. Shares are 0 to 1.

    Attributes:
        speakers, intents: turns of each, most frequent first; a turn of several intents counts
            for each.
        labelled_turns: turns with an intent.
        turns_a_session, words_an_utterance, characters_an_utterance, tokens_an_utterance: lengths;
            the last is None without a tokenizer.
        unknown_tokens: how many tokens are [UNK].
        repeated_utterances: share of the turns whose text another turn has, case apart.
        repeated_sessions: share of the sessions all of whose texts another session has.
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
    """Counts sessions as they come. Memory grows by sixteen bytes a turn and a session, no more."""

    def __init__(self, split_words: Callable[[str], list[str]], count_tokens: CountTokens | None):
        """Args:
        split_words: a text's words.
        count_tokens: counts WordPiece tokens; None to leave them out.
        """
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
        self._sessions.append(_fingerprint("\n".join(texts)))
        self._texts.extend(map(_fingerprint, texts))
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
        if len(self._waiting) >= _CHUNK:
            self._count_waiting()

    def _count_waiting(self) -> None:
        if self._count_tokens and self._waiting:
            tokens, unknown = self._count_tokens(self._waiting)
            self._tokens.update(tokens.tolist())
            self._unknown += int(unknown.sum())
        self._waiting = []

    def finish(self) -> Statistics:
        """The counts of all sessions."""
        self._count_waiting()
        texts, counts = np.unique(np.frombuffer(self._texts, np.uint64), return_counts=True)
        # The candidates' own counts begin where they were last forgotten; these are exact.
        exact = {
            text: int(counts[np.searchsorted(texts, np.uint64(_fingerprint(text)))])
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


def _fingerprint(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _repeated_share(fingerprints: Sequence[int]) -> float:
    _, counts = np.unique(np.frombuffer(fingerprints, np.uint64), return_counts=True)  # type: ignore[call-overload]
    return float(counts[counts > 1].sum() / max(1, len(fingerprints)))
