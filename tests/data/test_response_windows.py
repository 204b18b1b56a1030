import itertools
import weakref

import numpy as np
import pytest
from absl import logging
from window_cases import Turns, letters, merge, merge_letters, merge_naively, spell

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.response_windows import merge_windows
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines

GREETINGS = ["在吗", "在的", "嗯"]  # five characters


def make_dialogues(rng: np.random.Generator, count: int) -> list[Turns]:
    """Turns that no other dialogue has, after greetings that all have."""
    dialogues = []
    for number in range(count):
        own = [f"{number}: turn {turn}, sold" for turn in range(rng.integers(4, 20))]
        texts = GREETINGS[: rng.integers(0, 4)] + own
        dialogues.append([Utterance("ca"[turn % 2], text) for turn, text in enumerate(texts)])
    return dialogues


def grow(rng: np.random.Generator, turns: Turns) -> list[Turns]:
    return [turns[:end] for end in (*range(2, len(turns), 2), len(turns))]


def slide(rng: np.random.Generator, turns: Turns) -> list[Turns]:
    """Windows of one width, three to five turns of which the next one has."""
    shared = int(rng.integers(3, 6))
    width = shared + int(rng.integers(1, 4))
    # Greetings are no joint: the first window goes beyond those, and the next begins there.
    starts = range(3, max(4, len(turns) - width + shared), width - shared)
    return [turns[: 3 + shared]] + [turns[start : start + width] for start in starts]


def cut_anywhere(rng: np.random.Generator, turns: Turns) -> list[Turns]:
    """Windows of any width, three turns or more of which the next one has, and parts of them."""
    windows, end = [turns[:6]], 6
    while end < len(turns):
        start = int(rng.integers(max(0, end - 6), end - 2))
        start = max(start, 3)  # after the greetings
        end = end + int(rng.integers(1, 5))
        windows.append(turns[start:end])
    for window in list(windows):
        start = int(rng.integers(0, len(window)))
        windows.append(window[start : start + int(rng.integers(1, 6))])
    return windows


@pytest.mark.parametrize("cut", [grow, slide, cut_anywhere])
@pytest.mark.parametrize("seed", range(8))
def test_every_dialogue_comes_back_once_with_all_its_turns_in_order(cut, seed):
    rng = np.random.default_rng(seed)
    dialogues = make_dialogues(rng, 25)
    windows = [window for dialogue in dialogues for window in cut(rng, dialogue)]
    again = rng.choice(len(windows), len(windows) // 3)
    windows += [windows[place] for place in again]
    shuffled = [windows[place] for place in rng.permutation(len(windows))]
    for order in (windows, windows[::-1], shuffled):
        merged = merge(order)
        assert sorted(turns for _, turns in merged) == sorted(dialogues)
        # The number is that of the line where the dialogue begins.
        for number, turns in merged:
            assert turns[: len(order[number - 1])] == order[number - 1]


@pytest.mark.parametrize("seed", range(4))
def test_windows_of_few_kinds_of_turns_are_merged_as_the_rule_says(seed):
    """Repeated turns: periods, branches, circles, windows inside others, runs across borders."""
    rng = np.random.default_rng(seed)
    kinds = [Utterance("c", "好" * size) for size in (1, 3, 4, 5, 7)] + [Utterance("a", "好好")]
    joined = 0
    for _ in range(120):
        few = int(rng.integers(2, 7))
        once = [[kinds[kind] for kind in rng.integers(0, few, 8)] for _ in range(2)]
        sources = [once[0] + once[0], once[0] + once[1], once[1] + once[0]]
        windows = []
        for _ in range(rng.integers(1, 14)):
            start = int(rng.integers(0, 12))
            windows.append(sources[rng.integers(0, 3)][start : start + int(rng.integers(1, 9))])
        merged = merge(windows)
        assert sorted(merged) == merge_naively(windows)
        joined += sum(turns != windows[number - 1] for number, turns in merged)
        # No window is lost, whatever the rule.
        runs = {tuple(t[i:j]) for _, t in merged for i in range(len(t)) for j in range(len(t) + 1)}
        assert all(tuple(window) in runs for window in windows)
    assert joined > 50  # the cases are not trivial


@pytest.mark.parametrize("order", list(itertools.permutations(["abcde", "cdefg", "efghi"])))
def test_three_turns_in_common_join_whatever_the_order(order):
    assert merge_letters(*order) == {"abcdefghi"}


@pytest.mark.parametrize(
    ("first", "second"), [("abcde", "defgh"), ("abcde", "efghi"), ("abcde", "fghij")]
)
def test_two_turns_in_common_or_fewer_do_not_join(first, second):
    assert merge_letters(first, second) == {first, second}


@pytest.mark.parametrize(("sizes", "joins"), [((3, 3, 3), False), ((3, 3, 4), True)])
def test_ten_characters_in_common_join(sizes, joins):
    """9 and 10 characters in three turns."""
    common = [Utterance("c", "好" * size) for size in sizes]
    before, after = letters("a"), letters("z")
    merged = [turns for _, turns in merge([before + common, common + after])]
    assert merged == ([before + common + after] if joins else [before + common, common + after])


def test_greetings_and_thanks_never_join_dialogues():
    """Each ends with the short turns with which the next one begins."""
    short = [Utterance("ca"[turn % 2], text) for turn, text in enumerate(GREETINGS)]
    windows = [short + letters(name) + short for name in "abcd"]
    assert [turns for _, turns in merge(windows)] == windows


def test_turns_of_other_speakers_are_other_turns():
    said_by_agent = [Utterance("agent", turn.text) for turn in letters("cde")]
    windows = [letters("abcde"), [*said_by_agent, *letters("fg")], said_by_agent]
    # The last is inside the second, not inside the first.
    assert [turns for _, turns in merge(windows)] == windows[:2]


def test_texts_that_look_alike_are_other_turns():
    windows = [[Utterance("c", text)] for text in ("好的", "好的 ", "好", "a", "A", "")]
    assert [turns for _, turns in merge(windows)] == windows


@pytest.mark.parametrize(
    "windows",
    [
        ["abcdef", "defgh", "defxy"],  # both go on from the first: the first of them is taken
        ["xyabc", "abcde", "zzabc"],  # both go before the second
    ],
)
def test_a_branch_stays_a_dialogue_of_its_own(windows):
    first = {"abcdef": "abcdefgh", "xyabc": "xyabcde"}[windows[0]]
    assert merge_letters(*windows) == {first, windows[2]}


def test_the_longest_overlap_is_the_one_that_joins():
    assert merge_letters("abcdef", "defgh", "cdefx") == {"abcdefx", "defgh"}
    assert merge_letters("yydef", "zcdef", "cdefgh") == {"yydef", "zcdefgh"}


@pytest.mark.parametrize(
    ("windows", "dialogues"),
    [
        (["abcabcabc"], {"abcabcabc"}),  # it could go on from itself
        (["abcabc", "abcabc"], {"abcabc"}),
        (["abcabc", "bcabca"], {"abcabca"}),  # five turns of the first, four of the second
        (["abcdef", "defabc"], {"abcdefabc"}),  # each could go on from the other
        (["abcdef", "defghi", "ghiabc"], {"abcdefghiabc"}),
        (["abcabcd", "cabcd", "bcdee"], {"abcabcdee"}),
        (["aaaa", "aaaaa", "aaa", "aa", "a"], {"aaaaa"}),
        (["aaaab", "aaaac"], {"aaaab", "aaaac"}),
    ],
)
def test_periods_and_circles_come_to_an_end(windows, dialogues):
    assert merge_letters(*windows) == dialogues


@pytest.mark.parametrize("inner", ["a", "c", "f", "ab", "cd", "ef", "abc", "bcd", "def", "abcdef"])
def test_a_window_inside_another_is_left_out(inner):
    assert merge_letters(inner, "abcdef", "mnop") == {"abcdef", "mnop"}
    assert merge_letters("mnop", "abcdef", inner) == {"abcdef", "mnop"}


@pytest.mark.parametrize("window", ["x", "ax", "xa", "ac", "ba", "abd", "acd", "xbc", "abcdx"])
def test_a_window_that_is_not_all_inside_stays(window):
    assert merge_letters("abcdef", window) == {"abcdef", window}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_of_equal_windows_the_first_stays(size):
    window = letters("abcd"[:size])
    assert merge([letters("xyz"), window, window, list(window)]) == [
        (1, letters("xyz")),
        (2, window),
    ]


@pytest.mark.parametrize("window", ["cd", "cde", "bcd", "bcde", "cdef", "abcdef", "cdexyz"])
def test_a_run_from_the_end_of_one_line_into_the_next_is_nothing(window):
    """Lines "abc" and "def" have no turns in common with these, though they stand together."""
    assert merge_letters("abc", "def", window, "mno") >= {window, "mno"}


def test_a_window_across_a_joint_is_part_of_the_dialogue():
    assert merge_letters("abcdef", "defghi", "cdefgh", "efgh", "bcdefg") == {"abcdefghi"}


def test_without_windows_there_are_no_dialogues():
    assert merge([]) == []


def test_bad_lines_are_counted_once_though_windows_are_read_twice(monkeypatch):
    readings, named = [], []
    monkeypatch.setattr(logging, "warning", lambda text, *values: named.append(text % values))

    def read(bad_lines):
        readings.append(bad_lines)
        for number, window in enumerate(["abcde", "", "cdefg", "", "xyz"], start=1):
            if window:
                yield number, letters(window)
            else:
                bad_lines.report("file", number, "nothing on it")

    bad_lines = BadLines(2)
    merged = sorted(merge_windows(read, bad_lines))
    assert [(number, spell(turns)) for number, turns in merged] == [(1, "abcdefg"), (5, "xyz")]
    assert (bad_lines.count, len(readings)) == (2, 2)
    assert named == ["skipped file:2: nothing on it", "skipped file:4: nothing on it"]
    with pytest.raises(InputError, match="file:4: nothing on it"):
        list(merge_windows(read, BadLines(1)))


class Held(list):
    """A list that can be watched."""


def test_only_windows_that_others_go_on_from_are_held():
    """20 windows; those on lines 4, 9 and 14 are one dialogue, 15, 17 and 19 another."""
    kin = {4: "abcde", 9: "cdefg", 14: "efghi", 15: "mnopq", 17: "opqrs", 19: "qrstu"}
    held: list[weakref.ref] = []
    most: list[int] = []

    def read(bad_lines):
        held.clear()
        most.clear()
        for number in range(1, 21):
            own = [Utterance("c", f"window {number} turn {turn}") for turn in range(5)]
            turns = Held(letters(kin[number]) if number in kin else own)
            held.append(weakref.ref(turns))
            yield number, turns
            del turns
            most.append(sum(ref() is not None for ref in held))

    dialogues = merge_windows(read, BadLines(0))
    # A lone window comes as soon as it is read; a dialogue, when the last of its windows is.
    expected = {number: number for number in range(1, 21) if number not in kin} | {4: 14, 15: 19}
    assert {number: len(held) for number, _ in dialogues} == expected
    # One window is in hand, and three of a dialogue.
    assert max(most[:3]) <= 1
    assert max(most) <= 3 + 1
