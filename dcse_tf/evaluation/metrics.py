"""Metrics in NumPy. The only model that they need is a function from sentences to embeddings.

A collapsed encoder gives every candidate the same score. Sorting then keeps the order of the file,
and if positives come first in the file, a useless encoder gets excellent figures. Here the value of
a metric under ties is its mean over all orders of the tied candidates, computed exactly (McSherry
and Najork 2008, "Computing information retrieval performance measures efficiently in the presence
of tied scores"), so that constant scores are rated like a random ranking.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import scipy.stats

from dcse_tf.errors import InputError

# Sentences to embeddings, float `[n, dim]`.
Encode = Callable[[list[str]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A model's scores on one set.

    Attributes:
        scores: name -> score in percent; "chance_x" is the score of a random ranking for "x". Also
            "tie_share" in percent and, not in percent, the number of items and the figures of
            `geometry.describe`.
        items: the values that scores and confidence intervals are computed from, one entry per
            query, pair or sample: either values in percent such as "map", whose mean is the score,
            or the "degree" and "cosine" of pairs, whose correlation is the score.
    """

    scores: dict[str, float]
    items: dict[str, np.ndarray]


# Scores are rounded to multiples of this before they are compared: float32 embeddings have about
# seven digits, and the order of summation must not make equal vectors rank differently.
TIE_RESOLUTION = 1e-6


def quantize(scores: np.ndarray) -> np.ndarray:
    """Rounds scores to multiples of TIE_RESOLUTION, as float64.

    Raises:
        InputError: a score is not finite. A diverged encoder must not look like a random one.
    """
    scores = np.asarray(scores, np.float64)
    if not np.isfinite(scores).all():
        raise InputError("a score is not a finite number: the encoder has diverged")
    return np.round(scores / TIE_RESOLUTION) * TIE_RESOLUTION


def tie_groups(scores: np.ndarray, relevant: np.ndarray) -> Iterator[tuple[int, int]]:
    """Groups of equal scores, best first.

    Args:
        scores: float `[candidates]`, higher is better.
        relevant: bool `[candidates]`.

    Yields:
        (size of the group, number of relevant candidates in it).
    """
    _, group = np.unique(-quantize(scores), return_inverse=True)
    sizes = np.bincount(group)
    hits = np.bincount(group, weights=relevant).astype(int)
    yield from zip(sizes.tolist(), hits.tolist(), strict=True)


def average_precision(scores: np.ndarray, relevant: np.ndarray) -> float:
    """Expected average precision of one ranking.

    Raises:
        ValueError: nothing is relevant.
    """
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
    """Expected reciprocal rank of the first relevant candidate.

    Raises:
        ValueError: nothing is relevant.
    """
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
    """Expected share of the relevant candidates that are among the first k.

    Args:
        k: at least 1.
        scores: float `[candidates]`, higher is better.
        relevant: bool `[candidates]`; by default only candidate 0 is relevant.
    """
    if relevant is None:
        relevant = np.arange(len(scores)) == 0
    found, before = 0.0, 0
    for size, hits in tie_groups(scores, relevant):
        found += hits * min(1.0, max(0.0, (k - before) / size))
        before += size
    return found / int(np.sum(relevant))


def spearman(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
    """Spearman's correlation. Equal values get their mean rank; a constant gives 0.

    Args:
        first, second: float arrays of equal shape.
        axis: the axis along which the values are correlated.
    """
    ranks = [scipy.stats.rankdata(quantize(values), axis=axis) for values in (first, second)]
    x, y = (rank - rank.mean(axis=axis, keepdims=True) for rank in ranks)
    scale = np.sqrt((x**2).sum(axis=axis) * (y**2).sum(axis=axis))
    return np.divide((x * y).sum(axis=axis), scale, where=scale > 0, out=np.zeros_like(scale))


def tied_share(scores: np.ndarray) -> float:
    """Share of the scores that are equal to another one, 0 to 1."""
    if len(scores) == 0:
        return 0.0
    _, counts = np.unique(quantize(scores), return_counts=True)
    return float(counts[counts > 1].sum() / len(scores))
