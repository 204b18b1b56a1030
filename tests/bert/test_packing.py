"""First fit decreasing, held against the algorithm as it is told, one item after another."""

import numpy as np
import pytest
import tensorflow as tf

from dcse_tf.bert.layout import first_fit_decreasing


def pack(lengths, row_length):
    row, start, rows = first_fit_decreasing(tf.constant(lengths, tf.int32), row_length)
    return row.numpy().tolist(), start.numpy().tolist(), int(rows)


def pack_one_by_one(lengths, row_length):
    ends, row, start = [], [0] * len(lengths), [0] * len(lengths)
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = (r for r, end in enumerate(ends) if end + lengths[item] <= row_length)
        row[item] = next(fitting, len(ends))
        if row[item] == len(ends):
            ends.append(0)
        start[item] = ends[row[item]]
        ends[row[item]] += lengths[item]
    return row, start, len(ends)


def test_rows_worked_out_by_hand():
    # In order of length: 7 | 5 | 4 and 4, of which 7+? no, 5+4 = 9, the second 4 a row of its own
    # | 3 beside the 7 | 1 beside the 5 and the 4.
    assert pack([4, 1, 7, 3, 5, 4], 10) == ([1, 1, 0, 0, 1, 2], [5, 9, 0, 7, 0, 0], 3)


@pytest.mark.parametrize("row_length", [9, 16, 50])
@pytest.mark.parametrize("seed", range(5))
def test_any_lengths_are_placed_as_one_by_one(seed, row_length):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 10, rng.integers(1, 60)).tolist()
    assert pack(lengths, row_length) == pack_one_by_one(lengths, row_length)


def test_in_a_graph_it_is_the_same():
    lengths = np.random.default_rng(9).integers(1, 30, 80).tolist()
    dataset = tf.data.Dataset.from_tensors(tf.constant(lengths, tf.int32))
    ((row, start, rows),) = dataset.map(lambda x: first_fit_decreasing(x, 32))
    assert (row.numpy().tolist(), start.numpy().tolist(), int(rows)) == pack_one_by_one(lengths, 32)


def test_items_of_no_length_take_no_room():
    assert pack([0, 3, 0, 2], 4) == ([0, 0, 0, 1], [0, 0, 0, 0], 2)


def test_real_lengths_fill_the_rows():
    """Lengths as of short messages: at least 95% of the cells have a token."""
    lengths = np.clip(np.random.default_rng(0).poisson(12, 400), 3, 50)
    rows = pack(lengths.tolist(), 128)[2]
    assert lengths.sum() / (rows * 128) > 0.95
