"""Ragged tensors in few operations: what TensorFlow has for these makes large graphs."""

import tensorflow as tf


def find_rows(ragged: tf.RaggedTensor) -> tf.Tensor:
    """The row of each value of `[rows, (values)]`; int32 `[values]`."""
    splits = tf.cast(ragged.row_splits, tf.int32)
    return tf.searchsorted(splits, tf.range(splits[-1]), side="right") - 1


def put_in_rows(values: tf.Tensor, splits: tf.Tensor) -> tf.RaggedTensor:
    """Values `[values]` in the rows that begin and end at `splits`, of which no check is made."""
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def put_apart(values: tf.Tensor) -> tf.RaggedTensor:
    """Values `[values]`, each in a row of its own."""
    return put_in_rows(values, tf.range(tf.size(values, tf.int64) + 1))
