"""Two models on the same sets: differences with their intervals."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from dcse_tf.errors import InputError
from dcse_tf.evaluation.bootstrap import Difference, difference, score_names
from dcse_tf.evaluation.report import Result, align, short_path

# Settings of `evaluate` that bear on every score, and those by which response selection draws its
# samples: where these differ, its results are of two sets, and are not compared.
_OF_ALL = ("max_sequence_length", "pooling", "compute_dtype")
_OF_RESPONSES = (
    *("candidates", "context_turns", "context_side", "max_samples", "seed", "join_consecutive"),
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One score of a set for two models."""

    task: str
    source: str
    score: str
    first: float
    second: float
    difference: Difference


def describe_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The settings of two results that bear on their scores and are not the same, a line each.

    Args:
        first, second: as `report.read_json` gives them. What one of them lacks is left out.
    """
    names = list(_OF_ALL)
    if first.get("response_selection") and second.get("response_selection"):
        names += _OF_RESPONSES
    return [
        f"--{name} is not the same: first {first[name]}, second {second[name]}"
        for name in names
        if name in first and name in second and first[name] != second[name]
    ]


def compare_results(first: list[Result], second: list[Result]) -> list[Comparison]:
    """Compares every score that both models have on the same set.

    Raises:
        InputError: they have no set in common, or one of a single item.
    """
    known = {(result.task, result.fingerprint): result for result in second}
    comparisons = []
    for result in first:
        other = known.get((result.task, result.fingerprint))
        if other is None:
            continue
        if min(map(len, result.items.values())) < 2:
            raise InputError(f"{result.source}: one item only; nothing can be said of a difference")
        ours = {name: np.array(values) for name, values in result.items.items()}
        theirs = {name: np.array(values) for name, values in other.items.items()}
        comparisons += [
            Comparison(
                result.task,
                result.source,
                name,
                result.scores[name],
                other.scores[name],
                difference(ours, theirs, name),
            )
            for name in score_names(result.items)
        ]
    if not comparisons:
        raise InputError(
            "the results have no evaluation set in common (the same content of "
            "a file, the same --half of it)"
        )
    return comparisons


def format_comparisons(comparisons: list[Comparison], corrected: list[float]) -> str:
    """A line a score.

    Args:
        comparisons: the lines.
        corrected: `holm`'s p-value of each, over all the comparisons that were asked for.
    """
    head = ("evaluation", "file", "score", "first", "second", "difference", "95% interval")
    rows = [
        (
            c.task,
            short_path(c.source),
            c.score,
            f"{c.first:.2f}",
            f"{c.second:.2f}",
            f"{c.difference.value:+.2f}",
            f"{c.difference.low:+.2f} to {c.difference.high:+.2f}",
            f"{c.difference.p_value:.4f}",
            f"{p_value:.4f}",
        )
        for c, p_value in zip(comparisons, corrected, strict=True)
    ]
    return align([(*head, "p", "p (Holm)"), *rows], text_columns=3)
