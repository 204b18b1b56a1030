"""Segments taken apart, and LSTMs over them, against tables by hand, NumPy and Keras."""

import hypothesis
import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from hypothesis import strategies as st
from pair_rows import ROWS, make_table

from dcse_tf.reading.segments import (
    SegmentBiLSTM,
    SegmentLSTM,
    count_segments,
    merge_segments,
    pack_segments,
    split_segments,
    take_last,
)

DIM, UNITS = 5, 4
LENGTHS = [[2, 3], [4, 0], [0, 0], [1, 5]]
EVERY_LENGTH = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5)


def draw_inputs(lengths, extra=0, fill_seed=0, dtype="float64"):
    """What the tokens have, the same whatever the padding holds: `[rows, tokens, DIM]`."""
    rng, fill = np.random.default_rng(1), np.random.default_rng(fill_seed)
    width = max(max(sum(row) for row in lengths), 1) + extra
    inputs = fill.normal(scale=1e3, size=(len(lengths), width, DIM))
    for row, counts in zip(inputs, lengths, strict=True):
        row[: sum(counts)] = rng.normal(size=(sum(counts), DIM))
    return inputs.astype(dtype)


def build_lstm(backwards=False, dtype="float64"):
    layer = SegmentLSTM(UNITS, backwards, dtype=dtype)
    layer.build((None, None, DIM))
    rng = np.random.default_rng(2)
    layer.set_weights([rng.normal(scale=0.5, size=w.shape) for w in layer.weights])
    return layer


def read_by_reference(inputs, lengths, read):
    """`read` of every segment alone, laid out as the table of the inputs."""
    expected = np.zeros((*inputs.shape[:2], len(read(np.ones((1, DIM)))[0])))
    for row, values, counts in zip(expected, inputs, lengths, strict=True):
        start = 0
        for count in counts:
            if count:
                row[start : start + count] = read(values[start : start + count])
            start += count
    return expected


@pytest.mark.parametrize("backwards", [False, True])
def test_every_segment_is_read_as_if_it_were_alone(backwards):
    layer, inputs = build_lstm(backwards), draw_inputs(LENGTHS, extra=2)
    weights = layer.get_weights()

    def read(rows):
        return (
            reference.lstm(rows[::-1], weights)[::-1]
            if backwards
            else reference.lstm(rows, weights)
        )

    expected = read_by_reference(inputs, LENGTHS, read)
    for call in (layer, tf.function(layer)):
        output = call(tf.constant(inputs), tf.constant(LENGTHS))
        assert output.dtype == tf.float64
        np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-12)


def test_both_directions_side_by_side():
    layer, inputs = SegmentBiLSTM(UNITS, dtype="float64"), draw_inputs(LENGTHS)
    output = layer(tf.constant(inputs), tf.constant(LENGTHS))
    weights = layer.forward.get_weights(), layer.backward.get_weights()
    expected = read_by_reference(inputs, LENGTHS, lambda rows: reference.bilstm(rows, *weights))
    np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-12)


def test_output_and_gradients_are_those_of_keras():
    """One segment a row, no padding: what Keras' layer computes too."""
    layer, keras_layer = (
        build_lstm(),
        keras.layers.LSTM(UNITS, return_sequences=True, dtype="float64"),
    )
    keras_layer.build((None, None, DIM))
    keras_layer.set_weights(layer.get_weights())
    inputs = tf.constant(draw_inputs([[6, 0]] * 3))

    def differentiate(call, variables):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = call(inputs)
            loss = tf.reduce_sum(output**3)
        return output, *tape.gradient(loss, [inputs, *(v.value for v in variables)])

    lengths = tf.constant([[6, 0]] * 3)
    found = differentiate(lambda x: layer(x, lengths), layer.trainable_variables)
    expected = differentiate(keras_layer, keras_layer.trainable_variables)
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-9, atol=1e-12)


def test_fresh_weights_open_the_forget_gate():
    layer = SegmentLSTM(2)
    layer.build((None, None, 3))
    np.testing.assert_array_equal(layer.bias, [0, 0, 1, 1, 0, 0, 0, 0])


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(EVERY_LENGTH, st.integers(0, 3), st.integers(1, 9))
def test_padding_never_changes_an_output(lengths, extra, fill_seed):
    layer = build_lstm()
    straight = layer(tf.constant(draw_inputs(lengths)), tf.constant(lengths, tf.int32)).numpy()
    inputs = draw_inputs(lengths, extra, fill_seed)
    padded = layer(tf.constant(inputs), tf.constant(lengths, tf.int32)).numpy()
    np.testing.assert_allclose(padded[:, : straight.shape[1]], straight, rtol=1e-12, atol=1e-14)
    assert not padded[:, straight.shape[1] :].any()


def test_the_order_of_rows_does_not_matter():
    layer, order = build_lstm(), [3, 0, 2, 1]
    inputs, lengths = draw_inputs(LENGTHS), np.array(LENGTHS, np.int32)
    straight = layer(tf.constant(inputs), tf.constant(lengths, tf.int32)).numpy()
    permuted = layer(tf.constant(inputs[order]), tf.constant(lengths[order]))
    np.testing.assert_allclose(permuted, straight[order], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("wrap", [tf.function, lambda call: call])
@pytest.mark.parametrize("rows", [0, 2])
def test_nothing_to_read_gives_zeros_and_gradients_of_zero(rows, wrap):
    layer, inputs = build_lstm(), tf.ones([rows, 3, DIM], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = wrap(layer)(inputs, tf.zeros([rows, 2], tf.int32))
    np.testing.assert_array_equal(output, np.zeros((rows, 3, UNITS)))
    assert not np.any(tape.gradient(output, inputs))


def test_the_order_of_packed_tokens():
    # Row 0: segments of 1 and 2 tokens; row 1: one of 1, one empty. Side by side, longest first.
    packing = pack_segments(tf.constant([[1, 2], [1, 0]]))
    np.testing.assert_array_equal(packing.places, [[0, 1], [0, 0], [1, 0], [0, 2]])
    np.testing.assert_array_equal(packing.counts, [3, 1])
    backwards = pack_segments(tf.constant([[1, 2], [1, 0]]), backwards=True)
    np.testing.assert_array_equal(backwards.places, [[0, 2], [0, 0], [1, 0], [0, 1]])


def test_last_outputs_of_segments():
    outputs = tf.constant([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]])
    last = take_last(outputs, tf.constant([[1, 2], [2, 0]]))
    np.testing.assert_array_equal(last[..., 0], [[1, 3], [5, 0]])


def test_split_by_hand():
    # Padding has the segment 0, as the first one has.
    mask = tf.constant([[True, True, True, False], [True, True, True, True]])
    segment_ids = tf.constant([[0, 0, 1, 0], [0, 1, 1, 1]])
    values = tf.constant([[1.0, 2, 3, 90], [4, 5, 6, 7]])[..., None]
    np.testing.assert_array_equal(count_segments(segment_ids, mask), [[2, 1], [1, 3]])
    split = split_segments(values, segment_ids, mask)
    np.testing.assert_array_equal(split.first[..., 0], [[1, 2], [4, 0]])
    np.testing.assert_array_equal(split.second[..., 0], [[3, 0, 0], [5, 6, 7]])
    np.testing.assert_array_equal(split.first_mask, [[True, True], [True, False]])
    np.testing.assert_array_equal(split.second_mask, [[True, False, False], [True, True, True]])


def test_a_segment_that_no_row_has_is_one_column_of_padding():
    split = split_segments(tf.ones([1, 2, 1]), tf.zeros([1, 2], tf.int32), tf.ones([1, 2], tf.bool))
    np.testing.assert_array_equal(split.second, [[[0.0]]])
    np.testing.assert_array_equal(split.second_mask, [[False]])


@pytest.mark.parametrize("fill", [0, 1])
def test_merged_segments_are_the_table(fill):
    table = make_table(ROWS, extra=2, fill=fill)
    marks = table["segment_ids"], table["padding_mask"]
    values = tf.random.stateless_normal([*marks[0].shape, 3], [1, 2])
    split = split_segments(values, *marks)
    merged = merge_segments(split.first, split.second, *marks)
    expected = np.where(table["padding_mask"].numpy()[..., None], values, 0.0)
    np.testing.assert_array_equal(merged, expected)
