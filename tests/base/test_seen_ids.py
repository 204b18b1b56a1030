"""Which ids have been seen, and the grouping of rows that asks for it."""

import pathlib

import numpy as np
import pytest

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import reading
from dcse_tf.data.formats.reading import SeenIds, group_rows
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines

PATH = pathlib.Path("chat.tsv")
each_buffer = pytest.mark.parametrize("buffer", [1, 2, 3, 4, 1000])


@each_buffer
def test_ids_are_seen_from_when_they_are_added(monkeypatch, buffer):
    monkeypatch.setattr(reading, "_RECENT", buffer)
    ids = [*(f"session {number}" for number in range(11)), "", " ", "好", "好\n", "a" * 10**5]
    seen = SeenIds()
    for place, text in enumerate(ids):
        assert [other in seen for other in ids] == [i < place for i in range(len(ids))]
        seen.add(text)
    assert all(text in seen for text in ids)


@each_buffer
def test_ids_are_seen_as_in_a_set(monkeypatch, buffer):
    """Ids come again and again, before and after the buffer is emptied."""
    monkeypatch.setattr(reading, "_RECENT", buffer)
    rng = np.random.default_rng(buffer)
    seen, expected = SeenIds(), set()
    for number in rng.integers(0, 60, 150):
        text = f"id-{number}"
        assert (text in seen) == (text in expected)
        seen.add(text)
        expected.add(text)
        assert text in seen
    assert {f"id-{number}" for number in range(80) if f"id-{number}" in seen} == expected


def test_two_sets_of_ids_know_nothing_of_each_other(monkeypatch):
    monkeypatch.setattr(reading, "_RECENT", 2)
    first, second = SeenIds(), SeenIds()
    for number in range(5):
        first.add(str(number))
    assert not any(str(number) in second for number in range(5))


def test_memory_is_eight_bytes_an_id_beyond_the_buffer():
    """Else a set of texts would do."""
    seen = SeenIds()
    for number in range(150_000):
        seen.add(str(number))
    assert "0" in seen
    assert "149999" in seen
    assert "150000" not in seen
    arrays = [value for value in vars(seen).values() if isinstance(value, np.ndarray)]
    buffers = [value for value in vars(seen).values() if isinstance(value, set)]
    assert sum(array.nbytes for array in arrays) == 8 * 2 * 2**16
    assert sum(map(len, buffers)) == 150_000 - 2 * 2**16


def rows(text):
    """A row a letter, the session; line 1, 2, ..., each saying its line."""
    return [
        (number, name, Utterance("u", str(number))) for number, name in enumerate(text, start=1)
    ]


def group(text, limit):
    bad_lines = BadLines(limit)
    sessions = group_rows(iter(rows(text)), PATH, bad_lines)
    found = [(name, [int(turn.text) for turn in turns]) for name, turns in sessions]
    return found, bad_lines.count


@each_buffer
@pytest.mark.parametrize(
    ("text", "sessions", "bad"),
    [
        ("", [], 0),
        ("a", [("a", [1])], 0),
        ("aabccc", [("a", [1, 2]), ("b", [3]), ("c", [4, 5, 6])], 0),
        ("aba", [("a", [1]), ("b", [2])], 1),
        # A piece of an ended session does not part the one in whose midst it stands.
        ("abaabb", [("a", [1]), ("b", [2, 5, 6])], 2),
        ("abcdab", [("a", [1]), ("b", [2]), ("c", [3]), ("d", [4])], 2),
        ("abcdabcda", [("a", [1]), ("b", [2]), ("c", [3]), ("d", [4, 8])], 4),
    ],
)
def test_rows_of_a_session_stand_together(monkeypatch, buffer, text, sessions, bad):
    monkeypatch.setattr(reading, "_RECENT", buffer)
    assert group(text, limit=bad) == (sessions, bad)
    if bad:
        with pytest.raises(InputError, match="ended before this line"):
            group(text, limit=bad - 1)


def test_the_row_of_an_ended_session_is_named():
    with pytest.raises(InputError, match=r"^chat\.tsv:5: session 'b' ended before this line"):
        group("aabcb", limit=0)


def test_a_session_is_yielded_when_the_next_begins():
    read = []

    def watched():
        for row in rows("aabbc"):
            read.append(row[0])
            yield row

    sessions = group_rows(watched(), PATH, BadLines(0))
    assert read == []
    assert [(name, list(read)) for name, _ in sessions] == [
        ("a", [1, 2, 3]),
        ("b", [1, 2, 3, 4, 5]),
        ("c", [1, 2, 3, 4, 5]),
    ]
