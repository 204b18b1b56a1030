"""Evaluation on dev data during training."""

import collections
import functools
import pathlib
from collections.abc import Callable, Iterator

from absl import logging

from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.evaluation import metrics, retrieval
from dcse_tf.evaluation import response_selection as selection
from dcse_tf.matching.head_files import list_head_maps
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.reranker.scorers import make_graph_scorer
from dcse_tf.tasks.objective import Objective, make_evaluation
from dcse_tf.tasks.spec import Scores


def make_dev_evaluation(objective: Objective) -> Callable[[], Scores]:
    """Makes the evaluation of the current encoder on dev data: its scores by name, as "dev/map".

    The scores are the task's own, those of response selection on the dev sessions with each of the
    task's similarities, and those on the files of `dev_retrieval` and `dev_sts`. They are
    percentages, except for masked language modelling: a loss, and a share of the predictions.
    """
    setup, options = objective.setup, objective.setup.options
    # With earlier turns as the context first, then with all turns.
    ways = metrics.all_contexts(options.similarities)
    names = [name for way in ways for name in metrics.rank_scores(way)]
    names += [*metrics.RETRIEVAL, *metrics.STS]
    samples: list[selection.Sample] = []
    if ways and options.dev_samples:
        path, turns, count = setup.data_dir / "dev.jsonl", options.context.turns, metrics.CANDIDATES
        size = {"candidates": count, "context_turns": turns, "max_samples": options.dev_samples}
        samples = selection.make_samples(selection.read_dialogues(path), **size, seed=options.seed)
        told = [f"dev/{way}_r1 and so on: {metrics.describe_context(way, turns)}" for way in ways]
        if samples:
            message = "dev scores rank a response among %d by the turns around it, at most: %s"
            logging.info(message, count, "; ".join(told))
        else:
            few = "%s, `dev_samples`=%d: too few to rank a response among %d; no response selection"
            logging.warning(few, path, options.dev_samples, count)
    score_task, parts = make_evaluation(objective), list(_list_parts(objective, samples))

    def evaluate() -> Scores:
        found = collections.ChainMap(*(dict(e.scores) for part in parts for e in part().values()))
        scores = score_task() | {name: found[name] for name in names if name in found}
        return {f"dev/{name}": value for name, value in scores.items()}

    return evaluate


def _list_parts(
    objective: Objective, samples: list[selection.Sample]
) -> Iterator[Callable[[], dict[str, metrics.Evaluation]]]:
    """Yields the evaluations of each data set, by their similarities where it has several. A file
    is read now, so that it fails early.
    """
    setup, options = objective.setup, objective.setup.options
    if found := options.make_scorer(objective):
        scorer, settings = found
        # With the model's current weights.
        reranker = Reranker(make_graph_scorer(scorer.score), settings, setup.vocabulary)
        rank = selection.score_by_reranker
        score = functools.partial(reranker.score, show_progress=False)
        if samples:
            yield lambda: selection.evaluate_responses(samples, rank(samples, score))
        return

    length, attention = setup.manifest.max_sequence_length, setup.parts.attention
    graph = EncoderGraph(setup.encoder, setup.vocabulary, length, "mean", attention=attention)
    encoder = SentenceEncoder(graph)
    # Without a warning of truncated texts in every evaluation.
    encode: metrics.Encode = lambda texts: encoder.encode_and_mark(texts)[0]  # noqa: E731
    if samples and "matching" in options.similarities:
        match = selection.score_by_matching
        yield lambda: selection.evaluate_responses(samples, match(samples, graph.score))
    if samples and "cosine" in options.similarities:
        heads = setup.parts.heads if metrics.PROJECTED in options.similarities else ()
        compare = selection.score_by_embeddings
        # The heads learn, so their maps are made anew each time.
        yield lambda: selection.evaluate_responses(
            samples, compare(samples, encode, list_head_maps(heads))
        )
    if options.dev_retrieval:
        queries = retrieval.read_retrieval_set(pathlib.Path(options.dev_retrieval))
        yield lambda: {"": retrieval.evaluate_retrieval(queries, encode)}
    if options.dev_sts:
        sts = retrieval.read_sts_set(pathlib.Path(options.dev_sts))
        yield lambda: {"": retrieval.evaluate_sts(sts, encode)}
