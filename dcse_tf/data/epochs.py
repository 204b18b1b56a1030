"""Epochs of a split's records: shuffled, endless, resumable at any step."""

import pathlib

import tensorflow as tf

from dcse_tf.data.blocks import Blocks, read_blocks
from dcse_tf.data.manifest import Split
from dcse_tf.data.tfrecords import parse_session_ids, shard_paths
from dcse_tf.data.windows import Elements, draw_windows, read_windows

# Elements shuffled together, or as many more as the last block of them has.
WINDOW = {"sessions": 20_000, "utterances": 100_000}
# Streams of random numbers of one seed that must not coincide.
_BLOCKS, _ORDER, SAMPLES, BATCHES = range(4)


def fold_seed(*parts: tf.Tensor | int) -> tf.Tensor:
    """A stateless seed `[2]` from any number of integers."""
    seed = tf.constant([0, 0], tf.int64)
    for part in parts:
        seed = tf.random.fold_in(seed, tf.cast(part, tf.int64))
    return seed


def repeat_epochs(
    folder: pathlib.Path,
    split: Split,
    elements: Elements,
    *,
    samples: str,
    batch_size: int,
    seed: int,
    first_step: int,
) -> tf.data.Dataset:
    """Shuffled epochs of whole batches, one after another, without end.

    An epoch leaves out the elements that do not fill a batch; they are others every time. Whatever
    the first step is, one window is read before the first element is there.

    Args:
        folder: the prepared corpus.
        split: the split.
        elements: from the records of a window, strings `[sessions]`, its elements.
        samples: what these are, and so how many: "sessions" or "utterances".
        batch_size: elements a step.
        seed: the run's seed.
        first_step: the step, from 0 at the start of the training, whose elements come first.

    Returns:
        A dataset of (step, epoch, index in the epoch, element).

    Raises:
        InputError: the split's index cannot be read.
    """
    blocks = Blocks(*map(tf.constant, read_blocks(folder, split)))
    paths = tf.constant(shard_paths(folder, split))
    steps_per_epoch = getattr(split, samples) // batch_size
    first_epoch, steps_done = divmod(first_step, steps_per_epoch)

    def make_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        drawn = fold_seed(seed, epoch, _BLOCKS)
        windows = draw_windows(getattr(blocks, samples), WINDOW[samples], drawn)
        done = tf.where(epoch == first_epoch, tf.constant(steps_done * batch_size, tf.int64), 0)
        order = fold_seed(seed, epoch, _ORDER)
        return (
            read_windows(windows, blocks, paths, elements, order, done)
            .take(steps_per_epoch * batch_size - done)
            .enumerate(done)
            .map(
                lambda index, element: (
                    epoch * steps_per_epoch + index // batch_size,
                    epoch,
                    index,
                    element,
                )
            )
        )

    return tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(make_epoch)


def list_sessions(
    folder: pathlib.Path, split: Split, *, samples: str, batch_size: int, seed: int, step: int
) -> list[str]:
    """The ids of the sessions that the samples of a step's batch are from, in their order.

    Args:
        folder: the prepared corpus.
        split: the split.
        samples: what the batches are of: "sessions" or "utterances".
        batch_size, seed: the run's.
        step: the step, from 0.
    """

    def elements(records: tf.Tensor) -> tf.Tensor:
        ids, turns = parse_session_ids(records)
        return ids if samples == "sessions" else tf.repeat(ids, turns)

    epochs = repeat_epochs(
        folder,
        split,
        elements,
        samples=samples,
        batch_size=batch_size,
        seed=seed,
        first_step=step,
    )
    ids = [session.numpy() for *_, session in epochs.take(batch_size)]
    return [session.decode("utf-8", "replace") for session in ids]
