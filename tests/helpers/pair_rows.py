"""Rows of one or two segments, and how they become the table that a matcher reads."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

VOCABULARY_SIZE = 40

# Token ids of a row's first and second segment; None where there is no second.
Row = tuple[list[int], list[int] | None]

# Segments of unequal length; the second is empty in one row and alone with its mark in another.
ROWS: list[Row] = [
    ([2, 7, 8, 9, 5, 3], [11, 12, 3]),
    ([2, 10, 3], [13, 14, 15, 16, 17, 3]),
    ([2, 7, 21, 22, 23, 5, 24, 5, 3], None),
    ([2, 3], [3]),
    ([2, 30, 31, 5, 3], [32, 33, 3]),
]


def make_table(rows: Sequence[Row], extra: int = 0, fill: int = 0) -> dict[str, tf.Tensor]:
    """The table of rows, padded `extra` beyond need, with what the padding's ids may be."""
    lengths = [len(first) + len(second or []) for first, second in rows]
    shape = (len(rows), max(lengths) + extra)
    token_ids, segment_ids = np.full(shape, fill, np.int32), np.full(shape, fill % 2, np.int32)
    for i, (first, second) in enumerate(rows):
        token_ids[i, : lengths[i]] = first + (second or [])
        segment_ids[i, : lengths[i]] = [0] * len(first) + [1] * len(second or [])
    return {
        "token_ids": tf.constant(token_ids),
        "segment_ids": tf.constant(segment_ids),
        "padding_mask": tf.sequence_mask(lengths, shape[1]),
    }
