import pytest

from dcse_tf.data import corpus
from dcse_tf.data.corpus import split_into_chunks
from dcse_tf.data.dialogue import Utterance


def make_sessions(lengths, text="您"):
    return [
        (f"s{n}", [Utterance("ab"[t % 2], f"{text}{t}", ("i",) * (t % 3)) for t in range(length)])
        for n, length in enumerate(lengths)
    ]


def sizes(sessions):
    return [len(chunk.session_ids) for chunk in split_into_chunks(iter(sessions), str)]


@pytest.mark.parametrize("turns", [1, 4, 7, 1000])
def test_chunks_hold_the_sessions_in_order(monkeypatch, turns):
    monkeypatch.setattr(corpus, "_TURNS", turns)
    sessions = make_sessions([3, 0, 1, 5, 2, 0, 0, 4, 0])
    found = [session for chunk in split_into_chunks(sessions, str) for session in chunk.sessions()]
    assert found == sessions


def test_no_sessions_are_no_chunks():
    assert sizes([]) == []


def test_a_chunk_ends_with_the_session_that_reaches_the_number_of_turns(monkeypatch):
    """A session counts for one more than its turns, so that empty ones count too."""
    monkeypatch.setattr(corpus, "_TURNS", 6)
    assert sizes(make_sessions([2, 2, 2, 5, 1, 1])) == [2, 2, 2]
    assert sizes(make_sessions([20, 1, 1, 20])) == [1, 3]
    assert sizes(make_sessions([0] * 14)) == [6, 6, 2]


def test_a_chunk_ends_with_the_session_that_reaches_the_number_of_characters(monkeypatch):
    """Turns of 5 characters, four and the number."""
    monkeypatch.setattr(corpus, "_CHARACTERS", 20)
    assert sizes(make_sessions([2, 2, 2, 5, 1, 2, 1], text="您好您好")) == [2, 2, 3]
