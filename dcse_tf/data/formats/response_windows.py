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
    prints = _Fingerprints(read(bad_lines))
    inside = _find_containers(prints) != _NONE
    follower, overlap = _find_followers(prints, inside)
    chain_of, length_of = _chains(follower)
    pending: dict[int, dict[int, Window]] = {}
    for index, window in enumerate(read(bad_lines.again())):
        if inside[index]:
            continue
        head = chain_of.get(index)
        if head is None:
            yield window
            continue
        members = pending.setdefault(head, {})
        members[index] = window
        if len(members) == length_of[head]:
            yield _join(members, head, follower, overlap)
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
    lines = array.array("q")

    def number() -> Iterator[Window]:
        for line, turns in read(bad_lines):
            lines.append(line)
            yield line, turns

    prints = _Fingerprints(number())
    container = _find_containers(prints)
    follower, _ = _find_followers(prints, container != _NONE)
    chain_of, _ = _chains(follower)
    windows = np.arange(len(lines))
    while (inside := container[windows] != _NONE).any():
        windows = np.where(inside, container[windows], windows)
    heads = (chain_of.get(window, window) for window in windows.tolist())
    return {line: lines[head] for line, head in zip(lines, heads, strict=True)}


class _Fingerprints:
    """Rolling fingerprints of all turns: one subtraction gives the fingerprint of any run of turns.

    Attributes:
        lengths: int64 `[windows]`, number of turns of each window.
        starts: int64 `[windows + 1]`, where each window begins in the list of all turns.
        characters: int64 `[turns + 1]`, number of characters before each turn, counting at most
            _JOINING_CHARACTERS per turn.
    """

    def __init__(self, windows: Iterable[Window]):
        turns, characters = array.array("Q"), array.array("B")
        lengths = array.array("q")
        for _, window in windows:
            turns.extend(map(_fingerprint, window))
            characters.extend(min(_JOINING_CHARACTERS, len(turn.text)) for turn in window)
            lengths.append(len(window))
        self.lengths = np.array(lengths, np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        self.characters = np.concatenate([[0], np.cumsum(np.array(characters, np.int64))])
        # Sums of turn * base^place, modulo 2^64; base is odd, so it has an inverse.
        self._powers = np.cumprod(np.full(len(turns), _BASE, np.uint64))
        terms = np.array(turns, np.uint64) * self._powers
        self._sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        self._inverses = np.cumprod(np.full(len(turns) + 1, pow(_BASE, -1, 2**64), np.uint64))

    def runs(self, places: np.ndarray, size: int) -> np.ndarray:
        """Fingerprints of the runs of `size` turns that begin at the given turns."""
        return (self._sums[places + size] - self._sums[places]) * self._inverses[places]


def _fingerprint(turn: Utterance) -> int:
    return hash_number(f"{turn.role}\t{turn.text}")


def _find_containers(prints: _Fingerprints) -> np.ndarray:
    """For each window the one that contains it, int `[windows]`: a longer one, or else the first of
    several equal ones; -1 if no other window contains it.
    """
    starts, lengths = prints.starts, prints.lengths
    container = np.full(len(lengths), _NONE)
    for size in np.unique(lengths).tolist():
        windows = np.flatnonzero(lengths == size)
        keys, first, which = np.unique(
            prints.runs(starts[windows], size), return_index=True, return_inverse=True
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
        runs = prints.runs(np.repeat(starts[longer], room) + within, size)
        known = np.flatnonzero(np.isin(runs, keys))
        found, place = np.unique(runs[known], return_index=True)
        owners = np.repeat(longer, room)[known[place]]
        container[first[np.searchsorted(keys, found)]] = owners
    return container


def _find_followers(prints: _Fingerprints, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each window the one that continues it (-1 for none), and the number of turns they share.

    Each window has at most one follower and follows at most one. Longer overlaps are matched first;
    among equal ones, the first in the file.
    """
    starts, lengths, characters = prints.starts, prints.lengths, prints.characters
    follower = np.full(len(lengths), _NONE)
    overlap = np.zeros(len(lengths), np.int64)
    taken = np.zeros(len(lengths), bool)
    # For every chain, `last` maps its first window to its last, and `first` its last to its first.
    first, last = np.arange(len(lengths)), np.arange(len(lengths))
    # Both windows must be longer than their overlap.
    longest = int(np.sort(lengths)[-2]) if len(lengths) > 1 else 0
    for size in range(longest - 1, _JOINING_TURNS - 1, -1):
        able = ~inside & (lengths > size)
        ends = starts[1:] - size
        enough = characters[starts[1:]] - characters[ends] >= _JOINING_CHARACTERS
        before = np.flatnonzero(able & enough & (follower == _NONE))
        after = np.flatnonzero(able & ~taken)
        endings, beginnings = prints.runs(ends[before], size), prints.runs(starts[after], size)
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


def _chains(follower: np.ndarray) -> tuple[dict[int, int], dict[int, int]]:
    """The first window of each joined window's chain, and the number of windows of each chain."""
    chain_of, length_of = {}, {}
    for head in np.setdiff1d(np.flatnonzero(follower != _NONE), follower).tolist():
        window, count = head, 0
        while window != _NONE:
            chain_of[window] = head
            window, count = int(follower[window]), count + 1
        length_of[head] = count
    return chain_of, length_of


def _join(
    members: dict[int, Window], head: int, follower: np.ndarray, overlap: np.ndarray
) -> Window:
    number, turns = members[head]
    joined, window = list(turns), head
    while follower[window] != _NONE:
        shared, window = int(overlap[window]), int(follower[window])
        joined += members[window][1][shared:]
    return number, joined
