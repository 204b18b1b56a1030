"""Evaluation on dev data during training."""

import functools
import pathlib
from collections.abc import Callable, Sequence

import keras
from absl import logging

from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.evaluation import geometry, response_selection
from dcse_tf.evaluation.metrics import Encode, Evaluation
from dcse_tf.evaluation.names import (
    CANDIDATES,
    PROJECTED,
    RERANKER,
    RETRIEVAL,
    STS,
    all_contexts,
    rank_scores,
)
from dcse_tf.evaluation.retrieval import RetrievalSet, evaluate_retrieval, read_retrieval_set
from dcse_tf.evaluation.sts import StsSet, evaluate_sts, read_sts_set
from dcse_tf.matching.head_files import list_head_maps
from dcse_tf.matching.matching_files import PAPER
from dcse_tf.matching.projection import ProjectionHead
from dcse_tf.reranker.checkpoint_scorer import GraphScorer
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.spec import Scores, Setup


class DevEvaluation:
    """Scores the current encoder on dev data.

    The scores are the task's own, those of response selection on the dev sessions with each of the
    task's similarities, and those on the files of `dev_retrieval` and `dev_sts`. They are
    percentages, except for masked language modelling: a loss, and a share of the predictions.

    Attributes:
        scorer: computes the current encoder's matching similarity; None if the task has none.
        retrieval: the retrieval set of `dev_retrieval`; None if there is none.
        geometry: figures of `geometry.describe` from the last evaluation, by "SET/FIGURE". They are
            not scores: higher is not better.
    """

    def __init__(self, setup: Setup, model: keras.Model):
        options = setup.options
        task = TASKS[options.task]
        self.scorer: GraphBackend | None = None
        self.retrieval: RetrievalSet | None = None
        self.geometry: Scores = {}
        self._parts: list[Callable[[], Scores]] = [task.make_evaluation(setup, model)]
        ways = options.similarities
        self._ways = all_contexts(ways)
        samples = _dev_samples(setup) if ways else []
        if task.make_scorer:
            if samples:
                scorer, settings = task.make_scorer(setup, model)
                # With the model's current weights.
                reranker = Reranker(GraphScorer(scorer.score), settings, setup.vocabulary)
                self._parts.append(functools.partial(_rank, samples, reranker))
            return

        graph = EncoderGraph(
            setup.encoder,
            setup.vocabulary,
            setup.manifest.max_sequence_length,
            pooling="mean",
            matching=setup.parts.matching or PAPER,
        )
        backend = GraphBackend(graph)
        encoder = SentenceEncoder(backend)
        # Without a warning of truncated texts in every evaluation.
        self._encode: Encode = lambda texts: encoder.encode_and_mark(texts)[0]
        if samples and "matching" in ways:
            self.scorer = backend
            self._parts.append(functools.partial(self._match, samples))
        if samples and "cosine" in ways:
            heads = setup.parts.heads if PROJECTED in ways else ()
            self._parts.append(functools.partial(self._compare, samples, heads))
        if options.dev_retrieval:
            self.retrieval = read_retrieval_set(pathlib.Path(options.dev_retrieval))
            self._parts.append(functools.partial(self._retrieve, self.retrieval))
        if options.dev_sts:
            sts = read_sts_set(pathlib.Path(options.dev_sts))
            self._parts.append(functools.partial(self._correlate, sts))

    def evaluate(self) -> Scores:
        """Computes the scores, by name, such as "dev/map"."""
        self.geometry = {}
        return {f"dev/{name}": value for part in self._parts for name, value in part().items()}

    def _match(self, samples: list[response_selection.Sample]) -> Scores:
        assert self.scorer is not None
        found = response_selection.evaluate_both_contexts(samples, self.scorer.score, "matching")
        return self._list_ranks(found)

    def _compare(
        self, samples: list[response_selection.Sample], heads: Sequence[ProjectionHead]
    ) -> Scores:
        """The cosine of the embeddings and, with heads, also behind these."""
        maps = list_head_maps(heads)
        found = response_selection.evaluate_by_embeddings(samples, self._encode, maps)
        self.geometry |= _select(found["cosine"], geometry.NAMES, "sessions/")
        return self._list_ranks(found)

    def _list_ranks(self, found: dict[str, Evaluation]) -> Scores:
        scores: Scores = {}
        for way in self._ways:  # with earlier turns first
            if way in found:
                scores |= _select(found[way], rank_scores(way))
        return scores

    def _retrieve(self, retrieval: RetrievalSet) -> Scores:
        found = evaluate_retrieval(retrieval, self._encode)
        self.geometry |= _select(found, geometry.NAMES, "retrieval/")
        return _select(found, RETRIEVAL)

    def _correlate(self, sts: StsSet) -> Scores:
        found = evaluate_sts(sts, self._encode)
        self.geometry |= _select(found, geometry.NAMES, "sts/")
        return _select(found, STS)


def _rank(samples: list[response_selection.Sample], reranker: Reranker) -> Scores:
    score = functools.partial(reranker.score, show_progress=False)
    found = response_selection.evaluate_samples(
        samples, response_selection.score_dialogues(score), RERANKER
    )
    return _select(found, rank_scores(RERANKER))


def _select(evaluation: Evaluation, names: Sequence[str], prefix: str = "") -> Scores:
    scores = evaluation.scores
    return {f"{prefix}{name}": scores[name] for name in names if name in scores}


def _dev_samples(setup: Setup) -> list[response_selection.Sample]:
    options = setup.options
    if not options.dev_samples:
        return []
    path = setup.data_dir / "dev.jsonl"
    samples = response_selection.make_samples(
        response_selection.read_sessions(path),
        candidates=CANDIDATES,
        context_turns=options.context.turns,
        max_samples=options.dev_samples,
        seed=options.seed,
    )
    if not samples:
        few = f"{path}: too few dev sessions"
        if options.dev_samples < CANDIDATES:
            few = f"`dev_samples`={options.dev_samples}: too few"
        logging.warning("%s to rank a response among %d; no response selection", few, CANDIDATES)
    return samples
