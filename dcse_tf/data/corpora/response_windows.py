"""Windows of dialogues, as response-selection files have them, back to dialogues.

Such a file has a line for every response that was drawn, with the turns around it. Lines whose
turns overlap come from one dialogue; as sessions of their own they would count turns twice, and be
negatives of each other.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from dcse_tf.data.dialogue import Utterance
from dcse_tf.input_files import BadLines

Window = tuple[int, list[Utterance]]

# A window that begins with the last turns of another goes on from it, if that is this many turns
# and characters; fewer are greetings and thanks, which all dialogues share.
_JOINING_TURNS = 3
_JOINING_CHARACTERS = 10
_NONE = -1


def merge_windows(
    read: Callable[[BadLines], Iterable[Window]], bad_lines: BadLines
) -> Iterator[Window]:
    """Yields every dialogue once.

    A window whose turns all stand in another, one after the other, is left out. A window that
    begins with the last three turns or more of another (ten characters or more) is joined to it.
    Anything less is taken for another dialogue.

    The windows are read twice: first for fingerprints of the turns, eight bytes each, then for
    the texts. Only texts of windows that others go on from are held, until the last is read.

    Args:
        read: reads the windows, (line number, turns), the same every time.
        bad_lines: where lines that cannot be used are counted, once.
    """
    turns, starts = _fingerprint_turns(read(bad_lines))
    inside = _find_contained(turns, starts)
    follower, overlap = _find_followers(turns, starts, inside)
    chain_of, length_of = _chains(follower)
    pending: dict[int, dict[int, Window]] = {}
    for index, window in enumerate(read(BadLines(bad_lines.limit, named=0))):
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


def _fingerprint_turns(windows: Iterable[Window]) -> tuple[np.ndarray, np.ndarray]:
    """uint64 `[turns]` and the windows' starts, `[windows + 1]`.

    The lowest four bits say how many characters a turn has, up to 15.
    """
    chunks: list[np.ndarray] = []
    lengths = []
    for _, window in windows:
        chunks.append(np.array([_fingerprint(turn) for turn in window], np.uint64))
        lengths.append(len(window))
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    return np.concatenate([np.zeros(0, np.uint64), *chunks]), starts


def _fingerprint(turn: Utterance) -> int:
    content = f"{turn.role}\t{turn.text}".encode()
    digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    return digest & ~15 | min(15, len(turn.text))


def _occurrences(
    turns: np.ndarray, starts: np.ndarray, size: int, needles: np.ndarray
) -> Iterator[tuple[int, int]]:
    """(window, place) pairs: the first `size` turns of a window stand at the place, elsewhere.

    Args:
        turns: fingerprints.
        starts: the windows' starts.
        size: how many turns are compared here.
        needles: the windows whose beginnings are looked for.
    """
    count = len(turns) - size + 1
    if count <= 0 or not len(needles):
        return
    keys = np.zeros(count, np.uint64)
    for place in range(size):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + turns[place : place + count]
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    wanted = keys[starts[needles]]
    left = np.searchsorted(ordered, wanted, "left")
    right = np.searchsorted(ordered, wanted, "right")
    for needle, low, high in zip(needles.tolist(), left.tolist(), right.tolist()):
        for place in order[low:high].tolist():
            if place != starts[needle]:
                yield needle, place


def _find_contained(turns: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """bool `[windows]`: which stand within another; of equal ones all but the first."""
    lengths = np.diff(starts)
    inside = np.zeros(len(lengths), bool)
    for size in (1, 2, 3):
        exact = lengths == size if size < 3 else lengths >= size
        for window, place in _occurrences(turns, starts, size, np.flatnonzero(exact)):
            other = int(np.searchsorted(starts, place, "right")) - 1
            length = lengths[window]
            if inside[window] or other == window or place + length > starts[other + 1]:
                continue
            if not np.array_equal(
                turns[place : place + length], turns[starts[window] : starts[window + 1]]
            ):
                continue
            inside[window] = lengths[other] > length or other < window
    return inside


def _find_followers(
    turns: np.ndarray, starts: np.ndarray, inside: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each window the one that goes on from it, and by how many turns they overlap.

    Each has at most one follower and goes on from at most one, the longest overlap first.
    """
    found = []
    lengths = np.diff(starts)
    candidates = np.flatnonzero(~inside & (lengths > _JOINING_TURNS))
    for window, place in _occurrences(turns, starts, _JOINING_TURNS, candidates):
        other = int(np.searchsorted(starts, place, "right")) - 1
        shared = int(starts[other + 1] - place)
        if inside[other] or other == window or not _JOINING_TURNS <= shared < lengths[window]:
            continue
        common = turns[starts[window] : starts[window] + shared]
        if not np.array_equal(turns[place : place + shared], common):
            continue
        if int((common & np.uint64(15)).sum()) >= _JOINING_CHARACTERS:
            found.append((-shared, other, window))
    follower = np.full(len(lengths), _NONE)
    overlap = np.zeros(len(lengths), np.int64)
    taken = np.zeros(len(lengths), bool)
    for negative_shared, window, after in sorted(found):
        if follower[window] == _NONE and not taken[after] and not _leads(follower, after, window):
            follower[window], overlap[window], taken[after] = after, -negative_shared, True
    return follower, overlap


def _leads(follower: np.ndarray, start: int, end: int) -> bool:
    """Whether following from `start` comes to `end`: joining them would close a circle."""
    while start not in (_NONE, end):
        start = int(follower[start])
    return start == end


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
