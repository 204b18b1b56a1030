"""Shards to batches: endless, deterministic, resumable at any step.

All randomness is derived from (seed, epoch) for the order, (seed, epoch, index) for a sample and
(seed, step) for a batch. To resume, build the pipeline with a later first step: whole windows
before that step are never read.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from dcse_tf.data.manifest import Blocks, Split, read_blocks
from dcse_tf.data.records import parse_utterances, shard_paths
from dcse_tf.data.table import Step, fold_seed, make_batches

_READ_BLOCKS = 8


class Windows(NamedTuple):
    """The windows of an epoch, in order. The elements of a window are shuffled together."""

    blocks: tf.RaggedTensor  # int64 [windows, (blocks)], numbers of blocks
    ends: tf.Tensor  # int64 [windows], the epoch's elements up to the end of each window


def draw_windows(sizes: tf.Tensor, window: int, seed: tf.Tensor) -> Windows:
    """Shuffles the blocks of a split, of `sizes` elements each, int64 `[blocks]`, into windows.

    A block belongs to the window of `window` elements that contains its first element, so a window
    may exceed this by part of its last block. The seed, int64 `[2]`, alone determines the order.
    """
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(sizes, tf.int64)), seed)
    sizes = tf.gather(sizes, order)
    ends = tf.cumsum(sizes)
    _, _, counts = tf.unique_with_counts((ends - sizes) // window, tf.int64)
    blocks = tf.RaggedTensor.from_row_lengths(order, counts, validate=False)
    return Windows(blocks, tf.gather(ends, blocks.row_limits() - 1))


def _read_block(path: tf.Tensor, block: Blocks) -> tf.data.Dataset:
    """The records of a block, as string scalars."""
    # TFRecordDataset cannot start in the middle of a file; the underlying operation can.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path], compression_type="", buffer_size=block.bytes, byte_offsets=[block.offset]
    )
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    return records.take(block.sessions)


# Default number of elements that are shuffled together.
WINDOW = {"sessions": 20_000, "utterances": 100_000}
# Each purpose draws its random numbers from its own stream of the run's seed.
_BLOCKS, _ORDER, _SAMPLES = range(3)


class Source(Protocol):
    """What a task's batches are made of."""

    samples: str  # the elements of an epoch: "sessions", as records, "utterances", as token ids

    def draw(self, element: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """Draws an element's sample; `seed`, int64 `[2]`, alone determines the draws."""

    def make_step(self, samples: dict, splits: tf.Tensor, seed: int, number: tf.Tensor) -> Step:
        """Makes a step of batched samples; the arguments are those of `Step`, of which `splits`
        divides the samples evenly.
        """


@dataclasses.dataclass(frozen=True)
class Stream:
    """How a corpus is read into the batches of successive steps."""

    batch_size: int  # elements (sessions or utterances) per step, over all replicas
    seed: int
    first_step: int = 0  # 0 is the start of the training
    replicas: int = 1  # the number of batches per step; must divide `batch_size`
    row_length: int = 0  # tokens in a packed row; 0 for padded tables
    window: int = 0  # elements that are shuffled together; 0 for the default in `WINDOW`
    own: range | None = None  # the replicas whose batches this stream yields; None for all
    # Elements after which the stream of a single pass ends, with a last batch that may be smaller;
    # 0 for an endless stream of whole batches.
    most: int = 0


def repeat_epochs(
    folder: pathlib.Path, split: Split, samples: str, elements: Callable, stream: Stream
) -> tf.data.Dataset:
    """An endless dataset of shuffled epochs, each of whole batches: (step, epoch, index in the
    epoch, element), where `elements` converts the records of a window, strings `[sessions]`.

    Each epoch drops the elements left over after its last whole batch, unless the stream has an
    end; the shuffle makes them different ones every time. Raises InputError if the split's index
    cannot be read.
    """
    blocks = Blocks(*map(tf.constant, read_blocks(folder, split)))
    paths = tf.constant(shard_paths(folder, split))
    window, batch_size = stream.window or WINDOW[samples], stream.batch_size
    steps_per_epoch = getattr(split, samples) // batch_size + bool(stream.most)
    first_epoch, steps_done = divmod(stream.first_step, steps_per_epoch)

    def make_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        drawn, seed = (fold_seed(stream.seed, epoch, purpose) for purpose in (_BLOCKS, _ORDER))
        windows = draw_windows(getattr(blocks, samples), window, drawn)
        done = tf.where(epoch == first_epoch, tf.constant(steps_done * batch_size, tf.int64), 0)

        def read(number: tf.Tensor) -> tf.data.Dataset:
            own = tf.gather(windows.blocks, [number]).values
            chosen = Blocks(*(tf.gather(of_all, own) for of_all in blocks))
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

        # Windows that lie entirely among what is done are not read.
        first = tf.searchsorted(windows.ends, [done], side="right", out_type=tf.int64)[0]
        numbers = tf.data.Dataset.range(first, windows.blocks.nrows(), output_type=tf.int64)
        # The next window is read while this one is used.
        found = numbers.flat_map(read).prefetch(1).flat_map(shuffle)
        found = found.take(steps_per_epoch * batch_size - done).enumerate(done)
        begin = epoch * steps_per_epoch
        return found.map(lambda index, x: (begin + index // batch_size, epoch, index, x))

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(make_epoch)
    return epochs.take(stream.most) if stream.most else epochs


@tf.autograph.experimental.do_not_convert  # faster to trace; there is nothing to convert
def make_dataset(
    folder: pathlib.Path,
    split: Split,
    source: Source,
    draw_rows: Callable[[Step], Mapping[str, Any]],
    stream: Stream,
) -> tf.data.Dataset:
    """The batches of successive steps, see `make_batches`, with `replicas` of them per step;
    `draw_rows` draws the rows of a step, by a name for each.
    """

    def draw(step: tf.Tensor, epoch: tf.Tensor, index: tf.Tensor, element: tf.Tensor) -> tuple:
        return step, source.draw(element, fold_seed(stream.seed, epoch, index, _SAMPLES))

    def assemble(steps: tf.Tensor, samples: dict) -> tuple[dict[str, tf.Tensor], ...]:
        splits = tf.range(stream.replicas + 1) * (tf.shape(steps)[0] // stream.replicas)
        step = source.make_step(samples, splits, stream.seed, steps[0])
        batches = make_batches(step, draw_rows(step), stream.row_length)
        return tuple(batches[number] for number in stream.own or range(stream.replicas))

    def part(*batches: dict[str, tf.Tensor]) -> tf.data.Dataset:
        # A strategy takes one batch for each replica, and their shapes differ.
        each = map(tf.data.Dataset.from_tensors, batches)
        return functools.reduce(tf.data.Dataset.concatenate, each)

    elements = (lambda records: records) if source.samples == "sessions" else parse_utterances
    dataset = repeat_epochs(folder, split, source.samples, elements, stream)
    dataset = dataset.map(draw, tf.data.AUTOTUNE)
    dataset = dataset.ragged_batch(stream.batch_size, drop_remainder=not stream.most)
    return dataset.map(assemble, tf.data.AUTOTUNE).flat_map(part).prefetch(tf.data.AUTOTUNE)
