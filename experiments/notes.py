"""What stands at the head of a report: how its figures came about."""

from collections.abc import Sequence
from typing import Any

from rows import Variant
from tables import Line

from dcse_tf.evaluation import bootstrap
from dcse_tf.evaluation.job import CHOOSE, REPORT

_SMALL_NOTES = (
    "Size small: 4 layers, 256 wide (or as --encoder_size says), from random weights; vocabulary "
    "and masked language modelling from the training text of all corpora together. Every row is "
    "measured at its last step, never at its best on the sets; no file of a set is trained on "
    "(inspect_data counts the sentences that a corpus and a set share).",
    "BERT without (adapt) is what the adaptation started from: random weights, not a published "
    "BERT. The paper's figures are of BERT-base on the full corpora, for the order of the rows.",
)
_DEMO_NOTES = (
    "Size demo: BERT is all-MiniLM-L6-v2, a sentence encoder already, and not BERT-base; (adapt), "
    "the trained and the fitted rows are of the chitchat conversations.",
)
_SIZES = {"small": _SMALL_NOTES, "demo": _DEMO_NOTES, "paper": ()}
_HALVES = {
    CHOOSE: (
        "Measured on the choosing half of each set (evaluate --half=choose), where settings may be "
        "compared and picked; what a pick is worth is measured on the other half (table 2). "
        "{sizes}."
    ),
    REPORT: (
        "Measured on the reporting half of each set (evaluate --half=report), where no setting is "
        "to be picked. {sizes}."
    ),
}
_CHOSEN = {
    CHOOSE: (
        "Settings picked with this half in view, which makes scores on it too high: those of "
        "{rows}."
    ),
    REPORT: (
        "Settings picked by comparing scores: those of {rows}. levers, tables 3 and 4 and figure 2 "
        "compare them on the choosing half alone; but when they were first found, on ECD and JDDC, "
        "sets were not in halves yet. The settings of the other rows were not picked so, and those "
        "rows might gain from it."
    ),
}
_INTERVALS = (
    "Score ± standard deviation over seeds [95% interval: Student's t over seeds; with one seed "
    "bootstrap over items]. Differences: paired bootstrap over items, the seeds as they are."
)
_CORRECTED = (
    "p (Holm): corrected for the {count} comparisons of this report. {draws} draws give no p below "
    "{least:.4f}, and so none corrected below {least_corrected:.4f}."
)


def describe_scores(
    size: str, half: str, sizes: Sequence[str], variants: Sequence[Variant]
) -> list[str]:
    """What was measured on what.

    Args:
        size: "small", "demo" or "paper".
        half: "choose" or "report".
        sizes: of each set, how much of it was scored.
        variants: the lines of the report.
    """
    chosen = dict.fromkeys(variant.row.title for variant in variants if variant.row.chosen)
    return [
        _HALVES[half].format(sizes="; ".join(sizes)),
        *([_CHOSEN[half].format(rows=" and ".join(chosen))] if chosen else []),
        *_SIZES[size],
        _INTERVALS,
    ]


def describe_correction(sets: dict[str, list[Line]]) -> list[str]:
    """What the corrected p-values are of; empty where nothing is compared."""
    count = sum(len(line.differences) for lines in sets.values() for line in lines)
    least = 2 / (bootstrap.RESAMPLES + 1)
    text = _CORRECTED.format(
        count=count,
        draws=f"{bootstrap.RESAMPLES:,}",
        least=least,
        least_corrected=min(1.0, count * least),
    )
    return [text] if count else []


def describe_origin(origin: dict[str, Any]) -> list[str]:
    """The command and the commits."""
    runs = "; ".join(f"{commit} ({n})" for commit, n in origin["commits_of_runs"].items())
    return [
        f"Made by `{origin['command']}` at commit {origin['commit']}.",
        f"Commits at which its runs were made, and how many: {runs}. What was done at another "
        "commit is used again.",
    ]
