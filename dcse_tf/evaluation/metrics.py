"""Evaluation in NumPy. Of a model it knows a function from sentences to embeddings.

A collapsed encoder gives every candidate the same score. A sort then keeps the file's order, and
where positives come first in the file it reports excellent figures for a useless encoder. Here a
metric under ties is its mean over all orders of the tied candidates, computed exactly (McSherry
and Najork 2008, "Computing information retrieval performance measures efficiently in the presence
of tied scores"), so that a constant scores what a random ranking scores.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import scipy.stats

from dcse_tf.errors import InputError

# list[str] to float [n, dim].
Encode = Callable[[list[str]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What an encoder scored on one set.

    Attributes:
        scores: percentages; "chance_x" is what a random ranking has in place of "x"; "tie_share",
            how many items there were, and the figures of `geometry.describe`, which are no
            percentages.
        items: what the scores come from, an entry a query, pair or sample: "map" and the like in
            percent, whose mean is the score; or "degree" and "cosine" of pairs, which are
            correlated. Intervals are drawn from these.
    """

    scores: dict[str, float]
    items: dict[str, np.ndarray]


# Scores are rounded to this, and equal ones are ties: float32 embeddings carry about seven digits,
# and equal vectors must not be told apart by the order of a sum.
TIE_RESOLUTION = 1e-6


def quantize(scores: np.ndarray) -> np.ndarray:
    """Rounds scores to multiples of TIE_RESOLUTION, as float64.

    Raises:
        InputError: a score is not finite; a diverged encoder must not pass for a random one.
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
        (size of the group, how many of it are relevant).
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
            place = np.arange(1, size + 1)
            # At a place of the group: its chance to be relevant, and if it is, the mean number of
            # relevant ones up to it.
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
            # The first relevant one is at a place if the others are all after it.
            return sum(
                math.comb(size - place, hits - 1) / ways / (before + place)
                for place in range(1, size - hits + 2)
            )
        before += size
    raise ValueError("reciprocal rank needs a relevant candidate")


def recall_at(k: int, scores: np.ndarray) -> float:
    """Chance that candidate 0, the only relevant one, is among the first k."""
    scores = quantize(scores)
    better = int(np.sum(scores > scores[0]))
    tied = int(np.sum(scores == scores[0]))
    return min(1.0, max(0.0, (k - better) / tied))


def spearman(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
    """Spearman's correlation, equal values sharing their mean rank; 0 where one is constant.

    Args:
        first, second: of equal shape.
        axis: along which values are correlated.
    """
    ranks = [scipy.stats.rankdata(quantize(values), axis=axis) for values in (first, second)]
    x, y = (rank - rank.mean(axis=axis, keepdims=True) for rank in ranks)
    scale = np.sqrt((x**2).sum(axis=axis) * (y**2).sum(axis=axis))
    return np.divide((x * y).sum(axis=axis), scale, where=scale > 0, out=np.zeros_like(scale))


def tied_share(scores: np.ndarray) -> float:
    """Share of the scores that another one equals."""
    if len(scores) == 0:
        return 0.0
    _, counts = np.unique(quantize(scores), return_counts=True)
    return float(counts[counts > 1].sum() / len(scores))


def normalize(embeddings: np.ndarray) -> np.ndarray:
    """Rows to length 1, as float64; a zero row stays zero."""
    embeddings = np.asarray(embeddings, np.float64)
    norms = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings / np.where(norms == 0.0, 1.0, norms)
