"""Shards to batches: endless, deterministic, resumable at any step.

Everything random comes from (seed, epoch) for the order, (seed, epoch, index) for a sample and
(seed, step) for a batch. To resume, the pipeline is built with another first step: what lies before
it is not read.
"""

import pathlib

import tensorflow as tf

from dcse_tf.data.batches import Shapes, make_batches, turns_of_samples, turns_of_sessions
from dcse_tf.data.epochs import BATCHES, SAMPLES, fold_seed, repeat_epochs
from dcse_tf.data.flat_contexts import flatten_contexts
from dcse_tf.data.layouts import Layout, lay_out
from dcse_tf.data.manifest import Manifest, Split
from dcse_tf.data.masking import MaskingRule, list_predictions, mask_tokens
from dcse_tf.data.samples import context_offsets, cut_session, make_sample
from dcse_tf.data.tfrecords import parse_session, parse_utterances
from dcse_tf.data.views import make_view_batches

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
    context_turns: int,
    context_side: str,
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
    slots = len(context_offsets(context_turns, context_side))
    rows = batch_size * (session_turns if batch_form == "dense" else 1)
    shapes = _largest_batch(batch_form, rows, replicas, negatives, slots, longest, context_tokens)
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
        return step, make_sample(session, draw, context_turns, context_side, longest)

    def assemble(steps: tf.Tensor, elements: dict) -> tuple[dict, ...]:
        if batch_form == "dense":
            turns = turns_of_sessions(elements, context_turns, context_side, replicas)
        else:
            turns = turns_of_samples(elements, replicas)
        if context_tokens:
            turns = flatten_contexts(turns, context_turns, context_tokens)
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
