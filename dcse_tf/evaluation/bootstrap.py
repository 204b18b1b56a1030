"""Confidence intervals by bootstrap over queries, pairs or samples (Efron and Tibshirani 1993).

A score is a statistic of the items of a set. Resampling the items with replacement gives its
distribution, whose 2.5th and 97.5th percentiles are the 95% interval. Two models are compared on
the same resamples (paired), so that the difficulty of items, which both share, cancels out.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from dcse_tf.evaluation import metrics

CONFIDENCE = 0.95
RESAMPLES = 5000
_BATCH = 500  # resamples held in memory at a time

Items = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The second model's score minus the first's, in percentage points."""

    value: float
    low: float  # of its 95% interval
    high: float
    p_value: float  # two-sided, for the hypothesis that the models are equal


def score_names(items: Iterable[str]) -> list[str]:
    """The names of the scores that are computed from items with these names."""
    if "cosine" in items:
        return ["spearman"]
    return [name for name in items if not name.startswith("chance_") and name != "tie_share"]


def interval(items: Items, name: str, seed: int = 0) -> tuple[float, float] | None:
    """The 95% interval of a score; None if there are fewer than two items."""
    if name == "spearman":
        return _bootstrap((items["degree"], items["cosine"]), _correlate, seed)[1]
    return _bootstrap((items[name],), np.mean, seed)[1]


def difference(first: Items, second: Items, name: str, seed: int = 0) -> Difference:
    """Paired bootstrap of two models' scores on the same items; ValueError if the items are not the
    same, or fewer than two.
    """
    if name == "spearman":
        if not np.array_equal(first["degree"], second["degree"]):
            raise ValueError("the pairs of the two results are not the same")

        def differ(degree: np.ndarray, *cosines: np.ndarray, axis: int) -> np.ndarray:
            one, other = (_correlate(degree, cosine, axis) for cosine in cosines)
            return other - one

        data = (first["degree"], first["cosine"], second["cosine"])
        return paired_difference(data, differ, seed)
    if len(first[name]) != len(second[name]):
        raise ValueError("the items of the two results are not the same")
    return paired_difference((second[name] - first[name],), np.mean, seed)


def paired_difference(
    data: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray], seed: int = 0
) -> Difference:
    """Bootstrap of the difference between two models, over items on which both were scored;
    ValueError if there are fewer than two.

    Args:
        data: arrays float `[items]`, which are resampled together.
        statistic: maps (*data, axis) to the difference in percentage points, vectorised over the
            leading axes.
        seed: seed of the resamples.
    """
    draws, limits = _bootstrap(data, statistic, seed)
    if limits is None:
        raise ValueError("at least two items are needed")
    # One is added to each count: no finite number of resamples justifies a p-value of zero.
    below, above = (1 + np.sum(draws <= 0)), (1 + np.sum(draws >= 0))
    # How often all differences have one sign by chance; items without a difference have none.
    signs = np.count_nonzero(data[0]) if len(data) == 1 else len(data[0])
    least = 2.0 ** (1 - signs)
    p_value = min(1.0, max(least, 2.0 * float(min(below, above)) / (len(draws) + 1)))
    return Difference(float(statistic(*data, axis=-1)), *limits, p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for multiple comparisons, in the order given (Holm 1979).

    If all models are equal, the probability that any corrected p-value is below 0.05 is at most 5%,
    even if the comparisons are dependent. The k-th smallest of m p-values is multiplied by
    m - k + 1, and raised to the corrected value before it if it is smaller.
    """
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    largest = np.maximum.accumulate(factors * np.sort(p_values))
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, largest)
    return corrected.tolist()


def _correlate(degree: np.ndarray, cosine: np.ndarray, axis: int = -1) -> np.ndarray:
    return 100.0 * metrics.spearman(degree, cosine, axis)


def _bootstrap(
    data: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray], seed: int
) -> tuple[np.ndarray, tuple[float, float] | None]:
    if len(data[0]) < 2:
        return np.zeros(0), None
    import scipy.stats  # takes half a second

    result = scipy.stats.bootstrap(
        data,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    limits = result.confidence_interval
    return result.bootstrap_distribution, (float(limits.low), float(limits.high))
