"""Shards to batches: endless, deterministic, resumable at any step.

Everything random comes from (seed, epoch) for the order, (seed, epoch, index) for a sample and
(seed, step) for a batch. To resume, the pipeline is built with another first step: it then passes
over the records before it without parsing them.
"""

import pathlib
from collections.abc import Callable, Sequence

import tensorflow as tf

from dcse_tf.data.batches import make_batches, turns_of_samples, turns_of_sessions
from dcse_tf.data.manifest import Manifest
from dcse_tf.data.masking import MaskingRule, mask_tokens
from dcse_tf.data.samples import cut_session, make_sample
from dcse_tf.data.tfrecords import parse_session, shard_paths

_SHUFFLE_SESSIONS = 20_000
_SHUFFLE_UTTERANCES = 100_000
_READ_SHARDS = 8
# Streams of random numbers of one seed that must not coincide.
_SHARDS, _ORDER, _SAMPLES, _BATCHES = range(4)

Elements = Callable[[tf.Tensor], tf.data.Dataset]


def _seed(*parts: tf.Tensor | int) -> tf.Tensor:
    """A stateless seed `[2]` from any number of integers."""
    seed = tf.constant([0, 0], tf.int64)
    for part in parts:
        seed = tf.random.fold_in(seed, tf.cast(part, tf.int64))
    return seed


def read_records(paths: Sequence[str], seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    """The records of one epoch: shards in drawn order, read together. Yields string scalars."""
    files = tf.random.experimental.stateless_shuffle(
        tf.constant(list(paths)), _seed(seed, epoch, _SHARDS)
    )
    return tf.data.Dataset.from_tensor_slices(files).interleave(
        lambda path: tf.data.TFRecordDataset(path, buffer_size=1 << 20),
        cycle_length=_READ_SHARDS,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def repeat_epochs(
    elements: Elements, epoch_size: int, batch_size: int, buffer: int, seed: int, first_step: int
) -> tf.data.Dataset:
    """Shuffled epochs of whole batches, one after another, without end.

    An epoch leaves out the elements that do not fill a batch; they are others every time.

    Args:
        elements: makes the unshuffled elements of the epoch given.
        epoch_size: number of them.
        batch_size: elements a step.
        buffer: elements shuffled at a time.
        seed: the run's seed.
        first_step: the step, from 0 at the start of the training, whose elements come first.

    Returns:
        A dataset of (step, epoch, index in the epoch, element).
    """
    steps_per_epoch = epoch_size // batch_size
    first_epoch, steps_done = divmod(first_step, steps_per_epoch)

    def make_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        order = _seed(seed, epoch, _ORDER)
        dataset = elements(epoch).shuffle(
            min(buffer, epoch_size), seed=order[0], reshuffle_each_iteration=False
        )
        dataset = dataset.take(steps_per_epoch * batch_size)
        done = tf.where(epoch == first_epoch, steps_done * batch_size, 0)
        return (
            dataset.enumerate()
            .skip(tf.cast(done, tf.int64))
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


def make_contrastive_dataset(
    folder: pathlib.Path,
    manifest: Manifest,
    *,
    batch_form: str,
    batch_size: int,
    session_turns: int,
    negatives: int,
    context_turns: int,
    context_side: str,
    seed: int,
    first_step: int = 0,
    replicas: int = 1,
) -> tf.data.Dataset:
    """Batches for the contrastive objective, see `make_batches`; `replicas` of them a step.

    An element is a session, of which the forms "plain" and "unique" take one turn as a response
    and "dense" every turn of a run of `session_turns`.
    """
    split = manifest.splits["train"]
    paths = shard_paths(folder, split)
    dataset = repeat_epochs(
        lambda epoch: read_records(paths, seed, epoch),
        epoch_size=split.sessions,
        batch_size=batch_size,
        buffer=_SHUFFLE_SESSIONS,
        seed=seed,
        first_step=first_step,
    )

    def parse(step: tf.Tensor, epoch: tf.Tensor, index: tf.Tensor, record: tf.Tensor) -> tuple:
        session, draw = parse_session(record), _seed(seed, epoch, index, _SAMPLES)
        if batch_form == "dense":
            return step, cut_session(session, draw, session_turns)
        longest = manifest.max_sequence_length
        return step, make_sample(session, draw, context_turns, context_side, longest)

    def assemble(steps: tf.Tensor, elements: dict) -> tf.data.Dataset:
        if batch_form == "dense":
            turns = turns_of_sessions(elements, context_turns, context_side, replicas)
        else:
            turns = turns_of_samples(elements, replicas)
        draw = _seed(seed, steps[0], _BATCHES)
        return _in_turn(make_batches(turns, negatives, draw, replicas, batch_form != "plain"))

    dataset = dataset.map(parse, tf.data.AUTOTUNE)
    collect = dataset.ragged_batch if batch_form == "dense" else dataset.batch
    dataset = collect(batch_size, drop_remainder=True)
    return dataset.flat_map(assemble).prefetch(tf.data.AUTOTUNE)


def make_masked_lm_dataset(
    folder: pathlib.Path,
    manifest: Manifest,
    *,
    split: str,
    batch_size: int,
    rule: MaskingRule,
    seed: int,
    first_step: int = 0,
    replicas: int = 1,
) -> tf.data.Dataset:
    """Batches for masked language modelling, see `mask_tokens`; `replicas` of them a step.

    An element is an utterance; its mask is drawn anew in every epoch.
    """
    paths = shard_paths(folder, manifest.splits[split])

    def utterances(epoch: tf.Tensor) -> tf.data.Dataset:
        return read_records(paths, seed, epoch).flat_map(
            lambda record: tf.data.Dataset.from_tensor_slices(parse_session(record)["token_ids"])
        )

    dataset = repeat_epochs(
        utterances,
        epoch_size=manifest.splits[split].utterances,
        batch_size=batch_size,
        buffer=_SHUFFLE_UTTERANCES,
        seed=seed,
        first_step=first_step,
    )

    def mask(step: tf.Tensor, token_ids: tf.Tensor) -> tf.data.Dataset:
        batch = mask_tokens(token_ids, rule, _seed(seed, step[0], _BATCHES))
        parts = {name: tf.split(value, replicas) for name, value in batch.items()}
        return _in_turn([{k: v[i] for k, v in parts.items()} for i in range(replicas)])

    dataset = dataset.map(lambda step, epoch, index, token_ids: (step, token_ids))
    dataset = dataset.padded_batch(batch_size, ([], [None]), drop_remainder=True)
    return dataset.flat_map(mask).prefetch(tf.data.AUTOTUNE)


def _in_turn(batches: list[dict[str, tf.Tensor]]) -> tf.data.Dataset:
    """One element a replica, in the replicas' order, as MirroredStrategy takes them."""
    dataset = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    return dataset
