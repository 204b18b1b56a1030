"""Windows: as many blocks of a split, drawn from all of it, as are read and shuffled together."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from dcse_tf.data.blocks import Blocks

_READ_BLOCKS = 8

Elements = Callable[[tf.Tensor], tf.Tensor | tf.RaggedTensor]


class Windows(NamedTuple):
    """The windows of an epoch, in turn.

    Attributes:
        blocks: int64 `[windows, (blocks)]`, ragged.
        ends: int64 `[windows]`, elements up to the end of each.
    """

    blocks: tf.RaggedTensor
    ends: tf.Tensor


def draw_windows(sizes: tf.Tensor, window: int, seed: tf.Tensor) -> Windows:
    """Deals blocks, in drawn order, into windows.

    Args:
        sizes: int64 `[blocks]`, the elements of each block; none of them 0.
        window: a block belongs to the window of so many elements in which its first one lies.
        seed: stateless.
    """
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(sizes, tf.int64)), seed)
    sizes = tf.gather(sizes, order)
    ends = tf.cumsum(sizes)
    _, _, counts = tf.unique_with_counts((ends - sizes) // window, tf.int64)
    blocks = tf.RaggedTensor.from_row_lengths(order, counts)
    return Windows(blocks, tf.gather(ends, blocks.row_limits() - 1))


def read_windows(
    windows: Windows,
    blocks: Blocks,
    paths: tf.Tensor,
    elements: Elements,
    seed: tf.Tensor,
    done: tf.Tensor,
) -> tf.data.Dataset:
    """The elements of all windows, each window shuffled, from the first that is not done.

    What lies in the windows before is not read.

    Args:
        windows: of the epoch.
        blocks: int64 tensors, of the split.
        paths: strings `[shards]`.
        elements: from the records of a window, strings `[sessions]`, its elements.
        seed: stateless, of the epoch.
        done: int64, the elements to leave out.
    """

    def read(number: tf.Tensor) -> tf.data.Dataset:
        chosen = Blocks(*(tf.gather(of_all, windows.blocks[number]) for of_all in blocks))
        records = tf.data.Dataset.from_tensor_slices(chosen).interleave(
            lambda block: _read_block(paths[block.shard], block),
            cycle_length=_READ_BLOCKS,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        records = records.batch(tf.reduce_sum(chosen.sessions))
        return records.map(lambda records: (number, elements(records)))

    def shuffle(number: tf.Tensor, values: Any) -> tf.data.Dataset:
        begin = tf.where(number > 0, windows.ends[tf.maximum(number - 1, 0)], 0)
        order = tf.random.experimental.stateless_shuffle(
            tf.range(windows.ends[number] - begin), tf.random.fold_in(seed, number)
        )
        left = order[tf.maximum(done - begin, 0) :]
        return tf.data.Dataset.from_tensor_slices(tf.gather(values, left))

    first = tf.searchsorted(windows.ends, [done], side="right", out_type=tf.int64)[0]
    numbers = tf.data.Dataset.range(first, windows.blocks.nrows(), output_type=tf.int64)
    # The next window is read while this one is used.
    return numbers.flat_map(read).prefetch(1).flat_map(shuffle)


def _read_block(path: tf.Tensor, block: Blocks) -> tf.data.Dataset:
    """The records of a block, string scalars."""
    # TFRecordDataset takes no place to begin at; the operation behind it does.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type="",
        buffer_size=block.bytes,
        byte_offsets=[block.offset],
    )
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    return records.take(block.sessions)
