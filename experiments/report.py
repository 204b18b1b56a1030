"""Reads an experiment's results, averages them over seeds, compares and writes them."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.stats

from dcse_tf.errors import InputError
from dcse_tf.evaluation import geometry, metrics
from dcse_tf.evaluation.bootstrap import (
    CONFIDENCE,
    RESAMPLES,
    Difference,
    holm,
    paired_difference,
)
from dcse_tf.evaluation.report import Result, read_json
from dcse_tf.files import atomic_file

# In the order of the papers' columns.
TITLES = {
    "spearman": "Corr.",
    "r1": "R@1",
    "r2": "R@2",
    "r5": "R@5",
    "r1_of_2": "R@1 of 2",
    "map": "MAP",
    "mrr": "MRR",
}

Seeds = Sequence[dict[str, Result]]  # for each seed, evaluation -> result


@dataclasses.dataclass(frozen=True)
class Score:
    """A score over seeds, in percent.

    Attributes:
        values: the score of each seed.
        mean: the mean over seeds.
        deviation: standard deviation over seeds (n - 1); None with one seed.
        low, high: the 95% interval, by Student's t over seeds. With one seed, by bootstrap over
            items, which says nothing about other seeds; None if there is no interval.
    """

    values: tuple[float, ...]
    mean: float
    deviation: float | None
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True)
class SeedDifference(Difference):
    """The difference between two models' means over seeds.

    Attributes:
        by_seed: the difference between the two trainings with each seed; a first model with one
            seed, such as an untrained start, is compared with each of the second's. Empty if the
            models have other numbers of seeds.
    """

    by_seed: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Line:
    """A model's results on one set.

    Attributes:
        label: the model's title, and the value of the setting that is varied.
        series: the model's title.
        x: the value of the varied setting; None if none is varied.
        scores: name -> score, in the order of `TITLES`; the same names in all lines of a set.
        paper: name -> the paper's score, where it gives one.
        differences: name -> difference from the line that all are compared with; empty for that
            line itself.
        geometry: alignment, uniformity and anisotropy, if they were computed.
        corrected: name -> p-value of the difference, corrected for all comparisons of the report.
    """

    label: str
    series: str
    x: float | None
    scores: dict[str, Score]
    paper: dict[str, float] = dataclasses.field(default_factory=dict)
    differences: dict[str, SeedDifference] = dataclasses.field(default_factory=dict)
    geometry: dict[str, float] = dataclasses.field(default_factory=dict)
    corrected: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Report:
    """The report on an experiment.

    Attributes:
        name: the stem of its files, such as "table2-small".
        title: what it shows.
        axis: what is varied; "" if nothing is.
        against: label of the line that all are compared with; "" for none.
        notes: what a reader must know; each has one or more sentences.
        sets: title of an evaluation set -> lines.
        origin: half of the sets, command line, commit, commits of the runs.
        tables: further tables, heading -> rows; the first row is the head.
    """

    name: str
    title: str
    axis: str
    against: str
    notes: list[str]
    sets: dict[str, list[Line]]
    origin: dict[str, Any]
    tables: dict[str, list[list[str | float]]] = dataclasses.field(default_factory=dict)


def read_results(
    paths: Sequence[pathlib.Path], files: Sequence[str], work_dir: pathlib.Path | None = None
) -> Seeds:
    """Reads the results that `evaluate` wrote for each seed.

    Args:
        paths: the results file of each seed.
        files: the evaluation sets to keep, at most one of each kind.
        work_dir: the work folder, in which the sets were made and which may have been moved since;
            None if they are elsewhere.

    Raises:
        InputError: a results file has another form, lacks a set, or was computed on another set
            than the other seeds.
    """
    seeds = []
    for path in paths:
        found: dict[str, Result] = {}
        there = read_json(path)[1]
        for file in files:
            results = [result for result in there if _names(result.source, file, work_dir)]
            if not results:
                raise InputError(f"{path}: no evaluation of {file}")
            found |= {result.task: result for result in results}
        seeds.append(found)
    for task in seeds[0]:
        if len({seed[task].fingerprint for seed in seeds}) > 1:
            raise InputError(f"{paths[0].parent} and other seeds: {task} is of different sets")
    return seeds


def _names(source: str, file: str, work_dir: pathlib.Path | None) -> bool:
    """Whether results with this source are of a file."""
    if work_dir is None:
        return source == file
    below = pathlib.Path(file).relative_to(work_dir).parts
    return pathlib.Path(source).parts[-len(below) :] == below


def get_names(seeds: Seeds) -> list[str]:
    """The names of the scores that the results have."""
    return [n for n in TITLES if any(n in result.scores for result in seeds[0].values())]


def _find(seed: dict[str, Result], name: str) -> Result:
    """The evaluation that includes a score."""
    return next(result for result in seed.values() if name in result.scores)


def describe_size(seeds: Seeds) -> str:
    """Describes how many queries, pairs, groups or samples were scored."""
    counts = [
        f"{result.scores[unit]:.0f} {unit}"
        for result in seeds[0].values()
        for unit in ("queries", "pairs", "groups", "samples")
        if unit in result.scores
    ]
    return " and ".join(counts)


def summarise(seeds: Seeds, name: str) -> Score:
    """Summarises a score over seeds."""
    results = [_find(seed, name) for seed in seeds]
    values = np.array([result.scores[name] for result in results])
    mean = float(values.mean())
    if len(values) == 1:
        low, high = results[0].intervals.get(name, (None, None))
        return Score((mean,), mean, None, low, high)
    deviation = float(values.std(ddof=1))
    t = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    half = t * deviation / len(values) ** 0.5
    return Score(tuple(values.tolist()), mean, deviation, mean - half, mean + half)


def describe_geometry(seeds: Seeds) -> dict[str, float]:
    """Alignment, uniformity and anisotropy on the last set's sentences, averaged over seeds."""
    scores = [list(seed.values())[-1].scores for seed in seeds]
    return {
        name: float(np.mean([each[name] for each in scores]))
        for name in geometry.NAMES
        if all(name in each for each in scores)
    }


def compare(first: Seeds, second: Seeds, name: str) -> SeedDifference:
    """The second model's mean score minus the first's, with a paired bootstrap over items.

    Each resample of items is scored for every seed of both models, and the means over seeds are
    subtracted. So interval and p-value cover the choice of items, with the seeds held fixed: how
    far another seed may change the difference, only `by_seed` shows.

    Raises:
        InputError: the two were scored on different sets, or on only one item.
    """
    ours, theirs = ([_find(seed, name) for seed in seeds] for seeds in (first, second))
    found = _bootstrap(ours, theirs, name)
    old, new = (np.array([result.scores[name] for result in results]) for results in (ours, theirs))
    by_seed = new - old if len(old) in (1, len(new)) else np.array([])
    return SeedDifference(**dataclasses.asdict(found), by_seed=tuple(by_seed.tolist()))


def _bootstrap(ours: Sequence[Result], theirs: Sequence[Result], name: str) -> Difference:
    """The second model's mean minus the first's; the results of each are those of its seeds."""
    if ours[0].fingerprint != theirs[0].fingerprint:
        raise InputError(f"{ours[0].source} and {theirs[0].source}: different sets")
    try:
        if name != "spearman":
            old, new = (
                np.mean([result.items[name] for result in results], axis=0)
                for results in (ours, theirs)
            )
            return paired_difference((new - old,), np.mean)
        degrees = np.array(ours[0].items["degree"])
        cosines = [np.array(result.items["cosine"]) for result in (*ours, *theirs)]
        return paired_difference((degrees, *cosines), _mean_correlations(len(ours)))
    except ValueError as error:
        raise InputError(f"{ours[0].source}: {error}") from error


def _mean_correlations(first: int) -> Callable[..., np.ndarray]:
    """The bootstrap statistic; the first `first` arrays of cosines are the first model's."""

    def statistic(degree: np.ndarray, *cosines: np.ndarray, axis: int = -1) -> np.ndarray:
        values = [100.0 * metrics.spearman(degree, cosine, axis) for cosine in cosines]
        return np.mean(values[first:], axis=0) - np.mean(values[:first], axis=0)

    return statistic


def correct(sets: dict[str, list[Line]]) -> dict[str, list[Line]]:
    """Adds corrected p-values to the lines; all comparisons of a report are one family."""
    corrected = iter(holm([d.p_value for d in list_differences(sets)]))
    return {
        title: [
            dataclasses.replace(
                line, corrected={name: next(corrected) for name in line.differences}
            )
            for line in lines
        ]
        for title, lines in sets.items()
    }


def list_differences(sets: dict[str, list[Line]]) -> list[SeedDifference]:
    """All differences, in the order of sets and lines."""
    return [d for lines in sets.values() for line in lines for d in line.differences.values()]


_SIZES = {
    "small": (
        "Size small: 4 layers, 256 wide (or by --encoder_size), from random weights; vocabulary "
        "and masked language modelling are from the training text of all corpora together. "
        "Every row is measured at its last step, not at its best step on the sets. No file of a "
        "set is trained on (inspect_data counts the sentences that a corpus and a set share).",
        "BERT without (adapt) is what the adaptation started from: random weights, not a published "
        "BERT. The paper's figures are for BERT-base on the full corpora; compare only the order "
        "of the rows.",
    ),
    "encoder": (
        "Size encoder: BERT is the checkpoint of --chinese_encoder, which is already a sentence "
        "encoder, not BERT-base. Without --mlm_steps, trained rows start from it unchanged. Every "
        "row is measured at its last step.",
    ),
    "demo": (
        "Size demo: BERT is all-MiniLM-L6-v2, which is already a sentence encoder, not BERT-base. "
        "(adapt), trained and fitted rows use the chitchat conversations.",
    ),
    "paper": (),
}
_HALVES = {
    "choose": "Measured on the choosing half of each set (evaluate --half=choose), on which "
    "settings may be compared and picked. The other half (table 2) shows what a pick is worth.",
    "report": "Measured on the reporting half of each set (evaluate --half=report), on which no "
    "setting may be picked.",
}
_PICKED = {
    "choose": "Settings picked by scores on this half, which makes its scores too high: those of "
    "{rows}.",
    "report": "Settings picked by comparing scores: those of {rows}. levers, tables 3 and 4 and "
    "figure 2 compare them only on the choosing half; but when they were first found, on ECD and "
    "JDDC, the sets were not split into halves yet. The settings of the other rows were not picked "
    "this way; those rows might gain from it.",
}
_INTERVALS = (
    "Score ± standard deviation over seeds [95% interval: Student's t over seeds; with one seed, "
    "bootstrap over items]. Differences: paired bootstrap over items, with the seeds held fixed; "
    "with several seeds, the differences by seed show how far another seed may change them."
)


def make_notes(
    size: str,
    counts: Sequence[str],
    picked: Sequence[str],
    sets: dict[str, list[Line]],
    origin: dict[str, Any],
) -> list[str]:
    """The notes at the head of a report, which say how its figures were obtained.

    Args:
        size: "small", "encoder", "demo" or "paper".
        counts: for each set, how much of it was scored.
        picked: titles of the rows whose settings were picked by their scores.
        sets: as in `Report`.
        origin: as in `Report`.
    """
    half = origin["half"]
    notes = [f"{_HALVES[half]} {'; '.join(counts)}."]
    if picked:
        notes.append(_PICKED[half].format(rows=" and ".join(dict.fromkeys(picked))))
    return [*notes, *_SIZES[size], *make_closing_notes(sets, origin)]


def make_closing_notes(
    sets: dict[str, list[Line]], origin: dict[str, Any], by_table: bool = False
) -> list[str]:
    """The notes on intervals, corrected p-values and commits; arguments as in `make_notes`.

    With `by_table`, the p-values of each set were corrected separately.
    """
    notes = [_INTERVALS]
    counts = [len(list_differences({title: lines})) for title, lines in sets.items()]
    count = max(counts, default=0) if by_table else sum(counts)
    family = "a table, at most" if by_table else "this report"
    if count:
        least = 2 / (RESAMPLES + 1)
        notes.append(
            f"p (Holm): corrected for the {count} comparisons of {family}. With {RESAMPLES:,} "
            f"draws, no p is below {least:.4f}, and the smallest corrected p is at least "
            f"{min(1.0, count * least):.4f}."
        )
    runs = "; ".join(f"{commit} ({n})" for commit, n in origin["commits_of_runs"].items())
    return [
        *notes,
        f"Made by `{origin['command']}` at commit {origin['commit']}.",
        f"Commits of its runs, with the number of runs: {runs}. Runs of other commits are reused.",
    ]


def format_markdown(report: Report) -> str:
    """Formats the report; each set has tables of scores, differences and geometry."""
    parts = [f"# {report.title}", "\n".join(f"- {note}" for note in report.notes)]
    for title, lines in report.sets.items():
        parts += [f"## {title}", _format_table(_score_rows(lines))]
        if any(line.differences for line in lines):
            parts += [f"Difference from {report.against}:", _format_table(_difference_rows(lines))]
        if any(line.geometry for line in lines):
            parts += ["Geometry of the embeddings:", _format_table(_geometry_rows(lines))]
    for heading, rows in report.tables.items():
        cells = [[c if isinstance(c, str) else f"{c:.1f}" for c in row] for row in rows]
        parts += [f"## {heading}", _format_table(cells)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _score_rows(lines: list[Line]) -> Iterable[list[str]]:
    names = list(lines[0].scores)
    given = [name for name in names if any(name in line.paper for line in lines)]
    head = ["", "seeds"]
    for name in names:
        head += [TITLES[name], *(["paper"] if name in given else [])]
    yield head
    for line in lines:
        row = [line.label, str(max(len(score.values) for score in line.scores.values()))]
        for name in names:
            row.append(_format_score(line.scores[name]))
            if name in given:
                row.append(f"{line.paper[name]:.2f}" if name in line.paper else "")
        yield row


def _difference_rows(lines: list[Line]) -> Iterable[list[str]]:
    names = next(list(line.differences) for line in lines if line.differences)
    seeds = max(len(d.by_seed) for line in lines for d in line.differences.values())
    by_seed = ["by seed"] if seeds > 1 else []
    yield ["", *(cell for name in names for cell in (TITLES[name], *by_seed, "p", "p (Holm)"))]
    for line in lines:
        if line.differences:
            row = [line.label]
            for name in names:
                d = line.differences[name]
                row.append(f"{d.value:+.1f} [{d.low:+.1f}, {d.high:+.1f}]")
                if by_seed:
                    row.append(", ".join(f"{value:+.1f}" for value in d.by_seed))
                row += [f"{p_value:.4f}" for p_value in (d.p_value, line.corrected[name])]
            yield row


def _geometry_rows(lines: list[Line]) -> Iterable[list[str]]:
    yield ["", *geometry.NAMES]
    for line in lines:
        cells = [line.geometry.get(name) for name in geometry.NAMES]
        yield [line.label, *("" if cell is None else f"{cell:.2f}" for cell in cells)]


def _format_score(score: Score) -> str:
    text = f"{score.mean:.1f}"
    if score.deviation is not None:
        text += f" ± {score.deviation:.1f}"
    if score.low is not None and score.high is not None:
        text += f" [{score.low:.1f}, {score.high:.1f}]"
    return text


def _format_table(rows: Iterable[list[str]]) -> str:
    head, *others = rows
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *others))


def write_json(path: pathlib.Path, report: Report, settings: dict[str, Any]) -> None:
    """Writes all figures unrounded, with the settings."""
    content = {"settings": settings, **dataclasses.asdict(report)}
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n"
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
