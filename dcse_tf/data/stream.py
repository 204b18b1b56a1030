"""Shards to batches: endless, deterministic, resumable at any step.

Everything random comes from (seed, epoch) for the order, (seed, epoch, index) for a sample and
(seed, step) for a batch. To resume, the pipeline is built with another first step: what lies before
it is not read.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from dcse_tf.data.batch import (
    Shapes,
    cut_session,
    draw_turns,
    make_batches,
    make_sample,
    make_simcse_batches,
    turns_of_samples,
    turns_of_sessions,
)
from dcse_tf.data.dialogue import Context
from dcse_tf.data.flat_contexts import flatten_contexts
from dcse_tf.data.given import pad_given
from dcse_tf.data.manifest import Blocks, Corpus, Split, read_blocks
from dcse_tf.data.masking import MaskingRule, list_predictions, mask_tokens
from dcse_tf.data.neighbours import NeighbourForm, append_pairs
from dcse_tf.data.records import (
    parse_given,
    parse_session,
    parse_session_ids,
    parse_utterances,
    shard_paths,
)
from dcse_tf.data.rehearsal import RehearsalForm, append_garbled
from dcse_tf.model.layout import Layout, lay_out

_READ_BLOCKS = 8

PADDED = Layout("padded")

# For what makes datasets of tensor operations alone: its conversion takes longer than its tracing.
without_autograph = tf.autograph.experimental.do_not_convert

Elements = Callable[[tf.Tensor], tf.Tensor | tf.RaggedTensor]


class Windows(NamedTuple):
    """The windows of an epoch in their order. The elements of a window are shuffled together.

    Attributes:
        blocks: int64 `[windows, (blocks)]`, ragged: the numbers of the blocks of each.
        ends: int64 `[windows]`, elements of the epoch up to the end of each.
    """

    blocks: tf.RaggedTensor
    ends: tf.Tensor


def draw_windows(sizes: tf.Tensor, window: int, seed: tf.Tensor) -> Windows:
    """Shuffles the blocks of a split and divides them into windows.

    Args:
        sizes: int64 `[blocks]`, the elements of each block; none of them 0.
        window: elements of a window. A block belongs to the window in which its first element
            lies, so a window may be larger by a part of its last block.
        seed: int64 `[2]`; it alone decides the order.
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
    """The elements of all windows, each window shuffled, without those that are done.

    A window all of whose elements are done is not read.

    Args:
        windows: those of the epoch.
        blocks: those of the split, as int64 tensors.
        paths: strings `[shards]`, the files of the split.
        elements: makes elements of the records of a window, strings `[sessions]`.
        seed: int64 `[2]`, of the epoch.
        done: int64 scalar, how many elements at the beginning of the epoch to leave out.
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
    """The records of a block, string scalars."""
    # TFRecordDataset cannot start in the middle of a file; the operation behind it can.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type="",
        buffer_size=block.bytes,
        byte_offsets=[block.offset],
    )
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    return records.take(block.sessions)


# How many elements are shuffled together unless a stream says otherwise.
WINDOW = {"sessions": 20_000, "utterances": 100_000}
# Random numbers for different purposes are drawn from different streams of the run's seed.
_BLOCKS, _ORDER, SAMPLES, BATCHES, _GARBLED = range(5)


def fold_seed(*parts: tf.Tensor | int) -> tf.Tensor:
    """A stateless seed `[2]` from any number of integers."""
    seed = tf.constant([0, 0], tf.int64)
    for part in parts:
        seed = tf.random.fold_in(seed, tf.cast(part, tf.int64))
    return seed


@dataclasses.dataclass(frozen=True)
class Stream:
    """How a corpus becomes batches, step after step.

    Attributes:
        batch_size: elements of a step, sessions or utterances, of all replicas together.
        seed: of the run; with epoch, index and step it decides every draw.
        first_step: the step that comes first, counted from 0 at the start of the training.
        replicas: into how many batches each step is divided; it divides `batch_size`.
        layout: of the utterance tables.
        fixed_shapes: whether every batch is filled up to the largest there can be, so that a
            compiled step has one shape.
        window: elements that are shuffled together; 0 for `WINDOW`.
        own: the numbers of the replicas whose batches are made; None for all.
    """

    batch_size: int
    seed: int
    first_step: int = 0
    replicas: int = 1
    layout: Layout = PADDED
    fixed_shapes: bool = False
    window: int = 0
    own: range | None = None

    def take_own(self, batches: Sequence[dict[str, tf.Tensor]]) -> tuple[dict[str, tf.Tensor], ...]:
        """Of the batches of all replicas those that are made."""
        return tuple(batches if self.own is None else [batches[number] for number in self.own])


def repeat_epochs(
    folder: pathlib.Path, split: Split, samples: str, elements: Elements, stream: Stream
) -> tf.data.Dataset:
    """Shuffled epochs of whole batches, one after another, without end.

    An epoch leaves out the elements that do not fill a batch, which are others every time. Wherever
    the first step is, one window has to be read before its first element is there.

    Args:
        folder: the prepared corpus.
        split: which of its splits.
        samples: what the elements are, "sessions" or "utterances".
        elements: makes elements of the records of a window, strings `[sessions]`.
        stream: how they are read.

    Returns:
        A dataset of (step, epoch, index in the epoch, element).

    Raises:
        InputError: the split's index cannot be read.
    """
    blocks = Blocks(*map(tf.constant, read_blocks(folder, split)))
    paths = tf.constant(shard_paths(folder, split))
    window, batch_size = stream.window or WINDOW[samples], stream.batch_size
    steps_per_epoch = getattr(split, samples) // batch_size
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

    return tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(make_epoch)


def list_sessions(corpus: Corpus, samples: str, stream: Stream) -> list[str]:
    """The ids of the sessions that the samples of the stream's first step are from, in order.

    Args:
        corpus: the corpus, of which the train split is read.
        samples: what the batches are of, "sessions" or "utterances".
        stream: how they are read.
    """

    def elements(records: tf.Tensor) -> tf.Tensor:
        ids, turns = parse_session_ids(records)
        return ids if samples == "sessions" else tf.repeat(ids, turns)

    split = corpus.manifest.splits["train"]
    epochs = repeat_epochs(corpus.folder, split, samples, elements, stream)
    ids = [session.numpy() for *_, session in epochs.take(stream.batch_size)]
    return [session.decode("utf-8", "replace") for session in ids]


# With fixed shapes the list of predictions is filled up to a multiple of this: their number
# differs from batch to batch, and each length is a program to compile.
_PREDICTIONS = 64


@dataclasses.dataclass(frozen=True)
class BatchForm:
    """What the contrastive objectives make of a session, and what a batch holds.

    Attributes:
        name: "plain" and "unique" take one turn of a session as a response, "dense" every turn of
            a run of turns. In "plain" each use of an utterance is encoded on its own, as in the
            paper's procedure; in the others each distinct utterance once.
        negatives: for each response; 0 for all that the batch has.
        session_turns: "dense": most turns of a run.
        context_tokens: if given, the turns of a context become one sequence of at most so many
            tokens, see `flatten_contexts`.
        given: most negatives that a session of the corpus gives, for what a teacher says of them;
            0 to leave them. Not with "dense". The response is then a session's last turn.
        rival_contexts: whether there are also the contexts that the negatives are responses to.
        unordered: whether the turns of a session have no order: a response is then any of them,
            its context another. With "unique" and a context of one turn before.
    """

    name: str
    negatives: int
    session_turns: int = 0
    context_tokens: int = 0
    given: int = 0
    rival_contexts: bool = False
    unordered: bool = False


@without_autograph
def make_contrastive_dataset(
    corpus: Corpus,
    form: BatchForm,
    context: Context,
    stream: Stream,
    neighbours: NeighbourForm | None = None,
    rehearsal: RehearsalForm | None = None,
) -> tf.data.Dataset:
    """Batches for the contrastive objectives, see `make_batches`; `replicas` of them a step.

    Args:
        corpus: the corpus, of whose train split an element is a session.
        form: what becomes of a session.
        context: which turns surround a response.
        stream: how the corpus is read.
        neighbours: pairs to be told apart beside the responses, if any.
        rehearsal: texts to be rehearsed beside them, if any.
    """
    split, longest = corpus.manifest.splits["train"], corpus.manifest.max_sequence_length
    is_dense = form.name == "dense"
    shapes = _largest_batch(form, context, stream, longest) if stream.fixed_shapes else None
    if shapes:
        shapes = _with_texts_beside(shapes, neighbours, rehearsal, stream.replicas)

    def parse(step: tf.Tensor, epoch: tf.Tensor, index: tf.Tensor, record: tf.Tensor) -> tuple:
        draw = fold_seed(stream.seed, epoch, index, SAMPLES)
        return step, _draw_sample(record, draw, form, context, longest)

    def assemble(steps: tf.Tensor, elements: dict, pairs: dict | None = None) -> tuple[dict, ...]:
        if is_dense:
            turns = turns_of_sessions(elements, context, stream.replicas)
        else:
            turns = turns_of_samples(elements, stream.replicas)
        if form.context_tokens:
            turns = flatten_contexts(turns, context.turns, form.context_tokens)
        if pairs:
            turns = append_pairs(turns, pairs)
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
            shapes=shapes,
            rival_contexts=form.rival_contexts,
        )
        return stream.take_own(batches)

    dataset = repeat_epochs(corpus.folder, split, "sessions", lambda records: records, stream)
    dataset = dataset.map(parse, tf.data.AUTOTUNE)
    collect = dataset.ragged_batch if is_dense else dataset.batch
    dataset = collect(stream.batch_size, drop_remainder=True)
    if neighbours:
        zipped = tf.data.Dataset.zip(dataset, _read_pairs(neighbours, stream))
        dataset = zipped.map(lambda dialogues, pairs: (*dialogues, pairs))
    return in_turn(dataset.map(assemble, tf.data.AUTOTUNE))


def _draw_sample(
    record: tf.Tensor, seed: tf.Tensor, form: BatchForm, context: Context, longest: int
) -> dict:
    """What a record gives to a batch, by a seed; utterances have at most `longest` tokens."""
    session = parse_session(record)
    if form.unordered:
        session = draw_turns(session, tf.random.fold_in(seed, 0), 2)
    if form.name == "dense":
        return cut_session(session, seed, form.session_turns)
    given = pad_given(parse_given(record), form.given, longest) if form.given else None
    return make_sample(session, seed, context, longest, given)


def _read_pairs(neighbours: NeighbourForm, stream: Stream) -> tf.data.Dataset:
    """The pairs of each step, from the stream's first one on, as `append_pairs` takes them."""
    split, size = neighbours.corpus.manifest.splits["train"], neighbours.pairs
    stream = dataclasses.replace(stream, batch_size=size)
    folder = neighbours.corpus.folder
    pairs = repeat_epochs(folder, split, "sessions", lambda records: records, stream)
    pairs = pairs.map(lambda step, epoch, index, record: parse_session(record), tf.data.AUTOTUNE)
    return pairs.ragged_batch(size, drop_remainder=True)


def _with_texts_beside(
    shapes: Shapes,
    neighbours: NeighbourForm | None,
    rehearsal: RehearsalForm | None,
    replicas: int,
) -> Shapes:
    """Room in a batch for the texts that come to it from beside its dialogues."""
    pairs = 2 * neighbours.pairs if neighbours else 0
    rehearsed = rehearsal.texts // replicas if rehearsal else 0
    return dataclasses.replace(
        shapes,
        utterances=shapes.utterances + pairs + rehearsed,
        neighbours=pairs,
        neighbour_rows=pairs // replicas,
        rehearsed=rehearsed,
    )


def _largest_batch(form: BatchForm, context: Context, stream: Stream, longest: int) -> Shapes:
    """The sizes that no replica's batch exceeds, of utterances of at most `longest` tokens."""
    rows = stream.batch_size * (form.session_turns if form.name == "dense" else 1)
    own = rows // stream.replicas
    candidates = 1 + (min(form.negatives, rows) or rows)

    # A table holds no more than what its rows use...
    given = 1 + form.given if form.given else 0
    contexts = rows if form.rival_contexts else own
    slots = 1 if form.context_tokens else context.slots
    used = contexts * slots + own * (candidates + given)
    # ... and, if each utterance is there once, no more than the step has: with "dense" a turn for
    # each row, with "unique" context and response. Contexts in one sequence are entries beside
    # the responses, and so are given candidates.
    distinct = {"dense": rows, "unique": rows * (1 + context.slots)}
    if form.context_tokens:
        distinct = dict.fromkeys(distinct, rows + contexts)
    utterances = min(used, distinct.get(form.name, used) + own * form.given)

    tokens = max(longest, form.context_tokens)
    return Shapes(own, candidates, utterances, tokens, given, contexts)


@without_autograph
def make_masked_lm_dataset(
    corpus: Corpus, rule: MaskingRule, stream: Stream, split: str = "train"
) -> tf.data.Dataset:
    """Batches for masked language modelling, see `mask_tokens`; `replicas` of them a step.

    Args:
        corpus: the corpus, of which an element is an utterance.
        rule: how its tokens are masked, drawn anew in every epoch.
        stream: how the corpus is read.
        split: which of its splits.
    """

    def mask(step: tf.Tensor, token_ids: tf.Tensor) -> tuple[dict, ...]:
        batch = mask_tokens(token_ids, rule, fold_seed(stream.seed, step[0], BATCHES))
        if stream.fixed_shapes:  # only now, since the draw depends on the width
            missing = corpus.manifest.max_sequence_length - tf.shape(token_ids)[1]
            for name in ("token_ids", "padding_mask"):
                batch[name] = tf.pad(batch[name], [[0, 0], [0, missing]])

        parts = {name: tf.split(value, stream.replicas) for name, value in batch.items()}
        multiple = _PREDICTIONS if stream.fixed_shapes else 1
        batches = []
        for replica in range(stream.replicas):
            own = {name: part[replica] for name, part in parts.items()}
            table = lay_out(own.pop("token_ids"), stream.layout)
            batches.append({**table, **list_predictions(own, multiple)})
        return stream.take_own(batches)

    dataset = _utterances(corpus, split, stream)
    return in_turn(dataset.map(mask, tf.data.AUTOTUNE))


@without_autograph
def make_simcse_dataset(corpus: Corpus, stream: Stream) -> tf.data.Dataset:
    """Batches of utterances and themselves again, see `make_simcse_batches`; `replicas` a step."""
    rows = stream.batch_size // stream.replicas
    longest = corpus.manifest.max_sequence_length
    largest = Shapes(rows, 1 + stream.batch_size, rows + stream.batch_size, longest)
    shapes = largest if stream.fixed_shapes else None

    def assemble(steps: tf.Tensor, token_ids: tf.Tensor) -> tuple[dict, ...]:
        batches = make_simcse_batches(token_ids, stream.replicas, stream.layout, shapes)
        return stream.take_own(batches)

    return in_turn(_utterances(corpus, "train", stream).map(assemble, tf.data.AUTOTUNE))


def _utterances(corpus: Corpus, split: str, stream: Stream) -> tf.data.Dataset:
    """Steps `[batch]` and token ids `[batch, tokens]` of utterances, padded to the longest."""
    dataset = repeat_epochs(
        corpus.folder, corpus.manifest.splits[split], "utterances", parse_utterances, stream
    )
    dataset = dataset.map(lambda step, epoch, index, token_ids: (step, token_ids))
    return dataset.padded_batch(stream.batch_size, ([], [None]), drop_remainder=True)


def in_turn(batches: tf.data.Dataset) -> tf.data.Dataset:
    """From tuples of batches to single batches, of which a strategy takes one a replica."""

    def split(*parts: dict[str, tf.Tensor]) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensors(parts[0])
        for part in parts[1:]:
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(part))
        return dataset

    return batches.flat_map(split).prefetch(tf.data.AUTOTUNE)
