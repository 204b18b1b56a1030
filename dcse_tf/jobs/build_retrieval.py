"""The job that builds a semantic retrieval set."""

import dataclasses
import pathlib

import numpy as np

from dcse_tf.config import BuildRetrievalConfig
from dcse_tf.data.labelled_sentences import one_intent_each, read_sentences
from dcse_tf.data.words import make_splitter
from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval_builder import (
    Selection,
    build_retrieval_set,
    sample_balanced,
)
from dcse_tf.evaluation.semantic_retrieval import write_retrieval_set
from dcse_tf.progress import Progress

_HARD_NEGATIVES = 40  # of every query in the authors' files


@dataclasses.dataclass(frozen=True)
class Built:
    """What the set has, and what was left out of it and why."""

    sentences: int
    intents: int
    queries: int
    positives: float
    negatives: float
    left_out: dict[str, int]


def build_retrieval(config: BuildRetrievalConfig) -> Built:
    """Reads, draws, ranks and writes.

    Raises:
        InputError: the input cannot be used, or gives no query.
        FileExistsError: the output exists and may not be replaced.
    """
    output = pathlib.Path(config.output)
    if output.exists() and not config.overwrite:
        raise FileExistsError(f"{output} exists already; give another file, or --overwrite")
    split = make_splitter(config.words)
    sentences, left_out = read_sentences(config, split)
    labelled, unlabelled = one_intent_each(sentences)
    if not labelled:
        raise InputError(
            f"--input={','.join(config.input)}: no sentence with one intent "
            f"({len(sentences)} sentences read)"
        )
    drawn, not_drawn = sample_balanced(labelled, config.sentences, config.seed)
    hard = config.selection == "hard"
    selection = Selection(
        config.selection,
        config.candidates,
        config.max_positives,
        config.max_negatives or (_HARD_NEGATIVES if hard else 0),
    )
    progress = Progress("queries")
    retrieval_set, dropped = build_retrieval_set(drawn, split, selection, progress.update)
    write_retrieval_set(output, retrieval_set)
    return Built(
        sentences=len(drawn),
        intents=len({intent for _, intent in drawn}),
        queries=len(retrieval_set.queries),
        positives=float(np.mean([len(q.positives) for q in retrieval_set.queries])),
        negatives=float(np.mean([len(q.negatives) for q in retrieval_set.queries])),
        left_out={**left_out, **unlabelled, **not_drawn, **dropped},
    )
