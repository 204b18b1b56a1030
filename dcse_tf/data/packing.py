"""First fit decreasing: utterances into rows of one length."""

import tensorflow as tf


def first_fit_decreasing(
    lengths: tf.Tensor, row_length: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Packs items: the longest first, each into the first row with room for it.

    Items of one length are placed together: first fit fills the rows in order, so that how many of
    them a row takes follows from its room. That is one step a length, not one an item.

    Args:
        lengths: int32 `[items]`, each at most `row_length`; an item of length 0 is at row 0, 0.
        row_length: what a row holds.

    Returns:
        row: int32 `[items]`, the row of each item.
        start: int32 `[items]`, where in its row it begins.
        rows: int32 scalar, how many rows are used.
    """
    items = tf.size(lengths)
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    counts = tf.math.bincount(lengths, minlength=row_length + 1)

    room = tf.fill([items], row_length)
    longest = tf.reduce_max(lengths)
    taken = tf.TensorArray(tf.int32, size=longest)
    begun = tf.TensorArray(tf.int32, size=longest)
    for step in tf.range(longest):
        length = longest - step
        fits = room // length
        before = tf.cumsum(fits, exclusive=True)
        takes = tf.clip_by_value(counts[length] - before, 0, fits)
        taken = taken.write(step, takes)
        begun = begun.write(step, row_length - room)
        room = room - takes * length

    # Item by item in the order of falling length, row by row within a length.
    takes = tf.reshape(taken.stack(), [-1])
    rows = tf.repeat(tf.tile(tf.range(items), [longest]), takes)
    placed = tf.size(rows)
    nth = tf.range(placed) - tf.repeat(tf.cumsum(takes, exclusive=True), takes)
    falling = tf.gather(lengths, order[:placed])
    starts = tf.repeat(tf.reshape(begun.stack(), [-1]), takes) + nth * falling
    used = tf.reduce_sum(tf.cast(room < row_length, tf.int32))

    def by_item(values: tf.Tensor) -> tf.Tensor:
        values = tf.pad(values, [[0, items - placed]])
        return tf.gather(values, tf.math.invert_permutation(order))

    return by_item(rows), by_item(starts), used
