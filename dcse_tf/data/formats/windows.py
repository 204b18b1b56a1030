"""Reassembles dialogues from the windows in response-selection files.

Such a file has a line for every sampled response, with the turns around it. Lines whose turns
overlap come from one dialogue. As separate sessions they would count turns twice, and become
negatives of each other.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence

from dcse_tf.data.dialogue import Utterance

Window = tuple[int, list[Utterance]]
Turns = tuple[int, ...]

# A window that begins with the last turns of another continues it, if they share at least this many
# turns and characters; less may be greetings and thanks, which all dialogues share.
_JOINING_TURNS = 3
_JOINING_CHARACTERS = 10


def merge_windows(windows: Iterable[Window]) -> Iterator[Window]:
    """Yields every dialogue once, as the number of its first window and its turns.

    A window whose turns are all contained in another, consecutively, is dropped. A window that
    begins with the last three or more turns of another (of ten or more characters) is joined to it.
    Any smaller overlap counts as a different dialogue.
    """
    plan = _Plan(windows)
    for chain in plan.chains:
        joined: list[Utterance] = []
        for window, overlap in chain:
            joined += [plan.utterances[turn] for turn in plan.windows[window][overlap:]]
        yield plan.lines[chain[0][0]], joined


def name_dialogues(windows: Iterable[Window]) -> dict[int, int]:
    """Maps each window's line number to the number that `merge_windows` gives its dialogue."""
    plan = _Plan(windows)
    heads = {window: chain[0][0] for chain in plan.chains for window, _ in chain}
    names = {}
    for number, line in enumerate(plan.lines):
        while number in plan.containers:
            number = plan.containers[number]
        names[line] = plan.lines[heads[number]]
    return names


class _Plan:
    """Which windows are contained in others, and which are joined.

    Attributes:
        lines: the line number of each window.
        windows: the turns of each window, as indices into `utterances`.
        utterances: the distinct turns.
        containers: window -> one that contains it, longer or the first of several equal ones.
        chains: for each dialogue its windows in order, each with the number of turns that it shares
            with the one before; in the order in which their last lines are read.
    """

    def __init__(self, windows: Iterable[Window]):
        known: dict[tuple[str, str], int] = {}
        self.lines: list[int] = []
        self.windows: list[Turns] = []
        for line, turns in windows:
            self.lines.append(line)
            self.windows.append(tuple(known.setdefault(turn[:2], len(known)) for turn in turns))
        self.utterances = [Utterance(*turn) for turn in known]
        self.containers = _find_containers(self.windows)
        kept = [window for window in range(len(self.lines)) if window not in self.containers]
        follower = _find_followers(self.windows, kept, [len(turn.text) for turn in self.utterances])
        self.chains: list[list[tuple[int, int]]] = []
        for head in sorted(set(kept) - {window for window, _ in follower.values()}):
            chain = [(head, 0)]
            while chain[-1][0] in follower:
                chain.append(follower[chain[-1][0]])
            self.chains.append(chain)
        self.chains.sort(key=max)


def _find_containers(windows: Sequence[Turns]) -> dict[int, int]:
    """See `_Plan.containers`."""
    first: dict[Turns, int] = {}
    containers = {}
    for number, turns in enumerate(windows):
        if first.setdefault(turns, number) != number:
            containers[number] = first[turns]
    sizes = sorted(set(map(len, first)))
    for turns, number in first.items():
        for size in sizes[: sizes.index(len(turns))]:
            for start in range(len(turns) - size + 1):
                inside = first.get(turns[start : start + size])
                if inside is not None:
                    containers.setdefault(inside, number)
    return containers


def _find_followers(
    windows: Sequence[Turns], kept: Sequence[int], characters: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Finds the window that continues each one, and how many turns they share; of those `kept`,
    which are in no other, given the length of each distinct turn in characters.

    Each window has at most one follower and follows at most one. Longer overlaps are matched first;
    among equal ones, the first in the file.
    """
    follower: dict[int, tuple[int, int]] = {}
    taken: set[int] = set()
    # For every chain, `last` maps its first window to its last, `first` its last to its first.
    first, last = ({window: window for window in kept} for _ in range(2))
    longest = max((len(windows[window]) for window in kept), default=0)
    for size in range(longest - 1, _JOINING_TURNS - 1, -1):
        longer = [window for window in kept if len(windows[window]) > size]
        beginnings: dict[Turns, list[int]] = collections.defaultdict(list)
        for window in longer:
            if window not in taken:
                beginnings[windows[window][:size]].append(window)
        for window in longer:
            shared = windows[window][-size:]
            if window in follower or shared not in beginnings:
                continue
            if sum(characters[turn] for turn in shared) < _JOINING_CHARACTERS:
                continue
            # The first of its own chain would close a circle.
            able = (choice for choice in beginnings[shared] if choice != first[window])
            if (choice := next(able, None)) is not None:
                beginnings[shared].remove(choice)
                follower[window] = choice, size
                taken.add(choice)
                head, tail = first[window], last[choice]
                last[head], first[tail] = tail, head
    return follower
