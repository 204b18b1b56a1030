"""Shards to batches: endless, deterministic, resumable at any step.

All randomness is derived from (seed, epoch) for the order, (seed, epoch, index) for a sample and
(seed, step) for a batch. To resume, build the pipeline with a later first step: whole windows
before that step are never read.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from dcse_tf.bert.layout import Layout, lay_out
from dcse_tf.data.batch import (
    cut_session,
    make_batches,
    make_sample,
    make_simcse_batches,
    turns_of_samples,
    turns_of_sessions,
)
from dcse_tf.data.dialogue import Context
from dcse_tf.data.flat_contexts import flatten_contexts
from dcse_tf.data.manifest import Blocks, Corpus, Split, read_blocks
from dcse_tf.data.masking import MaskingRule, list_predictions, mask_tokens
from dcse_tf.data.records import (
    parse_session,
    parse_session_ids,
    parse_utterances,
    shard_paths,
)
from dcse_tf.data.rehearsal import RehearsalForm, append_garbled

_READ_BLOCKS = 8

PADDED = Layout("padded")

# For functions made of TensorFlow operations alone: AutoGraph would take longer to convert them
# than TensorFlow takes to trace them.
without_autograph = tf.autograph.experimental.do_not_convert

Elements = Callable[[tf.Tensor], tf.Tensor | tf.RaggedTensor]


class Windows(NamedTuple):
    """The windows of an epoch, in order. The elements of a window are shuffled together.

    Attributes:
        blocks: int64 `[windows, (blocks)]`, ragged: the block numbers of each window.
        ends: int64 `[windows]`, number of the epoch's elements up to the end of each window.
    """

    blocks: tf.RaggedTensor
    ends: tf.Tensor


def draw_windows(sizes: tf.Tensor, window: int, seed: tf.Tensor) -> Windows:
    """Shuffles the blocks of a split and divides them into windows.

    Args:
        sizes: int64 `[blocks]`, number of elements of each block, all positive.
        window: number of elements of a window. A block belongs to the window that contains its
            first element, so a window may exceed this by part of its last block.
        seed: int64 `[2]`; it alone determines the order.
    """
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(sizes, tf.int64)), seed)
    sizes = tf.gather(sizes, order)
    ends = tf.cumsum(sizes)
    _, _, counts = tf.unique_with_counts((ends - sizes) // window, tf.int64)
    blocks = tf.RaggedTensor.from_row_lengths(order, counts, validate=False)
    return Windows(blocks, tf.gather(ends, blocks.row_limits() - 1))


def read_windows(
    windows: Windows,
    blocks: Blocks,
    paths: tf.Tensor,
    elements: Elements,
    seed: tf.Tensor,
    done: tf.Tensor,
) -> tf.data.Dataset:
    """Yields the elements of all windows, shuffled within each window.

    The first `done` elements are skipped; windows that lie entirely among them are not read.

    Args:
        windows: the windows of the epoch.
        blocks: the blocks of the split, as int64 tensors.
        paths: strings `[shards]`, the files of the split.
        elements: converts the records of a window, strings `[sessions]`, to elements.
        seed: int64 `[2]`, the epoch's seed.
        done: int64 scalar, number of elements to skip at the beginning of the epoch.
    """

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

    first = tf.searchsorted(windows.ends, [done], side="right", out_type=tf.int64)[0]
    numbers = tf.data.Dataset.range(first, windows.blocks.nrows(), output_type=tf.int64)
    # The next window is read while this one is used.
    return numbers.flat_map(read).prefetch(1).flat_map(shuffle)


def _read_block(path: tf.Tensor, block: Blocks) -> tf.data.Dataset:
    """The records of a block, as string scalars."""
    # TFRecordDataset cannot start in the middle of a file; the underlying operation can.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type="",
        buffer_size=block.bytes,
        byte_offsets=[block.offset],
    )
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    return records.take(block.sessions)


# Default number of elements that are shuffled together.
WINDOW = {"sessions": 20_000, "utterances": 100_000}
# Each purpose draws its random numbers from its own stream of the run's seed.
_BLOCKS, _ORDER, SAMPLES, BATCHES, _GARBLED = range(5)


def fold_seed(*parts: tf.Tensor | int) -> tf.Tensor:
    """Folds any number of integers into a stateless seed `[2]`."""
    seed = tf.constant([0, 0], tf.int64)
    for part in parts:
        seed = tf.random.fold_in(seed, tf.cast(part, tf.int64))
    return seed


@dataclasses.dataclass(frozen=True)
class Stream:
    """How a corpus is read into the batches of successive steps.

    Attributes:
        batch_size: elements (sessions or utterances) per step, over all replicas.
        seed: the run's seed; with epoch, index and step it determines every draw.
        first_step: the step to start at; step 0 is the start of the training.
        replicas: number of batches per step; must divide `batch_size`.
        layout: layout of the utterance tables.
        window: number of elements that are shuffled together; 0 for the default in `WINDOW`.
        own: numbers of the replicas whose batches this stream yields; None for all.
        most: elements after which the stream of a single pass ends, with a last batch that may be
            smaller; 0 for an endless stream of whole batches.
    """

    batch_size: int
    seed: int
    first_step: int = 0
    replicas: int = 1
    layout: Layout = PADDED
    window: int = 0
    own: range | None = None
    most: int = 0

    def take_own(self, batches: Sequence[dict[str, tf.Tensor]]) -> tuple[dict[str, tf.Tensor], ...]:
        """Selects this stream's own batches from those of all replicas."""
        return tuple(batches if self.own is None else [batches[number] for number in self.own])


def repeat_epochs(
    folder: pathlib.Path, split: Split, samples: str, elements: Elements, stream: Stream
) -> tf.data.Dataset:
    """An endless dataset of shuffled epochs, each of whole batches.

    Each epoch drops the elements left over after its last whole batch, unless the stream has an
    end; the shuffle makes them different ones every time. Whatever the first step, a whole window
    is read before the first element is available.

    Args:
        folder: the prepared corpus.
        split: which of its splits to read.
        samples: what the elements are, "sessions" or "utterances".
        elements: converts the records of a window, strings `[sessions]`, to elements.
        stream: batch size, seed, first step and window.

    Returns:
        A dataset of (step, epoch, index in the epoch, element).

    Raises:
        InputError: the split's index cannot be read.
    """
    blocks = Blocks(*map(tf.constant, read_blocks(folder, split)))
    paths = tf.constant(shard_paths(folder, split))
    window, batch_size = stream.window or WINDOW[samples], stream.batch_size
    steps_per_epoch = getattr(split, samples) // batch_size + bool(stream.most)
    first_epoch, steps_done = divmod(stream.first_step, steps_per_epoch)

    def make_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        drawn = fold_seed(stream.seed, epoch, _BLOCKS)
        windows = draw_windows(getattr(blocks, samples), window, drawn)
        done = tf.where(epoch == first_epoch, tf.constant(steps_done * batch_size, tf.int64), 0)
        order = fold_seed(stream.seed, epoch, _ORDER)
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

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(make_epoch)
    return epochs.take(stream.most) if stream.most else epochs


def list_sessions(corpus: Corpus, samples: str, stream: Stream) -> list[str]:
    """Lists, in order, the ids of the sessions that the stream's first step is sampled from.

    Args:
        corpus: the corpus; its train split is read.
        samples: what the batches consist of, "sessions" or "utterances".
        stream: how the corpus is read.
    """

    def elements(records: tf.Tensor) -> tf.Tensor:
        ids, turns = parse_session_ids(records)
        return ids if samples == "sessions" else tf.repeat(ids, turns)

    split = corpus.manifest.splits["train"]
    epochs = repeat_epochs(corpus.folder, split, samples, elements, stream)
    ids = [session.numpy() for *_, session in epochs.take(stream.batch_size)]
    return [session.decode("utf-8", "replace") for session in ids]


@dataclasses.dataclass(frozen=True)
class BatchForm:
    """How the contrastive objectives sample a session, and what a batch contains.

    Attributes:
        name: "plain" and "unique" use one turn of a session as the response, "dense" every turn
            of a run of consecutive turns. "plain" encodes every use of an utterance separately, as
            in the paper's procedure; the others encode each distinct utterance once.
        negatives: number of negatives per response; 0 for all that the batch has.
        session_turns: maximum turns of a run in "dense".
        context_tokens: if positive, the turns of a context are joined into one sequence of at most
            this many tokens, see `flatten_contexts`.
    """

    name: str
    negatives: int
    session_turns: int = 0
    context_tokens: int = 0


@without_autograph
def make_contrastive_dataset(
    corpus: Corpus,
    form: BatchForm,
    context: Context,
    stream: Stream,
    rehearsal: RehearsalForm | None = None,
) -> tf.data.Dataset:
    """Batches for the contrastive objectives, see `make_batches`; `replicas` of them per step.

    Args:
        corpus: the corpus; the elements are the sessions of its train split.
        form: how a session is sampled.
        context: which turns around a response form its context.
        stream: how the corpus is read.
        rehearsal: garbled texts to add to every step, if any.
    """
    split, longest = corpus.manifest.splits["train"], corpus.manifest.max_sequence_length
    is_dense = form.name == "dense"

    def parse(step: tf.Tensor, epoch: tf.Tensor, index: tf.Tensor, record: tf.Tensor) -> tuple:
        session, draw = parse_session(record), fold_seed(stream.seed, epoch, index, SAMPLES)
        if is_dense:
            return step, cut_session(session, draw, form.session_turns)
        return step, make_sample(session, draw, context, longest)

    def assemble(steps: tf.Tensor, elements: dict) -> tuple[dict, ...]:
        if is_dense:
            turns = turns_of_sessions(elements, context, stream.replicas)
        else:
            turns = turns_of_samples(elements, stream.replicas)
        if form.context_tokens:
            turns = flatten_contexts(turns, context.turns, form.context_tokens)
        if rehearsal:
            drawn = fold_seed(stream.seed, steps[0], _GARBLED)
            turns = append_garbled(turns, rehearsal, drawn)
        batches = make_batches(
            turns,
            form.negatives,
            fold_seed(stream.seed, steps[0], BATCHES),
            stream.replicas,
            stream.layout,
            distinct=form.name != "plain",
        )
        return stream.take_own(batches)

    dataset = repeat_epochs(corpus.folder, split, "sessions", lambda records: records, stream)
    dataset = dataset.map(parse, tf.data.AUTOTUNE)
    collect = dataset.ragged_batch if is_dense else dataset.batch
    dataset = collect(stream.batch_size, drop_remainder=True)
    return in_turn(dataset.map(assemble, tf.data.AUTOTUNE))


@without_autograph
def make_masked_lm_dataset(
    corpus: Corpus, rule: MaskingRule, stream: Stream, split: str = "train"
) -> tf.data.Dataset:
    """Batches for masked language modelling, see `mask_tokens`; `replicas` of them per step.

    Args:
        corpus: the corpus; the elements are its utterances.
        rule: how tokens are masked; the masks are drawn anew in every epoch.
        stream: how the corpus is read.
        split: which of its splits to read.
    """

    def mask(step: tf.Tensor, token_ids: tf.Tensor) -> tuple[dict, ...]:
        batch = mask_tokens(token_ids, rule, fold_seed(stream.seed, step[0], BATCHES))
        parts = {name: tf.split(value, stream.replicas) for name, value in batch.items()}
        batches = []
        for replica in range(stream.replicas):
            own = {name: part[replica] for name, part in parts.items()}
            table = lay_out(own.pop("token_ids"), stream.layout)
            batches.append({**table, **list_predictions(own)})
        return stream.take_own(batches)

    dataset = _utterances(corpus, split, stream)
    return in_turn(dataset.map(mask, tf.data.AUTOTUNE))


@without_autograph
def make_simcse_dataset(corpus: Corpus, stream: Stream) -> tf.data.Dataset:
    """Batches that pair every utterance with itself, see `make_simcse_batches`; `replicas` of them
    per step.
    """

    def assemble(steps: tf.Tensor, token_ids: tf.Tensor) -> tuple[dict, ...]:
        batches = make_simcse_batches(token_ids, stream.replicas, stream.layout)
        return stream.take_own(batches)

    return in_turn(_utterances(corpus, "train", stream).map(assemble, tf.data.AUTOTUNE))


def _utterances(corpus: Corpus, split: str, stream: Stream) -> tf.data.Dataset:
    """Batches of utterances: steps `[batch]`, and token ids `[batch, tokens]` padded to the
    longest utterance of the batch.
    """
    dataset = repeat_epochs(
        corpus.folder, corpus.manifest.splits[split], "utterances", parse_utterances, stream
    )
    dataset = dataset.map(lambda step, epoch, index, token_ids: (step, token_ids))
    whole = not stream.most
    return dataset.padded_batch(stream.batch_size, ([], [None]), drop_remainder=whole)


def in_turn(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Flattens tuples of batches into single batches; a strategy takes one for each replica."""

    def split(*parts: dict[str, tf.Tensor]) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensors(parts[0])
        for part in parts[1:]:
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(part))
        return dataset

    return batches.flat_map(split).prefetch(tf.data.AUTOTUNE)
