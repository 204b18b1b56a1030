"""How a table of utterances is laid out for the encoder: padded or packed.

With any layout, the encoded tokens come back as the table `[utterances, tokens, dim]`; a layout
only decides what the encoder computes. It is named by the length of a packed row, which holds
several utterances with attention within each; 0 leaves the table padded, as it is.
"""

import tensorflow as tf

Tensors = dict[str, tf.Tensor]


# A tf.function, so that the graph has it once, however many tables a step lays out.
@tf.function(reduce_retracing=True)
def first_fit_decreasing(
    lengths: tf.Tensor, row_length: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Packs items into rows: the longest first, each into the first row with room for it.

    Items of equal length are placed together. First fit fills the rows in order, so a row's room
    determines how many of them it takes. This needs one step for each length, not for each item.

    From their lengths, int32 `[items]`, each at most `row_length`: int32 `[items]`, the row of each
    item and where it begins there, both 0 for an item of length 0; and the number of rows.
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
        takes = tf.clip_by_value(counts[length] - tf.cumsum(fits, exclusive=True), 0, fits)
        taken = taken.write(step, takes)
        begun = begun.write(step, row_length - room)
        room = room - takes * length

    # One entry for each item, by decreasing length and, within a length, by row.
    takes = tf.reshape(taken.stack(), [-1])
    cell = tf.repeat(tf.range(tf.size(takes)), takes)
    rows = cell % items
    placed = tf.size(rows)
    nth = tf.range(placed) - tf.gather(tf.cumsum(takes, exclusive=True), cell)
    falling = tf.gather(lengths, order[:placed])
    starts = tf.gather(tf.reshape(begun.stack(), [-1]), cell) + nth * falling
    used = tf.reduce_sum(tf.cast(room < row_length, tf.int32))

    def by_item(values: tf.Tensor) -> tf.Tensor:
        values = tf.pad(values, [[0, items - placed]])
        return tf.gather(values, tf.math.invert_permutation(order))

    return by_item(rows), by_item(starts), used


def lay_out(token_ids: tf.Tensor, row_length: int, marks: Tensors | None = None) -> Tensors:
    """Lays out a table, int32 `[utterances, tokens]`, zero-padded, without empty rows; and further
    int32 tables of that shape by name, such as the segment of each token, in the same way.

    Returns:
        padding_mask: bool `[utterances, tokens]`, True = real token.
        token_ids: int32, padded: as given; packed: `[rows, row_length]`, 0 = nothing there.
        segments: packed: int32 `[rows, row_length]`, the number of a token's utterance, from 1;
            0 = none.
        positions: packed: int32 `[rows, row_length]`, a token's position in its utterance.
        places: int32 `[utterances, tokens]`, each token's index in the flat list of the encoder's
            tokens; packed: 0 at padding.
        The marks under their names.
    """
    padding_mask = token_ids != 0
    table = {"token_ids": token_ids, **(marks or {})}
    utterances, longest = tf.unstack(tf.shape(padding_mask))
    if not row_length:
        places = tf.reshape(tf.range(utterances * longest), [utterances, longest])
        return {**table, "places": places, "padding_mask": padding_mask}

    lengths = tf.reduce_sum(tf.cast(padding_mask, tf.int32), axis=1)
    row, start, rows = first_fit_decreasing(lengths, row_length)
    positions = tf.tile(tf.range(longest)[None, :], [utterances, 1])
    places = (row * row_length + start)[:, None] + positions
    segments = tf.tile(tf.range(1, utterances + 1)[:, None], [1, longest])
    # All columns are scattered to their cells at once.
    columns = {**table, "segments": segments, "positions": positions}
    packed = tf.scatter_nd(
        tf.boolean_mask(places, padding_mask)[:, None],
        tf.boolean_mask(tf.stack([*columns.values()], axis=2), padding_mask),
        [rows * row_length, len(columns)],
    )
    packed = tf.reshape(packed, [-1, row_length, len(columns)])
    return {
        **dict(zip(columns, tf.unstack(packed, axis=2), strict=True)),
        "places": tf.where(padding_mask, places, 0),
        "padding_mask": padding_mask,
    }


def join_tables(*tables: tf.Tensor) -> tf.Tensor:
    """Concatenates int32 tables `[utterances, tokens]`, zero-padded to the widest."""
    width = tf.reduce_max([tf.shape(table)[1] for table in tables])
    padded = [tf.pad(table, [[0, 0], [0, width - tf.shape(table)[1]]]) for table in tables]
    return tf.concat(padded, axis=0)


def fingerprint_rows(token_ids: tf.Tensor) -> tf.Tensor:
    """Fingerprints of rows whose records do not contain one, such as contexts in one sequence: from
    int32 `[rows, tokens]`, zero-padded, to int64 `[rows]`, equal for equal rows of one call.
    """
    return tf.bitcast(tf.fingerprint(token_ids), tf.int64)
