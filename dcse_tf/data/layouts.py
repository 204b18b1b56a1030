"""How a table of utterances is laid out for the encoder: padded, packed, or in buckets.

Whatever the layout, the encoded tokens come back as the table `[utterances, tokens, dim]`; a
layout decides only what is encoded on the way. See `dcse_tf.models.table_encoder`.
"""

import dataclasses

import tensorflow as tf

from dcse_tf.data.packing import first_fit_decreasing

Tensors = dict[str, tf.Tensor]
LAYOUTS = ("packed", "bucketed", "padded")


@dataclasses.dataclass(frozen=True)
class Layout:
    """A way to lay out a table.

    Attributes:
        kind: "padded": as it is; "packed": several utterances to a row, attention within each;
            "bucketed": in groups of utterances of similar length, each padded to its longest.
        row_length: packed: tokens of a row.
        buckets: bucketed: number of groups, of equal numbers of utterances.
        row_multiple: packed: rows are filled up with empty ones to a multiple of this, so that
            shapes are few.
    """

    kind: str
    row_length: int = 64
    buckets: int = 6
    row_multiple: int = 1

    def names(self) -> tuple[str, ...]:
        """The tensors that `lay_out` gives."""
        return {
            "padded": ("token_ids", "padding_mask"),
            "packed": ("token_ids", "segments", "positions", "places", "padding_mask"),
            "bucketed": (
                *(f"token_ids_{i}" for i in range(self.buckets)),
                "places",
                "padding_mask",
            ),
        }[self.kind]


def lay_out(token_ids: tf.Tensor, layout: Layout) -> Tensors:
    """Lays out a table.

    Args:
        token_ids: int32 `[utterances, tokens]`, zero-padded, no row empty.
        layout: how.

    Returns:
        padding_mask: bool `[utterances, tokens]`, True = real token.
        token_ids: int32, padded: as given; packed: `[rows, row_length]`, 0 = nothing there.
        segments: packed: int32 `[rows, row_length]`, a number for each utterance, 0 = none.
        positions: packed: int32 `[rows, row_length]`, of a token in its utterance.
        token_ids_0, ...: bucketed: int32 `[utterances of the group, tokens of its longest]`.
        places: packed and bucketed: int32 `[utterances, tokens]`, where the encoder's tokens, all
            in one list, have each token; 0 where there is none.
    """
    padding_mask = token_ids != 0
    if layout.kind == "padded":
        return {"token_ids": token_ids, "padding_mask": padding_mask}
    make = _pack if layout.kind == "packed" else _group
    return {**make(token_ids, padding_mask, layout), "padding_mask": padding_mask}


def count_cells(batch: Tensors) -> tf.Tensor:
    """Tokens that the encoder computes for a laid-out table, real or not; float32 scalar."""
    grids = [value for name, value in batch.items() if name.startswith("token_ids")]
    return tf.add_n([tf.cast(tf.size(grid), tf.float32) for grid in grids])


def _pack(token_ids: tf.Tensor, padding_mask: tf.Tensor, layout: Layout) -> Tensors:
    utterances, longest = tf.shape(token_ids)[0], tf.shape(token_ids)[1]
    lengths = tf.reduce_sum(tf.cast(padding_mask, tf.int32), axis=1)
    row, start, rows = first_fit_decreasing(lengths, layout.row_length)
    rows = -(-rows // layout.row_multiple) * layout.row_multiple
    positions = tf.tile(tf.range(longest)[None, :], [utterances, 1])
    places = (row * layout.row_length + start)[:, None] + positions
    segments = tf.tile(tf.range(1, utterances + 1)[:, None], [1, longest])
    real = tf.boolean_mask(places, padding_mask)[:, None]

    def scatter(values: tf.Tensor) -> tf.Tensor:
        flat = tf.scatter_nd(
            real, tf.boolean_mask(values, padding_mask), [rows * layout.row_length]
        )
        return tf.reshape(flat, [-1, layout.row_length])

    return {
        "token_ids": scatter(token_ids),
        "segments": scatter(segments),
        "positions": scatter(positions),
        "places": tf.where(padding_mask, places, 0),
    }


def _group(token_ids: tf.Tensor, padding_mask: tf.Tensor, layout: Layout) -> Tensors:
    utterances, longest = tf.shape(token_ids)[0], tf.shape(token_ids)[1]
    lengths = tf.reduce_sum(tf.cast(padding_mask, tf.int32), axis=1)
    order = tf.argsort(lengths, stable=True)
    groups: Tensors = {}
    starts, cells = [], tf.constant(0)
    for i in range(layout.buckets):
        members = order[utterances * i // layout.buckets : utterances * (i + 1) // layout.buckets]
        width = tf.reduce_max(tf.concat([tf.gather(lengths, members), [1]], axis=0))
        grid = tf.gather(token_ids, members)[:, :width]
        # A group without an utterance is one empty cell: Keras cannot add tensors of no rows.
        grid = tf.pad(grid, [[0, tf.maximum(1 - tf.size(members), 0)], [0, 0]])
        groups[f"token_ids_{i}"] = grid
        starts.append(cells + tf.range(tf.size(members)) * width)
        cells += tf.size(grid)
    start = tf.gather(tf.concat(starts, axis=0), tf.math.invert_permutation(order))
    places = start[:, None] + tf.range(longest)[None, :]
    return {**groups, "places": tf.where(padding_mask, places, 0)}
