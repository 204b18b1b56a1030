"""Windows of dialogues, and the rule of merging them written as plainly as it can be."""

from collections.abc import Iterable, Sequence

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.candidates import merge_windows

Turns = list[Utterance]


def letters(text: str) -> Turns:
    """A turn a letter, each of 12 characters: "aB" is two turns of two different texts."""
    return [Utterance("customer", f"{letter} says a lot") for letter in text]


def spell(turns: Sequence[Utterance]) -> str:
    return "".join(turn.text[0] for turn in turns)


def merge(windows: Iterable[Turns]) -> list[tuple[int, Turns]]:
    """What merge_windows makes of windows on lines 1, 2, ..."""
    return [(own[0], turns) for own, turns in merge_windows(enumerate(windows, start=1))]


def merge_letters(*windows: str) -> set[str]:
    """The same for windows that are spelled, none of the results being there twice."""
    merged = [spell(turns) for _, turns in merge(map(letters, windows))]
    assert len(set(merged)) == len(merged)
    return set(merged)


def merge_naively(windows: Sequence[Turns]) -> list[tuple[int, Turns]]:
    """Compares all pairs of windows; a turn is one character, so that windows are strings.

    Three turns join, if they have ten characters; the longest overlap first, then the first line.
    """
    turn_of: dict[Utterance, str] = {}
    for turns in windows:
        for turn in turns:
            turn_of.setdefault(turn, chr(0x10000 + len(turn_of)))
    characters = {char: len(turn.text) for turn, char in turn_of.items()}
    texts = ["".join(turn_of[turn] for turn in turns) for turns in windows]
    kept = [
        i
        for i, text in enumerate(texts)
        if not any(text in other and (text != other or j < i) for j, other in enumerate(texts))
    ]
    joints = [
        (-size, i, j)
        for i in kept
        for j in kept
        if i != j and texts[j][:3] in texts[i]
        for size in range(3, min(len(texts[i]), len(texts[j])))
        if texts[i].endswith(texts[j][:size])
        and sum(characters[char] for char in texts[j][:size]) >= 10
    ]
    after: dict[int, tuple[int, int]] = {}
    heads = set(kept)
    for size, i, j in sorted(joints):
        end = j
        while end in after:
            end = after[end][0]
        if i not in after and j in heads and end != i:
            after[i] = (j, -size)
            heads.remove(j)
    merged = []
    for head in sorted(heads):
        turns, window = list(windows[head]), head
        while window in after:
            window, size = after[window]
            turns += windows[window][size:]
        merged.append((head + 1, turns))
    return merged
