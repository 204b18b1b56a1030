"""Shards to batches: endless, deterministic, resumable at any step.

Everything random comes from (seed, epoch) for the order, (seed, epoch, index) for a sample and
(seed, step) for a batch. To resume, the pipeline is built with another first step: what lies before
it is not read.
"""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from dcse_tf.data.batch import (
    Shapes,
    cut_session,
    flatten_contexts,
    make_batches,
    make_sample,
    make_view_batches,
    turns_of_samples,
    turns_of_sessions,
)
from dcse_tf.data.dialogue import Context
from dcse_tf.data.manifest import Blocks, Manifest, Split, read_blocks
from dcse_tf.data.masking import MaskingRule, list_predictions, mask_tokens
from dcse_tf.data.records import parse_session, parse_session_ids, parse_utterances, shard_paths
from dcse_tf.model.layout import Layout, lay_out

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


# With fixed shapes the predictions of a batch are filled up to a multiple of this.
_PREDICTIONS = 64
PADDED = Layout("padded")


def make_contrastive_dataset(
    folder: pathlib.Path,
    manifest: Manifest,
    *,
    batch_form: str,
    batch_size: int,
    session_turns: int,
    negatives: int,
    context: Context,
    seed: int,
    context_tokens: int = 0,
    layout: Layout = PADDED,
    fixed_shapes: bool = False,
    first_step: int = 0,
    replicas: int = 1,
) -> tf.data.Dataset:
    """Batches for the contrastive objectives, see `make_batches`; `replicas` of them a step.

    An element is a session, of which the forms "plain" and "unique" take one turn as a response
    and "dense" every turn of a run of `session_turns`. With `context_tokens` the turns of a
    context become one sequence of at most so many, see `flatten_contexts`. With `fixed_shapes`
    the batches are filled up to what they can be at most.
    """
    split = manifest.splits["train"]
    longest = manifest.max_sequence_length
    rows = batch_size * (session_turns if batch_form == "dense" else 1)
    shapes = _largest_batch(
        batch_form, rows, replicas, negatives, context.slots, longest, context_tokens
    )
    dataset = repeat_epochs(
        folder,
        split,
        lambda records: records,
        samples="sessions",
        batch_size=batch_size,
        seed=seed,
        first_step=first_step,
    )

    def parse(step: tf.Tensor, epoch: tf.Tensor, index: tf.Tensor, record: tf.Tensor) -> tuple:
        session, draw = parse_session(record), fold_seed(seed, epoch, index, SAMPLES)
        if batch_form == "dense":
            return step, cut_session(session, draw, session_turns)
        return step, make_sample(session, draw, context, longest)

    def assemble(steps: tf.Tensor, elements: dict) -> tuple[dict, ...]:
        if batch_form == "dense":
            turns = turns_of_sessions(elements, context, replicas)
        else:
            turns = turns_of_samples(elements, replicas)
        if context_tokens:
            turns = flatten_contexts(turns, context.turns, context_tokens)
        draw = fold_seed(seed, steps[0], BATCHES)
        distinct, sizes = batch_form != "plain", shapes if fixed_shapes else None
        return tuple(make_batches(turns, negatives, draw, replicas, layout, distinct, sizes))

    dataset = dataset.map(parse, tf.data.AUTOTUNE)
    collect = dataset.ragged_batch if batch_form == "dense" else dataset.batch
    dataset = collect(batch_size, drop_remainder=True)
    return _in_turn(dataset.map(assemble, tf.data.AUTOTUNE))


def _largest_batch(
    batch_form: str,
    rows: int,
    replicas: int,
    negatives: int,
    slots: int,
    longest: int,
    context_tokens: int,
) -> Shapes:
    """The sizes that no replica's batch exceeds, of a step of at most so many rows."""
    own = rows // replicas
    candidates = 1 + (min(negatives, rows) or rows)
    # What the rows use, and what there is: with "dense" a turn of theirs each, with "unique"
    # context and response; contexts in one sequence are entries beside the responses.
    used = own * ((1 if context_tokens else slots) + candidates)
    distinct = {"dense": rows, "unique": rows * (1 + slots)}
    if context_tokens:
        distinct = dict.fromkeys(distinct, rows + own)
    utterances = min(used, distinct.get(batch_form, used))
    return Shapes(own, candidates, utterances, max(longest, context_tokens))


def make_masked_lm_dataset(
    folder: pathlib.Path,
    manifest: Manifest,
    *,
    split: str,
    batch_size: int,
    rule: MaskingRule,
    seed: int,
    layout: Layout = PADDED,
    fixed_shapes: bool = False,
    first_step: int = 0,
    replicas: int = 1,
) -> tf.data.Dataset:
    """Batches for masked language modelling, see `mask_tokens`; `replicas` of them a step.

    An element is an utterance; its mask is drawn anew in every epoch.
    """
    dataset = _utterances(folder, manifest.splits[split], batch_size, seed, first_step)

    def mask(step: tf.Tensor, token_ids: tf.Tensor) -> tuple[dict, ...]:
        batch = mask_tokens(token_ids, rule, fold_seed(seed, step[0], BATCHES))
        if fixed_shapes:  # only now, since the draw depends on the width
            missing = manifest.max_sequence_length - tf.shape(token_ids)[1]
            for name in ("token_ids", "padding_mask"):
                batch[name] = tf.pad(batch[name], [[0, 0], [0, missing]])
        parts = {name: tf.split(value, replicas) for name, value in batch.items()}
        batches = [{name: part[i] for name, part in parts.items()} for i in range(replicas)]
        multiple = _PREDICTIONS if fixed_shapes else 1
        return tuple(
            {**lay_out(batch.pop("token_ids"), layout), **list_predictions(batch, multiple)}
            for batch in batches
        )

    return _in_turn(dataset.map(mask, tf.data.AUTOTUNE))


def make_view_dataset(
    folder: pathlib.Path,
    manifest: Manifest,
    *,
    batch_size: int,
    seed: int,
    layout: Layout = PADDED,
    fixed_shapes: bool = False,
    first_step: int = 0,
    replicas: int = 1,
) -> tf.data.Dataset:
    """Batches of utterances and themselves again, see `make_view_batches`; `replicas` a step."""
    own = batch_size // replicas
    largest = Shapes(own, 1 + batch_size, own + batch_size, manifest.max_sequence_length)
    shapes = largest if fixed_shapes else None

    def assemble(steps: tf.Tensor, token_ids: tf.Tensor) -> tuple[dict, ...]:
        return tuple(make_view_batches(token_ids, replicas, layout, shapes))

    dataset = _utterances(folder, manifest.splits["train"], batch_size, seed, first_step)
    return _in_turn(dataset.map(assemble, tf.data.AUTOTUNE))


def _utterances(
    folder: pathlib.Path, split: Split, batch_size: int, seed: int, first_step: int
) -> tf.data.Dataset:
    """Steps `[batch]` and token ids `[batch, tokens]` of utterances, padded to the longest."""
    dataset = repeat_epochs(
        folder,
        split,
        parse_utterances,
        samples="utterances",
        batch_size=batch_size,
        seed=seed,
        first_step=first_step,
    )
    dataset = dataset.map(lambda step, epoch, index, token_ids: (step, token_ids))
    return dataset.padded_batch(batch_size, ([], [None]), drop_remainder=True)


def _in_turn(batches: tf.data.Dataset) -> tf.data.Dataset:
    """From tuples to one element a replica, in their order, as MirroredStrategy takes them."""

    def split(*parts: dict[str, tf.Tensor]) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensors(parts[0])
        for part in parts[1:]:
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(part))
        return dataset

    return batches.flat_map(split).prefetch(tf.data.AUTOTUNE)
