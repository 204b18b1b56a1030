"""Operations on ragged tensors that need few graph operations, unlike TensorFlow's own."""

import tensorflow as tf


def find_rows(ragged: tf.RaggedTensor) -> tf.Tensor:
    """The row index of each value of `[rows, (values)]`; int32 `[values]`."""
    splits = tf.cast(ragged.row_splits, tf.int32)
    return tf.searchsorted(splits, tf.range(splits[-1]), side="right") - 1


def put_in_rows(values: tf.Tensor, splits: tf.Tensor) -> tf.RaggedTensor:
    """Puts values `[values]` in the rows that begin and end at `splits`, which are not checked."""
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def put_apart(values: tf.Tensor) -> tf.RaggedTensor:
    """Puts each of `[values]` in a row of its own."""
    return put_in_rows(values, tf.range(tf.size(values, tf.int64) + 1))
