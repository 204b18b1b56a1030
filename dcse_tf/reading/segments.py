"""The segments of a table's rows: their lengths, splitting them, and LSTMs over each segment.

A row is a sequence of `dcse_tf.bert.pairs`: one segment, or two without a gap, then padding. The
LSTMs compute real tokens only, so padding neither costs time nor changes a result.
"""

import dataclasses

import keras
import tensorflow as tf
from keras import ops

from dcse_tf.matching.matching import zero_padding


def count_segments(segment_ids: tf.Tensor, padding_mask: tf.Tensor) -> tf.Tensor:
    """How many tokens each segment of a row has.

    Args:
        segment_ids: int32 `[rows, tokens]`, 0 in the first segment and 1 in the second.
        padding_mask: bool `[rows, tokens]`, True = real token.

    Returns:
        int32 `[rows, 2]`.

    Example:
        `[[0, 0, 1, 0]]` and `[[True, True, True, False]]` give `[[2, 1]]`.
    """
    parts = [padding_mask & (segment_ids == number) for number in (0, 1)]
    return tf.stack([tf.reduce_sum(tf.cast(part, tf.int32), axis=1) for part in parts], axis=1)


@dataclasses.dataclass(frozen=True)
class SplitTable:
    """A table's two segments as separate tables, each zero-padded to its longest segment.

    Attributes:
        first, second: `[rows, n, ...]` and `[rows, m, ...]`; n and m are at least 1.
        first_mask, second_mask: bool `[rows, n]` and `[rows, m]`, True = real token.
    """

    first: tf.Tensor
    second: tf.Tensor
    first_mask: tf.Tensor
    second_mask: tf.Tensor


def split_segments(
    values: tf.Tensor, segment_ids: tf.Tensor, padding_mask: tf.Tensor
) -> SplitTable:
    """Splits every row into its two segments.

    Args:
        values: float `[rows, tokens, dim]`, the tokens' values; `tokens` is at least 1.
        segment_ids: int32 `[rows, tokens]`, 0 in the first segment and 1 in the second.
        padding_mask: bool `[rows, tokens]`, True = real token.

    Returns:
        The two tables, each as wide as its longest segment. If no row has a segment, its table is
        one column of padding.

    Example:
        A row with the values 1, 2, 3 and the segments 0, 0, 1 has 1, 2 in the first table and 3 in
        the second.
    """
    lengths = count_segments(segment_ids, padding_mask)
    none = tf.zeros_like(lengths[:, 0])
    first, first_mask = _cut(values, none, lengths[:, 0])
    second, second_mask = _cut(values, lengths[:, 0], lengths[:, 1])
    return SplitTable(first, second, first_mask, second_mask)


def _cut(values: tf.Tensor, starts: tf.Tensor, lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts a run of tokens out of every row; returns the runs and the mask of their real tokens."""
    width = tf.maximum(tf.reduce_max(lengths), 1)  # without rows, the maximum is negative
    steps = tf.range(width)[None, :]
    mask = steps < lengths[:, None]
    places = tf.minimum(starts[:, None] + steps, tf.shape(values)[1] - 1)
    return zero_padding(tf.gather(values, places, batch_dims=1), mask), mask


def merge_segments(
    first: tf.Tensor, second: tf.Tensor, segment_ids: tf.Tensor, padding_mask: tf.Tensor
) -> tf.Tensor:
    """Joins the segments that `split_segments` separated into one table again.

    Args:
        first, second: float `[rows, n, dim]` and `[rows, m, dim]`.
        segment_ids, padding_mask: int32 and bool `[rows, tokens]` of the joined table.

    Returns:
        float `[rows, tokens, dim]`, zero at padding.
    """
    lengths = count_segments(segment_ids, padding_mask)
    places = tf.range(tf.shape(segment_ids)[1])[None, :]
    behind = places - lengths[:, :1] + tf.shape(first)[1]
    places = tf.where(places < lengths[:, :1], places, behind)
    both = tf.concat([first, second], axis=1)
    places = tf.minimum(places, tf.shape(both)[1] - 1)
    return zero_padding(tf.gather(both, places, batch_dims=1), padding_mask)


@dataclasses.dataclass(frozen=True)
class Packing:
    """Tokens in the order in which an LSTM reads them: by step, then by decreasing length.

    Attributes:
        places: int32 `[real tokens, 2]`, each token's row and column.
        counts: int32 `[steps]`, how many segments have a token at each step; never increasing.
            There is at least one step.
    """

    places: tf.Tensor
    counts: tf.Tensor


def pack_segments(lengths: tf.Tensor, backwards: bool = False) -> Packing:
    """The order of tokens when all segments are read in parallel.

    Args:
        lengths: int32 `[rows, segments]`; a row's segments follow one another from its start.
        backwards: whether to read every segment from its end.

    Example:
        The lengths `[[1, 2]]` give the places `[0, 1]`, `[0, 0]`, `[0, 2]` and the counts 2, 1.
    """
    segments = lengths.shape[1]
    starts = tf.reshape(tf.cumsum(lengths, axis=1, exclusive=True), [-1])
    lengths = tf.reshape(lengths, [-1])
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    # At least one step, possibly without tokens: a TensorArray without entries has no shape.
    steps = tf.range(tf.maximum(tf.reduce_max(lengths), 1))
    goes_on = tf.gather(lengths, order)[None, :] > steps[:, None]
    counts = tf.reduce_sum(tf.cast(goes_on, tf.int32), axis=1)

    step = tf.repeat(steps, counts)
    segment = tf.gather(order, tf.ragged.range(counts).flat_values)
    place = tf.gather(lengths, segment) - 1 - step if backwards else step
    return Packing(tf.stack([segment // segments, tf.gather(starts, segment) + place], 1), counts)


def _lstm_bias(shape, dtype):
    """Initial biases: ones for the forget gate, zeros for the others."""
    units = shape[0] // 4
    return ops.concatenate(
        [ops.zeros((units,), dtype), ops.ones((units,), dtype), ops.zeros((2 * units,), dtype)]
    )


@keras.saving.register_keras_serializable(package="dcse_tf")
class SegmentLSTM(keras.layers.Layer):
    """An LSTM (Hochreiter and Schmidhuber 1997, with a forget gate) over each segment separately.

    Weights and results are those of `keras.layers.LSTM` applied to each segment, with the gates in
    the order input, forget, cell, output. Segments are read in parallel, sorted by decreasing
    length, and drop out where they end. The loop has as many steps as the longest segment has
    tokens, so XLA cannot compile it.

    Args:
        units: width of the state.
        backwards: whether to read segments from their ends.
    """

    def __init__(self, units, backwards=False, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.backwards = backwards
        self.supports_jit = False

    def build(self, inputs_shape, lengths_shape=None):
        gates = 4 * self.units
        self.kernel = self.add_weight((inputs_shape[-1], gates), "glorot_uniform", name="kernel")
        self.recurrent_kernel = self.add_weight(
            (self.units, gates), "glorot_uniform", name="recurrent_kernel"
        )
        self.bias = self.add_weight((gates,), _lstm_bias, name="bias")

    def call(self, inputs, lengths):
        """Reads every segment.

        Args:
            inputs: float `[rows, tokens, dim]`; padding may have any values.
            lengths: int32 `[rows, segments]`, the number of tokens in each segment, see
                `count_segments`; a row's segments follow one another from its start. Empty
                segments are skipped.

        Returns:
            float `[rows, tokens, units]`, the output at every token; zero at padding.
        """
        packing = pack_segments(lengths, self.backwards)
        tokens = tf.gather_nd(inputs, packing.places)
        gates = tf.matmul(tokens, ops.convert_to_tensor(self.kernel)) + self.bias
        outputs = _read(gates, packing.counts, ops.convert_to_tensor(self.recurrent_kernel))
        shape = tf.concat([tf.shape(inputs)[:2], [self.units]], axis=0)
        table = tf.scatter_nd(packing.places, outputs, shape)
        return tf.ensure_shape(table, (*inputs.shape[:2], self.units))

    def compute_output_shape(self, inputs_shape, lengths_shape):
        return (*inputs_shape[:-1], self.units)

    def get_config(self):
        return {**super().get_config(), "units": self.units, "backwards": self.backwards}


def _read(gates: tf.Tensor, counts: tf.Tensor, recurrent_kernel: tf.Tensor) -> tf.Tensor:
    """The recurrence over packed tokens.

    Args:
        gates: float `[tokens, 4 units]`, the inputs' contribution to the gates, including the bias.
        counts: int32 `[steps]`, the number of tokens in each step.
        recurrent_kernel: float `[units, 4 units]`.

    Returns:
        float `[tokens, units]`, the output at every token.
    """
    units, dtype, steps = recurrent_kernel.shape[0], gates.dtype, tf.size(counts)
    # A TensorArray, because slicing one tensor would make a gradient of its full size in each step.
    array = tf.TensorArray(dtype, steps, infer_shape=False, element_shape=[None, 4 * units])
    gates_by_step = array.split(gates, counts)
    outputs = tf.TensorArray(dtype, steps, infer_shape=False, element_shape=[None, units])

    def step_through(step, hidden, cell, outputs):
        count = counts[step]  # segments that have ended are in the last rows
        recurrent = tf.matmul(hidden[:count], recurrent_kernel)
        parts = tf.split(gates_by_step.read(step) + recurrent, 4, axis=1)
        input_gate, forget_gate, output_gate = (tf.sigmoid(parts[i]) for i in (0, 1, 3))
        cell = forget_gate * cell[:count] + input_gate * tf.tanh(parts[2])
        hidden = output_gate * tf.tanh(cell)
        return step + 1, hidden, cell, outputs.write(step, hidden)

    start = tf.zeros(tf.stack([counts[0], units]), dtype)
    state = tf.TensorShape([None, units])
    *_, outputs = tf.while_loop(
        lambda step, *_: step < steps,
        step_through,
        (tf.constant(0), start, start, outputs),
        shape_invariants=(tf.TensorShape([]), state, state, tf.TensorShape(None)),
    )
    return outputs.concat()


def take_last(outputs: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """The output at the last token of every segment: a forward LSTM's final state.

    Args:
        outputs: float `[rows, tokens, dim]`.
        lengths: int32 `[rows, segments]`, see `count_segments`.

    Returns:
        float `[rows, segments, dim]`, zero for an empty segment.
    """
    places = tf.maximum(tf.cumsum(lengths, axis=1) - 1, 0)
    return zero_padding(tf.gather(outputs, places, batch_dims=1), lengths > 0)


@keras.saving.register_keras_serializable(package="dcse_tf")
class SegmentBiLSTM(keras.layers.Layer):
    """Two `SegmentLSTM`s, one in each direction, with concatenated outputs.

    Args:
        units: width of each direction's state.
    """

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.supports_jit = False
        self.forward = SegmentLSTM(units, dtype=self.dtype_policy, name="forward")
        self.backward = SegmentLSTM(units, backwards=True, dtype=self.dtype_policy, name="backward")

    def build(self, inputs_shape, lengths_shape=None):
        self.forward.build(inputs_shape)
        self.backward.build(inputs_shape)

    def call(self, inputs, lengths):
        """Reads every segment; the arguments are those of `SegmentLSTM.call`.

        Returns:
            float `[rows, tokens, 2 units]`, zero at padding.
        """
        directions = (self.forward, self.backward)
        return tf.concat([direction(inputs, lengths) for direction in directions], axis=-1)

    def compute_output_shape(self, inputs_shape, lengths_shape):
        return (*inputs_shape[:-1], 2 * self.units)

    def get_config(self):
        return {**super().get_config(), "units": self.units}
