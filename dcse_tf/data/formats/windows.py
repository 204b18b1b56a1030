"""Reassembles dialogues from the windows in response-selection files.

Such a file has a line for every sampled response, with the turns around it. Lines whose turns
overlap come from one dialogue. As separate sessions they would count turns twice, and become
negatives of each other.
"""

import array
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from dcse_tf.data.dialogue import Utterance
from dcse_tf.files import hash_number
from dcse_tf.input_files import BadLines

Window = tuple[int, list[Utterance]]

# A window that begins with the last turns of another continues it, if they share at least this many
# turns and characters; less may be greetings and thanks, which all dialogues share.
_JOINING_TURNS = 3
_JOINING_CHARACTERS = 10
_NONE = -1
_BASE = 0x9E3779B97F4A7C15


def merge_windows(
    read: Callable[[BadLines], Iterable[Window]], bad_lines: BadLines
) -> Iterator[Window]:
    """Yields every dialogue once.

    A window whose turns are all contained in another, consecutively, is dropped. A window that
    begins with the last three or more turns of another (of ten or more characters) is joined to it.
    Any smaller overlap counts as a different dialogue.

    The windows are read twice: first for fingerprints of the turns, eight bytes each, then for the
    texts. Only windows to be joined are held in memory, until the last of their dialogue is read.

    Args:
        read: reads the windows as (line number, turns), the same every time.
        bad_lines: counts unusable lines, once.
    """
    plan = _Plan(read(bad_lines))
    pending: dict[int, dict[int, Window]] = {}
    for index, window in enumerate(read(bad_lines.again())):
        if plan.container[index] != _NONE:
            continue
        if index not in plan.chain_of:
            yield window
            continue
        head = plan.chain_of[index]
        members = pending.setdefault(head, {})
        members[index] = window
        if len(members) == plan.length_of[head]:
            yield members[head][0], plan.join(members, head)
            del pending[head]


def name_dialogues(
    read: Callable[[BadLines], Iterable[Window]], bad_lines: BadLines
) -> dict[int, int]:
    """Finds the dialogue that each window belongs to, as `merge_windows` would merge them.

    Args:
        read, bad_lines: as in `merge_windows`, but the windows are read only once.

    Returns:
        A dict from each window's line number to the number that `merge_windows` gives its dialogue.
    """
    plan = _Plan(read(bad_lines))
    windows = np.arange(len(plan.lines))
    while (inside := plan.container[windows] != _NONE).any():
        windows = np.where(inside, plan.container[windows], windows)
    heads = (plan.chain_of.get(window, window) for window in windows.tolist())
    return {line: plan.lines[head] for line, head in zip(plan.lines, heads, strict=True)}


class _Plan:
    """Which windows are contained in others, and which are joined.

    Rolling fingerprints of all turns give that of any run of turns by one subtraction.

    Attributes:
        lines: the line number of each window.
        container: int `[windows]`, a window that contains it, longer or the first of several equal
            ones; -1 if no other window does.
        chain_of: joined window -> the first of its chain.
        length_of: the first window of a chain -> how many the chain has.
    """

    def __init__(self, windows: Iterable[Window]):
        self.lines, lengths = array.array("q"), array.array("q")
        turns, characters = array.array("Q"), array.array("B")
        for line, window in windows:
            self.lines.append(line)
            lengths.append(len(window))
            turns.extend(hash_number(f"{turn.role}\t{turn.text}") for turn in window)
            characters.extend(min(_JOINING_CHARACTERS, len(turn.text)) for turn in window)
        self._lengths = np.array(lengths, np.int64)
        # Where each window begins among all turns, and the number of characters before each turn.
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64)
        self._characters = np.concatenate([[0], np.cumsum(np.array(characters, np.int64))])
        # Sums of turn * base^place, modulo 2^64; base is odd, so it has an inverse.
        powers = np.cumprod(np.full(len(turns), _BASE, np.uint64))
        sums = np.cumsum(np.array(turns, np.uint64) * powers, dtype=np.uint64)
        self._sums = np.concatenate([np.zeros(1, np.uint64), sums])
        self._inverses = np.cumprod(np.full(len(turns) + 1, pow(_BASE, -1, 2**64), np.uint64))

        self.container = self._find_containers()
        self._follower, self._overlap = self._find_followers()
        self.chain_of: dict[int, int] = {}
        self.length_of: dict[int, int] = {}
        heads = np.setdiff1d(np.flatnonzero(self._follower != _NONE), self._follower)
        for head in heads.tolist():
            chain = list(self._follow(head))
            self.chain_of |= dict.fromkeys(chain, head)
            self.length_of[head] = len(chain)

    def _follow(self, window: int) -> Iterator[int]:
        while window != _NONE:
            yield window
            window = int(self._follower[window])

    def join(self, members: dict[int, Window], head: int) -> list[Utterance]:
        """The turns of a chain, given its windows by index."""
        joined: list[Utterance] = []
        shared = 0
        for window in self._follow(head):
            joined += members[window][1][shared:]
            shared = int(self._overlap[window])
        return joined

    def _runs(self, places: np.ndarray, size: int) -> np.ndarray:
        """Fingerprints of the runs of `size` turns that begin at the given turns."""
        return (self._sums[places + size] - self._sums[places]) * self._inverses[places]

    def _find_containers(self) -> np.ndarray:
        starts, lengths = self._starts, self._lengths
        container = np.full(len(lengths), _NONE)
        for size in np.unique(lengths).tolist():
            windows = np.flatnonzero(lengths == size)
            keys, first, which = np.unique(
                self._runs(starts[windows], size), return_index=True, return_inverse=True
            )
            first = windows[first]
            container[windows] = first[which]
            container[first] = _NONE
            longer = np.flatnonzero(lengths > size)
            if not len(longer):
                continue
            # Every position in a longer window from which at least `size` turns remain.
            room = lengths[longer] - size + 1
            within = np.arange(room.sum()) - np.repeat(np.cumsum(room) - room, room)
            runs = self._runs(np.repeat(starts[longer], room) + within, size)
            known = np.flatnonzero(np.isin(runs, keys))
            found, place = np.unique(runs[known], return_index=True)
            owners = np.repeat(longer, room)[known[place]]
            container[first[np.searchsorted(keys, found)]] = owners
        return container

    def _find_followers(self) -> tuple[np.ndarray, np.ndarray]:
        """For each window the one that continues it (-1: none), and how many turns they share.

        Each window has at most one follower and follows at most one. Longer overlaps are matched
        first; among equal ones, the first in the file.
        """
        starts, lengths, characters = self._starts, self._lengths, self._characters
        follower = np.full(len(lengths), _NONE)
        overlap = np.zeros(len(lengths), np.int64)
        taken = np.zeros(len(lengths), bool)
        # For every chain, `last` maps its first window to its last, `first` its last to its first.
        first, last = np.arange(len(lengths)), np.arange(len(lengths))
        # Both windows must be longer than their overlap.
        longest = int(np.sort(lengths)[-2]) if len(lengths) > 1 else 0
        for size in range(longest - 1, _JOINING_TURNS - 1, -1):
            able = (self.container == _NONE) & (lengths > size)
            ends = starts[1:] - size
            enough = characters[starts[1:]] - characters[ends] >= _JOINING_CHARACTERS
            before = np.flatnonzero(able & enough & (follower == _NONE))
            after = np.flatnonzero(able & ~taken)
            endings, beginnings = self._runs(ends[before], size), self._runs(starts[after], size)
            groups: dict[int, list[int]] = {}
            found = np.isin(beginnings, endings)
            for key, window in zip(beginnings[found].tolist(), after[found].tolist(), strict=True):
                groups.setdefault(key, []).append(window)
            found = np.isin(endings, beginnings)
            for key, window in zip(endings[found].tolist(), before[found].tolist(), strict=True):
                for place, choice in enumerate(groups[key]):
                    if choice != first[window]:  # joining these would close a cycle
                        follower[window], overlap[window], taken[choice] = choice, size, True
                        head, tail = first[window], last[choice]
                        last[head], first[tail] = tail, head
                        del groups[key][place]
                        break
        return follower, overlap
