"""Measures retrieval by embeddings, a re-ranker, and both in sequence: R@1 and time per query.

    dcse build_candidates --format=jsonl --input=data/test.jsonl --nojoin_consecutive \\
        --responses=all --max_sessions=60 --candidates=1000 --output=thousand.jsonl
    python experiments/two_stages.py --candidates_file=thousand.jsonl \\
        --dev_candidates_file=dev_groups.jsonl --encoder=embeddings --reranker=reranker \\
        --output=two_stages.json

For every context, the first 10 and all of its candidates are ranked (the true one is the first in
the file): by the cosine with the mean embedding of its turns (with --find=responses behind the
encoder's projection heads, as in search); by the re-ranker; and in two stages, where the re-ranker
orders the --top candidates by cosine and the others follow. With --dev_candidates_file also by the
re-ranker's score plus the cosine, with the weight that gives the highest MRR on those groups. The
candidates are embedded beforehand, as in an index, so the time of a query covers only its context
and what is computed with it. Queries are timed one at a time, as for a user who waits for the
answer.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from settings import at_least

import dcse_tf
from dcse_tf.data.candidates import read_groups
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError
from dcse_tf.evaluation import bootstrap, metrics
from dcse_tf.evaluation.candidate_groups import make_sample
from dcse_tf.evaluation.response_selection import Sample
from dcse_tf.files import atomic_file
from dcse_tf.input_files import BadLines

Embed = Callable[[list[str]], np.ndarray]

_FEW = 10
_DEV_CONTEXTS = 500
# Weights of the cosine beside the re-ranker's logit that are tried on dev groups.
_WEIGHTS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """How an encoder embeds both sides of a dialogue, for their cosine.

    Attributes:
        context: maps the turns of a context to a vector of length 1, float `[dim]`.
        responses: maps n texts to vectors of length 1, float `[n, dim]`.
    """

    context: Embed
    responses: Embed


def make_embeddings(encoder: dcse_tf.SentenceEncoder, find: str) -> Embeddings:
    """The mean of a context's embeddings, and those of responses; behind the heads if `find` is
    "responses".
    """

    def finish(rows: np.ndarray, side: str) -> np.ndarray:
        return encoder.project(rows, side) if find == "responses" else normalize(rows)

    def context(turns: list[str]) -> np.ndarray:
        mean = encoder.encode(turns, show_progress=False).mean(axis=0, keepdims=True)
        return finish(mean, "context")[0]

    def responses(texts: list[str]) -> np.ndarray:
        return finish(encoder.encode(texts, show_progress=False), "response")

    return Embeddings(context, responses)


@dataclasses.dataclass(frozen=True)
class Scored:
    """The scores of a context's candidates, the true one first.

    Attributes:
        cosines: float `[candidates]`, by the embeddings.
        logits: float `[candidates]`, by the re-ranker.
    """

    cosines: np.ndarray
    logits: np.ndarray

    def add(self, weight: float) -> "Scored":
        """With the weighted cosines added to the re-ranker's logits."""
        return Scored(self.cosines, self.logits + weight * self.cosines)


def read_samples(path: pathlib.Path, count: int) -> list[Sample]:
    """Reads `count` groups, spread evenly over a file, each with its true response first.

    Raises:
        InputError: the file cannot be used, or groups differ in size or are too small.
    """
    groups = list(read_groups(path, "jsonl", BadLines(0)))
    places = np.linspace(0, len(groups) - 1, min(count, len(groups)), dtype=int)
    samples = [make_sample(groups[place]) for place in places]
    sizes = {len(sample.candidates) for sample in samples}
    if len(sizes) != 1 or min(sizes) < _FEW:
        raise InputError(f"{path}: expected groups of one size, {_FEW} or more, found {sizes}")
    return samples


def embed_candidates(samples: Sequence[Sample], embed: Embed) -> dict[str, np.ndarray]:
    """Text -> its embedding of unit length, for each distinct candidate."""
    texts = sorted({text for sample in samples for text in sample.candidates})
    return dict(zip(texts, embed(texts), strict=True))


def find_by_cosine(sample: Sample, candidates: np.ndarray, embed: Embed) -> np.ndarray:
    """The cosines of candidates, unit vectors `[n, dim]`, with the context's."""
    return candidates @ embed(sample.context)


def order_by_reranker(
    sample: Sample, texts: Sequence[str], reranker: dcse_tf.Reranker
) -> np.ndarray:
    """The re-ranker's logits of some candidates."""
    roles = [sample.roles] if sample.roles is not None else None
    responders = [sample.responder] if roles and sample.responder is not None else None
    return reranker.score([sample.context], [list(texts)], roles, responders, False)[0]


def join_stages(scored: Scored, count: int, top: int) -> np.ndarray:
    """Scores of the first `count` candidates in two stages. The `top` candidates by cosine get the
    re-ranker's logits, and all others a lower score. Among equal cosines, those later in the file
    come first, so that the true response comes last.
    """
    cosines, logits = scored.cosines[:count], scored.logits[:count]
    found = np.lexsort([-np.arange(count), -cosines])
    found = found[: min(top, count)]
    scores = np.full(count, logits.min() - 1.0)
    scores[found] = logits[found]
    return scores


def _name(top: int) -> str:
    return f"embeddings, then the re-ranker on {top}"


def choose_weight(scored: Sequence[Scored]) -> float:
    """The weight of the cosine with the highest MRR on dev groups; of equal ones the smallest."""

    def rank(each: Scored, weight: float) -> float:
        scores = each.add(weight).logits
        return metrics.reciprocal_rank(scores, np.arange(len(scores)) == 0)

    means = [np.mean([rank(each, weight) for each in scored]) for weight in _WEIGHTS]
    return _WEIGHTS[int(np.argmax(means))]


def list_ways(
    tops: Sequence[int], weight: float = 0.0
) -> dict[str, Callable[[Scored, int], np.ndarray]]:
    """Name -> function of (scored, count) that gives the scores of the first `count` candidates."""

    def by_both(top: int, weight: float = 0.0) -> Callable[[Scored, int], np.ndarray]:
        return lambda scored, count: join_stages(scored.add(weight), count, top)

    ways: dict[str, Callable[[Scored, int], np.ndarray]] = {
        "embeddings": lambda scored, count: scored.cosines[:count],
        "re-ranker": lambda scored, count: scored.logits[:count],
        **{_name(top): by_both(top) for top in tops},
    }
    if weight:
        plus = _plus(weight)
        ways["re-ranker" + plus] = lambda scored, count: scored.add(weight).logits[:count]
        ways |= {_name(top) + plus: by_both(top, weight) for top in tops}
    return ways


def _plus(weight: float) -> str:
    """The end of a way's name if the cosine is added; the sum takes no time of its own."""
    return f", plus {weight:g} x cosine"


def summarise(
    scored: Sequence[Scored], tops: Sequence[int], weight: float = 0.0
) -> list[dict[str, Any]]:
    """R@1 in percent with its 95% interval, for every way, on 10 and on all candidates."""
    rows = []
    for name, way in list_ways(tops, weight).items():
        for count in sorted({_FEW, len(scored[0].cosines)}):
            hits = np.array([metrics.recall_at(1, way(each, count)) for each in scored])
            limits = bootstrap.interval({"r1": 100.0 * hits}, "r1")
            rows.append(
                {"way": name, "candidates": count, "r1": 100.0 * hits.mean(), "interval": limits}
            )
    return rows


def list_calls(
    sample: Sample,
    count: int,
    vectors: dict[str, np.ndarray],
    embed: Embed,
    reranker: dcse_tf.Reranker,
    tops: Sequence[int],
) -> dict[str, Callable[[], Any]]:
    """Name -> function that answers a query over `count` candidates, whose embeddings are given."""
    texts = sample.candidates[:count]
    rows = np.stack([vectors[text] for text in texts])

    def both(top: int) -> np.ndarray:
        nearest = np.argsort(-find_by_cosine(sample, rows, embed), kind="stable")[:top]
        return order_by_reranker(sample, [texts[place] for place in nearest], reranker)

    return {
        "embeddings": lambda: find_by_cosine(sample, rows, embed),
        "re-ranker": lambda: order_by_reranker(sample, texts, reranker),
        **{_name(top): functools.partial(both, top) for top in tops},
    }


def time_ways(
    samples: Sequence[Sample],
    vectors: dict[str, np.ndarray],
    embed: Embed,
    reranker: dcse_tf.Reranker,
    tops: Sequence[int],
) -> dict[tuple[str, int], float]:
    """(way, candidates) -> median milliseconds per query, without the first, which is warm-up."""
    times: dict[tuple[str, int], list[float]] = {}
    for sample in samples:
        for count in sorted({_FEW, len(sample.candidates)}):
            calls = list_calls(sample, count, vectors, embed, reranker, tops)
            for name, call in calls.items():
                started = time.perf_counter()
                call()
                spent = 1000.0 * (time.perf_counter() - started)
                times.setdefault((name, count), []).append(spent)
    return {key: statistics.median(each[1:] or each) for key, each in times.items()}


def score_all(
    samples: Sequence[Sample],
    vectors: dict[str, np.ndarray],
    embed: Embed,
    reranker: dcse_tf.Reranker,
) -> list[Scored]:
    """Scores every candidate of every context with both models."""
    scored = []
    for number, sample in enumerate(samples, start=1):
        rows = np.stack([vectors[text] for text in sample.candidates])
        logits = order_by_reranker(sample, sample.candidates, reranker)
        scored.append(Scored(find_by_cosine(sample, rows, embed), logits))
        print(f"\r{number} of {len(samples)} contexts", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return scored


def format_markdown(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| | candidates | R@1 | ms a query |", "| --- | ---: | ---: | ---: |"]
    for row in rows:
        low, high = row["interval"] or (float("nan"), float("nan"))
        score = f"{row['r1']:.1f} [{low:.1f}, {high:.1f}]"
        lines.append(f"| {row['way']} | {row['candidates']} | {score} | {row['ms']:.1f} |")
    return "\n".join(lines)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--candidates_file", type=pathlib.Path, required=True, help="written by build_candidates")
    add(
        "--dev_candidates_file",
        type=pathlib.Path,
        help="groups of other dialogues, by which the weight of the cosine beside the re-ranker's "
        "score is chosen",
    )
    add("--encoder", required=True, help="the sentence encoder, as evaluate takes it")
    add(
        "--find",
        choices=("texts", "responses"),
        default="texts",
        help="as in search: whether the first stage is behind the encoder's projection heads",
    )
    add("--reranker", required=True, help="a run directory or checkpoint folder")
    add(
        "--top",
        type=at_least(1),
        nargs="+",
        default=[10, 50, 100],
        help="numbers of candidates that the re-ranker orders",
    )
    add(
        "--contexts", type=at_least(1), default=100, help="how many contexts of the file are ranked"
    )
    add("--timed", type=at_least(1), default=20, help="how many of them are timed")
    add("--output", type=pathlib.Path, required=True, help="JSON file of the figures")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse_arguments(sys.argv[1:])
    try:
        samples = read_samples(options.candidates_file, options.contexts)
        dev = options.dev_candidates_file
        dev_samples = read_samples(dev, _DEV_CONTEXTS) if dev else []
        encoder = dcse_tf.SentenceEncoder.load(options.encoder)
        reranker = dcse_tf.Reranker.load(options.reranker)
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")
    if options.find == "responses" and not encoder.heads:
        sys.exit(f"error: --find=responses: {options.encoder} has no projection heads")

    embed = make_embeddings(encoder, options.find)
    weight = 0.0
    if dev_samples:
        vectors = embed_candidates(dev_samples, embed.responses)
        weight = choose_weight(score_all(dev_samples, vectors, embed.context, reranker))
        print(f"weight of the cosine with the highest MRR on {len(dev_samples)} groups: {weight:g}")
    vectors = embed_candidates(samples, embed.responses)
    scored = score_all(samples, vectors, embed.context, reranker)
    rows = summarise(scored, options.top, weight)
    times = time_ways(samples[: options.timed], vectors, embed.context, reranker, options.top)
    for row in rows:
        row["ms"] = times[row["way"].removesuffix(_plus(weight)), row["candidates"]]
    content = {
        "contexts": len(samples),
        "timed": min(options.timed, len(samples)),
        "cosine_weight": weight,
        "rows": rows,
    }
    with atomic_file(options.output) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(format_markdown(rows))


if __name__ == "__main__":
    main()
