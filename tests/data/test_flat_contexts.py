"""Contexts in one sequence, worked out by hand. 2 is [CLS], 3 is [SEP], other ids are words."""

import numpy as np
import pytest
import tensorflow as tf

from dcse_tf.bert.layout import Layout, fingerprint_rows
from dcse_tf.data.batch import make_batches
from dcse_tf.data.flat_contexts import flatten_contexts

# A session of five turns.
TURNS = [[2, 10, 11, 3], [2, 20, 3], [2, 30, 31, 32, 3], [2, 40, 41, 3], [2, 50, 3]]


def make_turns(rows, turns=TURNS):
    """rows: (places of the context, None where there is none; place of the response)."""
    mask = [[place is not None for place in context] for context, _ in rows]
    context = [[response if place is None else place for place in context]
               for context, response in rows]  # fmt: skip
    token_ids = tf.ragged.constant(turns, tf.int32).to_tensor()
    return {
        "token_ids": token_ids,
        "utterances": tf.range(len(turns), dtype=tf.int64),
        "response": tf.constant([response for _, response in rows]),
        "context": tf.constant(context),
        "turn_mask": tf.constant(mask),
        "session": tf.range(len(rows), dtype=tf.int64),
        "row_splits": tf.constant([0, len(rows)]),
    }


def flatten(rows, turns_before, max_tokens=99, turns=TURNS):
    """The sequences of the rows, without padding."""
    flat = flatten_contexts(make_turns(rows, turns), turns_before, max_tokens)
    assert flat["turn_mask"].numpy().tolist() == [[True]] * len(rows)
    found = tf.gather(flat["token_ids"], flat["context"][:, 0]).numpy()
    assert all((row[np.count_nonzero(row) :] == 0).all() for row in found)
    return [row[row != 0].tolist() for row in found]


def test_turns_stand_in_their_order_behind_one_cls():
    assert flatten([([0, 1], 2)], 2) == [[2, 10, 11, 3, 20, 3]]
    # Before and after the response: 1, then 3 and 4.
    assert flatten([([0, 1, 3, 4], 2)], 2) == [[2, 10, 11, 3, 20, 3, 40, 41, 3, 50, 3]]


def test_absent_turns_leave_nothing_behind():
    rows = [([None, 0, 2, 3], 1), ([None, None, 1, 2], 0), ([2, 3, None, None], 4)]
    assert flatten(rows, 2) == [
        [2, 10, 11, 3, 30, 31, 32, 3, 40, 41, 3],
        [2, 20, 3, 30, 31, 32, 3],
        [2, 30, 31, 32, 3, 40, 41, 3],
    ]


def test_one_turn_is_itself():
    assert flatten([([None, 2], 3), ([0, 1], 2)], 2)[0] == TURNS[2]


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [
        (7, [2, 11, 3, 30, 31, 32, 3]),
        (8, [2, 10, 11, 3, 30, 31, 32, 3]),
        (6, [2, 3, 30, 31, 32, 3]),
        (4, [2, 31, 32, 3]),
        (2, [2, 3]),
    ],
)
def test_with_turns_before_alone_the_beginning_is_cut(max_tokens, expected):
    assert flatten([([0, 2], 3)], 2, max_tokens) == [expected]


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [
        # Between [CLS] and the last [SEP] stand, before, 10 11 3 20 3 and, after, 40 41 3 50.
        # By nearness: 3, 40, 20, 41, 3, 3, 11, 50, 10.
        (11, [2, 10, 11, 3, 20, 3, 40, 41, 3, 50, 3]),
        (10, [2, 11, 3, 20, 3, 40, 41, 3, 50, 3]),
        (9, [2, 11, 3, 20, 3, 40, 41, 3, 3]),
        (6, [2, 20, 3, 40, 41, 3]),
        (5, [2, 20, 3, 40, 3]),
        (3, [2, 3, 3]),
    ],
)
def test_with_turns_on_both_sides_both_ends_are_cut(max_tokens, expected):
    assert flatten([([0, 1, 3, 4], 2)], 2, max_tokens) == [expected]


def test_the_room_that_one_side_leaves_is_the_others():
    # Before stand 20 3 alone; after, 31 is the fourth nearest: 30, 31 and 32 take what is left.
    assert flatten([([None, 1, 2, 3], 0)], 2, 7) == [[2, 20, 3, 30, 31, 32, 3]]


def test_rows_are_cut_each_by_itself():
    rows = [([0, 1], 2), ([1, 2], 3), ([None, 4], 0)]
    expected = [flatten([row], 2, 5)[0] for row in rows]
    assert flatten(rows, 2, 5) == expected
    assert [len(ids) for ids in expected] == [5, 5, 3]


def test_responses_stay_as_they_were():
    turns = make_turns([([0, 1], 2), ([1, 2], 3)])
    flat = flatten_contexts(turns, 2, 99)
    np.testing.assert_array_equal(flat["response"], turns["response"])
    np.testing.assert_array_equal(flat["token_ids"][:5, :5], turns["token_ids"])
    assert not flat["token_ids"][:5, 5:].numpy().any()
    for name in ("session", "row_splits"):
        np.testing.assert_array_equal(flat[name], turns[name])


def test_fingerprints_are_of_the_tokens_alone():
    """Turn 2 comes twice as a response, its text once more as turn 5; a context is turn 1."""
    turns = [*TURNS, TURNS[2]]
    flat = flatten_contexts(make_turns([([0, 1], 2), ([None, 1], 5)], turns), 2, 99)
    prints = flat["utterances"].numpy().tolist()
    # Entries 0 to 5, then the contexts [0, 1] and [1].
    assert len(prints) == 8
    assert prints[2] == prints[5]
    assert prints[7] == prints[1]
    assert len(set(prints)) == 6


def test_equal_contexts_are_one_entry_of_the_table():
    # Rows of three sessions: two say the same before their responses.
    turns = [*TURNS, *TURNS[:2], [2, 60, 3]]
    rows = [([0, 1], 2), ([5, 6], 7), ([1, 2], 3)]
    flat = flatten_contexts(make_turns(rows, turns), 2, 99)
    (batch,) = make_batches(flat, 2, tf.constant([0, 1]), 1, Layout("padded"))
    table = [tuple(i for i in row if i) for row in batch["token_ids"].numpy().tolist()]
    assert len(table) == len(set(table)) == 5  # two contexts, three responses
    index = batch["context_index"].numpy()
    assert index[0] == index[1] != index[2]


def test_equal_rows_alone_have_equal_fingerprints():
    rows = tf.constant([[1, 2, 0], [1, 2, 3], [1, 2, 0], [2, 1, 0]], tf.int32)
    first, second, third, fourth = fingerprint_rows(rows).numpy().tolist()
    assert first == third
    assert len({first, second, fourth}) == 3
