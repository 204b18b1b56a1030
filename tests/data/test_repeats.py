import collections
import random

import pytest

from dcse_tf.errors import InputError
from dcse_tf.search.embed import scan_lines


def scan(tmp_path, lines, most):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return scan_lines(path, most)


def test_lines_are_counted_and_repeats_come_with_the_most_frequent_first(tmp_path):
    found = scan(tmp_path, ["b", "a", "", "c", "b", "", "b", "", "", "a"], 10)
    assert found.lines == 10
    assert found.repeated == ["", "b", "a"]  # 4, 3, 2; c stands there once


def test_no_more_are_kept_than_asked_for(tmp_path):
    lines = ["b", "a", "c", "b", "a", "c", "c"]
    assert scan(tmp_path, lines, 2).repeated == ["c", "a"]  # a before b, as often
    assert scan(tmp_path, lines, 0).repeated == []


def test_long_texts_are_not_counted(tmp_path):
    assert scan(tmp_path, ["好" * 201, "好" * 200] * 2, 5).repeated == ["好" * 200]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_frequent_is_found_in_bounded_memory(tmp_path, seed):
    """Of n lines everything that stands there more than n / (10 x 2) times, wherever it stands."""
    rng = random.Random(seed)
    lines = ["yes"] * 60 + ["no"] * 50 + [f"once {number}" for number in range(400)]
    rng.shuffle(lines)
    assert {"yes", "no"} == {text for text, n in collections.Counter(lines).items() if n > 25}
    assert scan(tmp_path, lines, 2).repeated == ["yes", "no"]


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\xff\n")
    with pytest.raises(InputError, match=f"{path}:2: not UTF-8"):
        scan_lines(path, 5)
