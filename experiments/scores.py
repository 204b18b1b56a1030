"""A model's scores over seeds, with intervals, and its difference from another's."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np
import scipy.stats

from dcse_tf.errors import InputError
from dcse_tf.evaluation import geometry, metrics
from dcse_tf.evaluation.bootstrap import CONFIDENCE, Difference, paired_difference
from dcse_tf.evaluation.report import Result, read_json

# Score -> the evaluation that has it, in the order of the paper's columns.
SCORES = {"spearman": "sts", "map": "retrieval", "mrr": "retrieval"}
TITLES = {"spearman": "Corr.", "map": "MAP", "mrr": "MRR"}


@dataclasses.dataclass(frozen=True)
class Score:
    """A score over seeds, in percent.

    Attributes:
        values: of each seed.
        deviation: standard deviation over seeds (n - 1); None of one seed.
        low, high: the 95% interval: Student's t over seeds; of one seed the bootstrap's over
            items, which says nothing of what another seed would give. None where there is none.
    """

    values: tuple[float, ...]
    mean: float
    deviation: float | None
    low: float | None
    high: float | None


def read_results(paths: Sequence[pathlib.Path], files: Sequence[str]) -> list[dict[str, Result]]:
    """What `evaluate` wrote of each seed on some files, one of a kind, by evaluation.

    Raises:
        InputError: a file is not of this form, lacks an evaluation, or is of another set.
    """
    seeds = []
    for path in paths:
        results = [result for result in read_json(path)[1] if result.source in files]
        for file in files:
            if file not in [result.source for result in results]:
                raise InputError(f"{path}: no evaluation of {file}")
        seeds.append({result.task: result for result in results})
    for task in seeds[0]:
        if len({seed[task].fingerprint for seed in seeds}) > 1:
            raise InputError(f"{paths[0].parent} and other seeds: {task} is of different sets")
    return seeds


def get_names(seeds: Sequence[dict[str, Result]]) -> list[str]:
    """The scores that results have."""
    return [name for name, task in SCORES.items() if task in seeds[0]]


def describe_size(seeds: Sequence[dict[str, Result]]) -> str:
    """How many queries and pairs were scored."""
    counts = [
        f"{result.scores[unit]:.0f} {unit}"
        for result in seeds[0].values()
        for unit in ("queries", "pairs")
        if unit in result.scores
    ]
    return " and ".join(counts)


def summarise(seeds: Sequence[dict[str, Result]], name: str) -> Score:
    """A score over seeds."""
    results = [seed[SCORES[name]] for seed in seeds]
    values = np.array([result.scores[name] for result in results])
    mean = float(values.mean())
    if len(values) == 1:
        low, high = results[0].intervals.get(name, (None, None))
        return Score((mean,), mean, None, low, high)
    deviation = float(values.std(ddof=1))
    t = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    half = t * deviation / len(values) ** 0.5
    return Score(tuple(values.tolist()), mean, deviation, mean - half, mean + half)


def describe_geometry(seeds: Sequence[dict[str, Result]]) -> dict[str, float]:
    """Alignment, uniformity and anisotropy on the last set's sentences, the mean over seeds."""
    scores = [list(seed.values())[-1].scores for seed in seeds]
    return {
        name: float(np.mean([each[name] for each in scores]))
        for name in geometry.NAMES
        if all(name in each for each in scores)
    }


def compare(
    first: Sequence[dict[str, Result]], second: Sequence[dict[str, Result]], name: str
) -> Difference:
    """The second model's mean score less the first's, by paired bootstrap over items.

    Each draw of items is scored for every seed of either model, and the means over seeds are
    subtracted: the interval is of the items, the seeds being as they are.

    Raises:
        InputError: the two are of different sets, or of one item.
    """
    task = SCORES[name]
    ours, theirs = ([seed[task] for seed in seeds] for seeds in (first, second))
    if ours[0].fingerprint != theirs[0].fingerprint:
        raise InputError(f"{ours[0].source} and {theirs[0].source}: different sets")
    try:
        if name != "spearman":
            values = [
                np.mean([r.items[name] for r in results], axis=0) for results in (ours, theirs)
            ]
            return paired_difference((values[1] - values[0],), np.mean)
        degrees = np.array(ours[0].items["degree"])
        cosines = [np.array(result.items["cosine"]) for result in (*ours, *theirs)]
        return paired_difference((degrees, *cosines), _mean_correlations(len(ours)))
    except ValueError as error:
        raise InputError(f"{ours[0].source}: {error}") from error


def _mean_correlations(first: int):
    """The statistic: of the cosines, those of the first model come first."""

    def statistic(degree: np.ndarray, *cosines: np.ndarray, axis: int = -1) -> np.ndarray:
        values = [100.0 * metrics.spearman(degree, cosine, axis) for cosine in cosines]
        return np.mean(values[first:], axis=0) - np.mean(values[:first], axis=0)

    return statistic
