"""Windows of response-selection files become the dialogues that they are windows of."""

import itertools

import numpy as np
import pytest
from window_cases import letters, merge, merge_letters, merge_naively

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.candidates import merge_windows

GREETINGS = ["在吗", "在的", "嗯"]  # five characters


@pytest.mark.parametrize("seed", range(4))
def test_every_dialogue_comes_back_once_with_all_its_turns_in_order(seed):
    """Windows of any width, three turns or more of which the next one has, and parts of them."""
    rng = np.random.default_rng(seed)
    dialogues, windows = [], []
    for number in range(25):
        own = [f"{number}: turn {turn}, sold" for turn in range(rng.integers(4, 20))]
        texts = GREETINGS[: rng.integers(0, 4)] + own
        turns = [Utterance("ca"[turn % 2], text) for turn, text in enumerate(texts)]
        dialogues.append(turns)
        windows.append(turns[:6])
        end = 6
        while end < len(turns):
            start = max(int(rng.integers(max(0, end - 6), end - 2)), 3)  # after the greetings
            end += int(rng.integers(1, 5))
            windows.append(turns[start:end])
    windows += [window[1:3] for window in windows]
    windows += [windows[place] for place in rng.choice(len(windows), len(windows) // 3)]
    shuffled = [windows[place] for place in rng.permutation(len(windows))]
    for order in (windows, windows[::-1], shuffled):
        merged = merge(order)
        assert sorted(turns for _, turns in merged) == sorted(dialogues)
        # The number is that of the line where the dialogue begins.
        assert all(t[: len(order[n - 1])] == order[n - 1] for n, t in merged)


@pytest.mark.parametrize("seed", range(3))
def test_windows_of_few_kinds_of_turns_are_merged_as_the_rule_says(seed):
    """Repeated turns: periods, branches, circles, windows inside others, runs across borders."""
    rng = np.random.default_rng(seed)
    kinds = [Utterance("c", "好" * size) for size in (1, 3, 4, 5, 7)] + [Utterance("a", "好好")]
    joined = 0
    for _ in range(100):
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
        numbered = list(enumerate(windows, start=1))
        named = {own: numbers[0] for numbers, _ in merge_windows(numbered) for own in numbers}
        assert set(named.values()) == {number for number, _ in merged}
        texts = dict(merged)
        for number, window in numbered:  # each is inside the dialogue that it is said to belong to
            whole = texts[named[number]]
            assert any(whole[i : i + len(window)] == window for i in range(len(whole)))
    assert joined > 40  # the cases are not trivial


@pytest.mark.parametrize("order", list(itertools.permutations(["abcde", "cdefg", "efghi"])))
def test_three_turns_in_common_join_whatever_the_order(order):
    assert merge_letters(*order) == {"abcdefghi"}


@pytest.mark.parametrize(
    ("windows", "dialogues"),
    [
        (["abcde", "defgh"], {"abcde", "defgh"}),  # two turns in common are too few
        (["abcdef", "defgh", "defxy"], {"abcdefgh", "defxy"}),  # a branch is of its own
        (["abcdef", "defgh", "cdefx"], {"abcdefx", "defgh"}),  # the longest overlap joins
        (["abcabc", "bcabca"], {"abcabca"}),
        (["abcdef", "defabc"], {"abcdefabc"}),  # each could go on from the other
        (["aaaa", "aaaaa", "aaa", "a"], {"aaaaa"}),
        (["cd", "abcdef", "acd"], {"abcdef", "acd"}),
    ],
)
def test_what_is_joined(windows, dialogues):
    assert merge_letters(*windows) == dialogues


@pytest.mark.parametrize(("sizes", "joins"), [((3, 3, 3), False), ((3, 3, 4), True)])
def test_ten_characters_in_common_join(sizes, joins):
    common = [Utterance("c", "好" * size) for size in sizes]
    before, after = letters("a"), letters("z")
    merged = [turns for _, turns in merge([before + common, common + after])]
    assert merged == ([before + common + after] if joins else [before + common, common + after])
