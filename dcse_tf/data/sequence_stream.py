"""Datasets of dialogues encoded as sequences, for response selection and post-training."""

from collections.abc import Callable

import tensorflow as tf

from dcse_tf.data.dialogue_tasks import draw_dialogue
from dcse_tf.data.manifest import Corpus
from dcse_tf.data.post_training import (
    PostTrainingForm,
    draw_example,
    make_post_training_batches,
)
from dcse_tf.data.records import parse_given, parse_session
from dcse_tf.data.selection import SelectionForm, make_selection_batches
from dcse_tf.data.stream import (
    BATCHES,
    SAMPLES,
    Stream,
    fold_seed,
    in_turn,
    repeat_epochs,
    without_autograph,
)


def make_selection_dataset(
    corpus: Corpus, form: SelectionForm, stream: Stream, split: str = "train"
) -> tf.data.Dataset:
    """Batches of response selection and its auxiliary tasks; `replicas` of them per step.

    Args:
        corpus: the corpus; the elements are its sessions.
        form: how sessions are turned into examples, see `make_selection_batches`.
        stream: how the corpus is read.
        split: which of its splits to read.
    """

    def draw(session: dict, seed: tf.Tensor) -> dict:
        given = session.get("given")
        return draw_dialogue(
            session, seed, form.context_turns, given, form.negatives, form.rule.prefix_tokens
        )

    def assemble(samples: dict, seed: tf.Tensor) -> list[dict]:
        return make_selection_batches(samples, form, seed, stream.replicas, stream.layout)

    return _batch_sessions(corpus, split, stream, draw, assemble, form.given)


def make_post_training_dataset(
    corpus: Corpus, form: PostTrainingForm, stream: Stream, split: str = "train"
) -> tf.data.Dataset:
    """Batches of post-training, see `make_post_training_batches`; `replicas` of them per step.

    The arguments are those of `make_selection_dataset`.
    """

    def draw(session: dict, seed: tf.Tensor) -> dict:
        return draw_example(session, seed, form)

    def assemble(samples: dict, seed: tf.Tensor) -> list[dict]:
        return make_post_training_batches(samples, form, seed, stream.replicas, stream.layout)

    return _batch_sessions(corpus, split, stream, draw, assemble)


@without_autograph
def _batch_sessions(
    corpus: Corpus,
    split: str,
    stream: Stream,
    draw: Callable[[dict, tf.Tensor], dict],
    assemble: Callable[[dict, tf.Tensor], list[dict]],
    given: bool = False,
) -> tf.data.Dataset:
    """Batches of samples that are drawn from sessions.

    Args:
        corpus, split, stream: what to read, and how.
        draw: draws a session's sample, given the features of its record and a seed.
        assemble: makes the batches of a step, given its batched samples and a seed.
        given: whether to add the record's candidates to the features as "given", see `parse_given`.
    """

    def parse(step: tf.Tensor, epoch: tf.Tensor, index: tf.Tensor, record: tf.Tensor) -> tuple:
        session: dict = parse_session(record)
        if given:
            session["given"] = parse_given(record)
        return step, draw(session, fold_seed(stream.seed, epoch, index, SAMPLES))

    def collect(steps: tf.Tensor, samples: dict) -> tuple[dict, ...]:
        return stream.take_own(assemble(samples, fold_seed(stream.seed, steps[0], BATCHES)))

    sessions = corpus.manifest.splits[split]
    dataset = repeat_epochs(corpus.folder, sessions, "sessions", lambda records: records, stream)
    dataset = dataset.map(parse, tf.data.AUTOTUNE)
    dataset = dataset.ragged_batch(stream.batch_size, drop_remainder=not stream.most)
    return in_turn(dataset.map(collect, tf.data.AUTOTUNE))
