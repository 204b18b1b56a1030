"""Assigns sessions to train, dev and test: copies of a session go to the same split."""

import array
from collections.abc import Iterable

import numpy as np

from dcse_tf.data.dialogue import Turn, fold_spaces
from dcse_tf.data.formats import RawSession
from dcse_tf.data.formats.reading import SeenIds
from dcse_tf.data.manifest import SPLITS
from dcse_tf.data.options import SplitOptions
from dcse_tf.files import hash_number

_BY_CHANCE = 20  # characters


def content_key(turns: Iterable[Turn]) -> int | None:
    """A number that copies of a session share: sessions with equal texts, whatever their speakers,
    ignoring case, white space and how the text is divided into turns.

    None for a session of fewer than 20 characters, such as two greetings. Those are often equal by
    chance, so that keeping them together would change the shares of the splits.
    """
    text = fold_spaces(" ".join([turn[1] for turn in turns])).casefold()
    return hash_number(text) if len(text) >= _BY_CHANCE else None


class Splitter:
    """Finds the split of each session, in the order in which they are read.

    The id decides, except that a copy of an earlier session goes where that one went; otherwise
    training would see what dev and test hold out. The id of the dialogue alone decides about
    sessions with given candidates, which are pieces of dialogues that must stay together.

    Memory: eight bytes for each session.
    """

    def __init__(self, config: SplitOptions):
        self._config = config
        self._seen = SeenIds()
        self._held_out = {"dev": SeenIds(), "test": SeenIds()}

    def __call__(self, session: RawSession) -> str:
        session_id, turns, *given = session
        if given:
            return self._config.split_of(given[0].dialogue)
        split = self._config.split_of(session_id)
        if (key := content_key(turns)) is None:
            return split
        text = str(key)
        if text in self._seen:
            return next((name for name, seen in self._held_out.items() if text in seen), "train")
        self._seen.add(text)
        if split in self._held_out:
            self._held_out[split].add(text)
        return split


class Findings:
    """Counts what deserves attention in a prepared corpus.

    Attributes:
        tokens: number of tokens, without [CLS], [SEP] and a prefix.
        unknown: number of unknown tokens among them.
        keys: the `content_key` of each session of a split that has one.
    """

    def __init__(self) -> None:
        self.tokens = self.unknown = 0
        self.keys = {name: array.array("Q") for name in SPLITS}

    def add(self, other: "Findings") -> None:
        """Adds what was found in other sessions."""
        self.tokens += other.tokens
        self.unknown += other.unknown
        for name, keys in other.keys.items():
            self.keys[name].extend(keys)

    def count(self) -> dict[str, int]:
        """The counts, see `Manifest.found`."""
        train, *others = (np.frombuffer(self.keys[name], np.uint64) for name in SPLITS)
        held_out = np.concatenate(others)
        keys = np.concatenate([train, held_out])
        return {
            "tokens": self.tokens,
            "unknown_tokens": self.unknown,
            "copies": len(keys) - len(np.unique(keys)),
            "held_out_copies": int(np.isin(held_out, train).sum()),
        }
