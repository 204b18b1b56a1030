"""Metrics in NumPy, and the names of scores. The only model that they need is a function from
sentences to embeddings.

A collapsed encoder gives every candidate the same score. Sorting then keeps the order of the file,
and if positives come first in the file, a useless encoder gets excellent figures. Here the value of
a metric under ties is its mean over all orders of the tied candidates, computed exactly (McSherry
and Najork 2008, "Computing information retrieval performance measures efficiently in the presence
of tied scores"), so that constant scores are rated like a random ranking.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from dcse_tf.errors import InputError

# Sentences to embeddings, float `[n, dim]`.
Encode = Callable[[list[str]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A model's scores on one set.

    Attributes:
        scores: name -> score in percent; "chance_x" is the score of a random ranking for "x". Also
            "tie_share" in percent and, not in percent, the number of items.
        items: the values that scores and confidence intervals are computed from, one entry per
            query, pair or sample: either values in percent such as "map", whose mean is the score,
            or the "degree" and "cosine" of pairs, whose correlation is the score.
    """

    scores: dict[str, float]
    items: dict[str, np.ndarray]


# Scores that differ by no more than this are tied: float32 embeddings have about seven digits, and
# the order of summation must not make equal vectors rank differently.
TIE_TOLERANCE = 1e-6


def quantize(scores: np.ndarray) -> np.ndarray:
    """Rounds scores to multiples of TIE_TOLERANCE, as float64.

    For searches, which need one order of all rows although they see only a part at a time. Measures
    must not use it: the border between two multiples may separate scores that are nearly equal.
    Raises InputError if a score is not finite: a diverged encoder must not look like a random one.
    """
    return np.round(_require_finite(scores) / TIE_TOLERANCE) * TIE_TOLERANCE


def _require_finite(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, np.float64)
    if not np.isfinite(scores).all():
        raise InputError("a score is not a finite number: the encoder has diverged")
    return scores


def _sort(scores: np.ndarray, tolerance: float = TIE_TOLERANCE) -> tuple[np.ndarray, np.ndarray]:
    """Sorts scores `[..., n]`, the lowest first: their order, int `[..., n]`, and whether each, in
    that order, is the first of a group of tied ones, bool `[..., n]`.

    Ties are transitive: a group ends where the next score is more than `tolerance` away. So equal
    scores are never separated, whatever other scores there are, and the groups are the same whether
    they are formed from the highest score or from the lowest.
    """
    scores = _require_finite(scores)
    order = np.argsort(scores)
    ordered, first = np.take_along_axis(scores, order, axis=-1), np.ones(scores.shape, bool)
    first[..., 1:] = ordered[..., 1:] - ordered[..., :-1] > tolerance
    return order, first


def tie_groups(scores: np.ndarray, relevant: np.ndarray) -> list[tuple[int, int]]:
    """Groups of tied scores, best first: (size, number of relevant candidates in it), of scores,
    float `[candidates]`, higher is better, and `relevant`, bool `[candidates]`.
    """
    order, first = _sort(scores)
    starts = np.flatnonzero(first)
    hits = np.add.reduceat(relevant[order], starts, dtype=int)
    sizes = np.diff(starts, append=len(first))
    return list(zip(sizes[::-1].tolist(), hits[::-1].tolist(), strict=True))


def average_precision(scores: np.ndarray, relevant: np.ndarray) -> float:
    """Expected average precision of one ranking; ValueError if nothing is relevant."""
    total = int(np.sum(relevant))
    if total == 0:
        raise ValueError("average precision needs a relevant candidate")
    precision, before, hits_before = 0.0, 0, 0
    for size, hits in tie_groups(scores, relevant):
        if hits:
            # For each place in the group: the probability that its candidate is relevant and, if it
            # is, the expected number of relevant candidates up to this place.
            place = np.arange(1, size + 1)
            others = (place - 1) * (hits - 1) / max(1, size - 1)
            precision += float(np.sum(hits / size * (hits_before + 1 + others) / (before + place)))
        before += size
        hits_before += hits
    return precision / total


def reciprocal_rank(scores: np.ndarray, relevant: np.ndarray) -> float:
    """Expected reciprocal rank of the first relevant candidate; ValueError if there is none."""
    before = 0
    for size, hits in tie_groups(scores, relevant):
        if hits:
            ways = math.comb(size, hits)
            # The first relevant candidate is at a place if all other relevant ones come after it.
            return sum(
                math.comb(size - place, hits - 1) / ways / (before + place)
                for place in range(1, size - hits + 2)
            )
        before += size
    raise ValueError("reciprocal rank needs a relevant candidate")


def recall_at(k: int, scores: np.ndarray, relevant: np.ndarray | None = None) -> float:
    """Expected share of the relevant candidates that are among the first k, at least 1; by default
    only candidate 0 is relevant. See `tie_groups`.
    """
    if relevant is None:
        relevant = np.arange(len(scores)) == 0
    found, before = 0.0, 0
    for size, hits in tie_groups(scores, relevant):
        found += hits * min(1.0, max(0.0, (k - before) / size))
        before += size
    return found / int(np.sum(relevant))


def spearman(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
    """Spearman's correlation along an axis of two float arrays of equal shape. Tied values get
    their mean rank; a constant gives 0.
    """
    ranks = [_rank(np.moveaxis(values, axis, -1)) for values in (first, second)]
    x, y = (rank - rank.mean(axis=-1, keepdims=True) for rank in ranks)
    scale = np.sqrt((x**2).sum(axis=-1) * (y**2).sum(axis=-1))
    return np.divide((x * y).sum(axis=-1), scale, where=scale > 0, out=np.zeros_like(scale))


def _rank(values: np.ndarray) -> np.ndarray:
    """The ranks of values `[..., n]`; tied ones get the mean of their ranks."""
    import scipy.stats  # takes half a second

    order, first = _sort(values)
    groups = np.empty_like(order)
    np.put_along_axis(groups, order, np.cumsum(first, axis=-1), axis=-1)
    return scipy.stats.rankdata(groups, axis=-1)


def tied_share(scores: np.ndarray) -> float:
    """Share of the scores that are tied with another one, 0 to 1."""
    # Of many scores, some are this near by chance.
    _, first = _sort(scores, TIE_TOLERANCE * min(1.0, 100 / max(1, len(scores))))
    sizes = np.diff(np.flatnonzero(first), append=len(first))
    return float(sizes[sizes > 1].sum()) / max(1, len(scores))


def rate(measure: str, rows: Sequence[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """A measure of rankings, and what a random ranking has, in percent, float `[rows]` each.

    The measures are "map", "mrr", "tie_share", "r5" and so on, and "r1_of_2", which ranks the first
    relevant candidate against the first other one. A row has the scores of its candidates, float
    `[candidates]`, and how many of them are relevant, the first ones.
    """

    def compute(scores: np.ndarray, positives: int) -> float:
        relevant = np.arange(len(scores)) < positives
        match measure:
            case "map":
                return average_precision(scores, relevant)
            case "mrr":
                return reciprocal_rank(scores, relevant)
            case "r1_of_2":
                return recall_at(1, scores[[0, positives]])
            case "tie_share":
                return tied_share(scores)
        return recall_at(int(measure[1:]), scores, relevant)

    # Most rows of a set have the same numbers of candidates.
    chance = functools.cache(lambda size, positives: compute(np.zeros(size), positives))
    found = [(compute(row, positives), chance(len(row), positives)) for row, positives in rows]
    own, random = 100.0 * np.array(found).T
    return own, random


# Names of scores, which are the same in logs, TensorBoard, JSON, tables and `best_metric`. During
# training the name of a score on dev data has the prefix "dev/", such as dev/matching_r1.

# The name of a re-ranker's similarity; a re-ranker reads context and response together.
RERANKER = "reranker"
# The cosine of a context and a response behind projection heads.
PROJECTED = "projected"
RECALLS = (1, 2, 5)
RETRIEVAL = ("map", "mrr")
STS = ("spearman",)
# Number of responses among which a dev response is ranked, so the least number of dev sessions.
CANDIDATES = 10
_BIDIRECTIONAL = "_bidirectional"


def rank_scores(similarity: str, candidates: int = CANDIDATES) -> tuple[str, ...]:
    """The scores by a similarity, for k below the number of candidates: matching_r1, ..., _mrr."""
    return (*(f"{similarity}_r{k}" for k in RECALLS if k < candidates), f"{similarity}_mrr")


def bidirectional(similarity: str) -> str:
    """The name of a similarity whose contexts also have the turns after the response."""
    return f"{similarity}{_BIDIRECTIONAL}"


def describe_context(similarity: str, turns: int) -> str:
    """Which turns around the response the contexts of a similarity, or of a score by it, hold, such
    as "3 before"; `turns` is their number on a side, at most, 0 for all.
    """
    count = turns or "all"
    after = f", {count} after" if _BIDIRECTIONAL in similarity else ""
    return f"{count} before{after}"


def all_contexts(similarities: Sequence[str]) -> tuple[str, ...]:
    """Similarities and, of embeddings, those with bidirectional contexts; none of a re-ranker."""
    embedded = [similarity for similarity in similarities if similarity != RERANKER]
    return (*similarities, *map(bidirectional, embedded))


def group_scores(similarity: str, candidates: int) -> tuple[str, ...]:
    """The scores of grouped candidates by a similarity: matching_r1, ..., matching_map, _mrr.

    Like `rank_scores`, and `matching_r1_of_2` ranks the true response against just one other; for
    groups of two candidates it is the same as `matching_r1` and left out.
    """
    *recalls, mrr = rank_scores(similarity, candidates)
    pair = [f"{similarity}_r1_of_2"] if candidates != 2 else []
    return (*recalls, *pair, f"{similarity}_map", mrr)
