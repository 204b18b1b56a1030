"""Sequences of two segments, [CLS] first [SEP] second [SEP], as a cross-encoder reads them.

In a segment of dialogue, every turn ends with [EOT] ("end of turn", Xu et al. 2020, section 2.2).
"""

import dataclasses

import tensorflow as tf


def find_rows(ragged: tf.RaggedTensor) -> tf.Tensor:
    """The row index of each value of `[rows, (values)]`; int32 `[values]`."""
    return tf.cast(ragged.value_rowids(), tf.int32)


def put_apart(values: tf.Tensor) -> tf.RaggedTensor:
    """Puts each of `[values]` in a row of its own."""
    return tf.RaggedTensor.from_tensor(values[:, None])


def strip_ends(token_ids: tf.RaggedTensor, prefix_tokens: int = 0) -> tf.RaggedTensor:
    """Removes the [CLS] of texts, a prefix and the [SEP]: int32 `[texts, (tokens)]` to the same."""
    return token_ids[:, 1 + prefix_tokens : -1]


def end_turns(turns: tf.RaggedTensor, end: int) -> tf.RaggedTensor:
    """Adds [EOT], of the id `end`, to turns without [CLS] and [SEP], int32 `[turns, (tokens)]`."""
    return tf.concat([turns, tf.fill([turns.nrows(), 1], tf.cast(end, turns.dtype))], axis=1)


@dataclasses.dataclass(frozen=True)
class Places:
    """Where the tokens of sequences come from."""

    # int32 `[rows, tokens]`, indices into the concatenation of all first segments' tokens, all
    # second segments' tokens and the four marks: at [CLS], at the first [SEP], at the last [SEP],
    # and after the end.
    sources: tf.Tensor
    middle: tf.Tensor  # int32 `[rows]`, the column of the first [SEP]
    lengths: tf.Tensor  # int32 `[rows]`, the number of tokens in each sequence

    def fill(
        self, first: tf.Tensor, second: tf.Tensor, marks: tuple[int, ...] = (0, 0, 0, 0)
    ) -> tf.Tensor:
        """Makes a table, int32 `[rows, tokens]`, of token ids or of any other values of all first
        segments' tokens, of all second segments', also truncated ones, and of the marks.
        """
        values = tf.concat([first, second, tf.constant(marks, first.dtype)], axis=0)
        return tf.gather(values, self.sources)

    def segment_ids(self) -> tf.Tensor:
        """int32 `[rows, tokens]`: 0 through the first [SEP] and after the end, 1 in between."""
        column = tf.range(tf.shape(self.sources)[1])
        return tf.cast((column > self.middle[:, None]) & (column < self.lengths[:, None]), tf.int32)


def place_segments(
    first: tf.RaggedTensor,
    second: tf.RaggedTensor,
    first_tokens: tf.Tensor | int,
    second_tokens: tf.Tensor | int,
    paired: tf.Tensor | bool = True,
) -> Places:
    """Truncates and joins segments, int32 `[rows, (tokens)]`, see `end_turns`.

    The limits are those of `PairRule`; one number, or int32 `[rows]`. `paired` tells whether there
    is a second segment, even if empty; one value, or bool `[rows]`.
    """
    total, nothing = tf.size(first.values), tf.size(first.values) + tf.size(second.values) + 3
    limits, starts = (tf.cast(x, tf.int32) for x in (first.row_limits(), second.row_starts()))
    own, other = (tf.cast(x.row_lengths(), tf.int32) for x in (first, second))
    middle = 1 + tf.minimum(own, tf.maximum(first_tokens - 2, 0))
    last = middle + tf.where(paired, 1 + tf.minimum(other, second_tokens - 1), 0)
    column = tf.range(tf.maximum(tf.reduce_max(last) + 1, 0))

    in_second = (total + starts - middle - 1)[:, None] + column
    sources = tf.where(column < last[:, None], in_second, nothing)
    sources = tf.where(column == last[:, None], nothing - 1, sources)
    sources = tf.where(column == middle[:, None], nothing - 2, sources)
    # The first segment keeps the tokens next to the second.
    sources = tf.where(column < middle[:, None], (limits - middle)[:, None] + column, sources)
    sources = tf.where(column == 0, nothing - 3, sources)
    return Places(sources, middle, last + 1)
