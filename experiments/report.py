"""Reports of experiments: scores over seeds, paired differences, tables as JSON, Markdown and PNG.

A report is a JSON file with title, command, commit, date, notes and tables of texts; `values` has
the unrounded figures. `measurements.py` writes the documents' page from such files.
"""

import collections
import dataclasses
import datetime
import json
import pathlib
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
from runs import ExperimentError, Plan, read_commit, read_record

from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.bootstrap import CONFIDENCE, Difference, holm, paired_difference
from dcse_tf.files import write_record

# An entry of the results that `dcse evaluate --output` writes.
Result = dict[str, Any]
# The results of each seed; one entry if nothing is random.
Seeds = Sequence[Sequence[Result]]

NOTES = (
    "Score ± standard deviation over seeds; with one seed a 95% interval, by bootstrap over the "
    "items of the set.",
    "Differences by paired bootstrap over items, seeds pooled: p is about these trainings, not "
    "about other seeds. p is corrected after Holm for all comparisons of this report.",
    "R@1 is among ten candidates, or those of a test file. Its context has the turns before the "
    "response, unless its name says bidirectional: then also the turns after it, which nobody has "
    "who chooses a response.",
)


@dataclasses.dataclass(frozen=True)
class Line:
    """A model in a table."""

    label: str  # its name in the table
    seeds: Seeds  # its results
    # Score -> the paper's figure, where it gives one.
    paper: Mapping[str, float] = dataclasses.field(default_factory=dict)
    x: float | None = None  # the value of the setting that a figure varies; None in a table


@dataclasses.dataclass(frozen=True)
class Table:
    """The scores of models on one evaluation set."""

    title: str  # what they were scored on
    files: Sequence[str]  # the set's files, by which its results are found; in any of them, if none
    lines: Sequence[Line]
    # Labels that the others are compared with: by each score, the best of them.
    bases: Sequence[str] = ()
    # The scores that are compared: the shown ones that end in one of these.
    compared: Sequence[str] = ("map", "mrr", "spearman", "r1")


class Experiment(Plan):
    """A plan whose results are shown in tables."""

    def make_tables(self) -> Sequence[Table]:
        """Adds all runs, and returns the tables of their results, where there are any yet."""
        raise NotImplementedError

    def read_seeds(self, paths: Iterable[str]) -> Seeds:
        """Reads those results that exist, at paths of `add`."""
        found = [pathlib.Path(self.locate(path)) for path in paths]
        return [json.loads(path.read_text("utf-8"))["results"] for path in found if path.is_file()]

    def run(
        self, title: str, name: str, make_notes: Callable[[Sequence[Table]], Sequence[str]]
    ) -> None:
        """Does the runs that are not done yet, and writes the report; or says what it would do.

        Args:
            title: what the report shows.
            name: the stem of its files.
            make_notes: what a reader must know, before the notes that every report has.
        """
        self.make_tables()
        if self.options.dry_run:
            print(self.describe())
            return
        self.do_all()
        tables = self.make_tables()  # again: there was nothing before the runs
        found = make_report(title, tables, make_notes(tables), self)
        write(found, self.work_dir / "reports" / f"{name}.json")


def list_scores(seeds: Seeds, files: Sequence[str]) -> dict[str, list[Result]]:
    """Score -> the result of each seed that has it, of the sets in some files.

    Shown are R@1, MRR, MAP and the correlation; of groups of candidates also R@2, R@5 and R_2@1.

    Raises:
        ExperimentError: seeds were scored on different sets.
    """
    scores: dict[str, list[Result]] = {}
    for results in seeds:
        for result in results:
            # The ends of paths, since the work folder may have been moved.
            end = pathlib.Path(result["source"]).parts[-3:]
            if files and end not in [pathlib.Path(file).parts[-3:] for file in files]:
                continue
            ends = ("r1", "mrr", "map", "spearman")
            ends += ("r2", "r5", "r1_of_2") if "candidates" in result["task"] else ()
            for name in result["scores"]:
                if not name.startswith("chance_") and name.endswith(ends) and "role" not in name:
                    scores.setdefault(name, []).append(result)
    for name, of_seeds in scores.items():
        if len({result["fingerprint"] for result in of_seeds}) > 1:
            raise ExperimentError(f"{of_seeds[0]['source']}: {name} is of different sets")
    return scores


def compare(first: Sequence[Result], second: Sequence[Result], name: str) -> Difference:
    """The second model's mean score over seeds minus the first's, by paired bootstrap over items.

    Raises:
        ExperimentError: the two were scored on different sets.
    """
    if first[0]["fingerprint"] != second[0]["fingerprint"]:
        raise ExperimentError(f"{first[0]['source']} and {second[0]['source']}: different sets")
    if name != "spearman":
        old, new = (np.mean([r["items"][name] for r in of], axis=0) for of in (first, second))
        return paired_difference((new - old,), np.mean)
    count = len(first)

    def correlations(degree: np.ndarray, *cosines: np.ndarray, axis: int = -1) -> np.ndarray:
        values = [100.0 * metrics.spearman(degree, cosine, axis) for cosine in cosines]
        return np.mean(values[count:], axis=0) - np.mean(values[:count], axis=0)

    items = [np.array(result["items"]["cosine"]) for result in (*first, *second)]
    return paired_difference((np.array(first[0]["items"]["degree"]), *items), correlations)


def read_curves(run_dir: pathlib.Path, prefix: str = "eval/dev/") -> dict[str, dict[int, float]]:
    """Dev score, or another one with a prefix -> step -> value, of a run of `train`."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    return {
        tag.removeprefix(prefix): {
            event.step: float(tensor_util.make_ndarray(event.tensor_proto))
            for event in events.Tensors(tag)
        }
        for tag in events.Tags()["tensors"]
        if tag.startswith(prefix)
    }


def summarise(results: Sequence[Result], name: str) -> dict[str, Any]:
    """A score over seeds: "values", "mean", "deviation" (None with one seed) and 95% "interval"."""
    values = [result["scores"][name] for result in results]
    mean, deviation = float(np.mean(values)), None
    interval = results[0]["intervals"].get(name)
    if len(values) > 1:
        deviation = float(np.std(values, ddof=1))
        t = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
        half = t * deviation / len(values) ** 0.5
        interval = [mean - half, mean + half]
    return {"values": values, "mean": mean, "deviation": deviation, "interval": interval}


def make_report(
    title: str, tables: Sequence[Table], notes: Sequence[str], plan: Plan
) -> dict[str, Any]:
    """Makes a report from the results that exist; lines and tables without any are left out. The
    plan's runs tell the commits, and its options are recorded.
    """
    values = {table.title: _compute(table) for table in tables}
    values = {name: lines for name, lines in values.items() if lines}
    compared = [
        score["difference"]
        for lines in values.values()
        for line in lines.values()
        for score in line["scores"].values()
        if "difference" in score
    ]
    for difference, p_value in zip(compared, holm([d["p_value"] for d in compared]), strict=True):
        difference["p_holm"] = p_value
    records = [read_record(plan.work_dir / name) for name in plan.runs]
    commits = collections.Counter(c for record in records for c in record.get("commits", ()))
    shown = [_format(table, values[table.title]) for table in tables if table.title in values]
    return {
        **describe_origin(title),
        "commits_of_runs": dict(commits),
        "notes": [*notes, *NOTES],
        "tables": shown,
        "settings": {name: str(value) for name, value in vars(plan.options).items()},
        "values": values,
    }


def describe_origin(title: str) -> dict[str, str]:
    """The beginning of a report: its title, and the command, the commit and the day it is from."""
    return {
        "title": title,
        "command": shlex.join(["python", *sys.argv]),
        "commit": read_commit(),
        "date": datetime.date.today().isoformat(),
    }


def _compute(table: Table) -> dict[str, Any]:
    """Label -> its scores, differences and the paper's figures."""
    found = {line.label: list_scores(line.seeds, table.files) for line in table.lines}
    found = {label: scores for label, scores in found.items() if scores}
    bases = [label for label in table.bases if label in found]
    computed: dict[str, Any] = {}
    for line in table.lines:
        scores = {}
        for name, results in found.get(line.label, {}).items():
            scores[name] = summarise(results, name)
            rivals = [found[label][name] for label in bases if name in found[label]]
            if rivals and line.label not in bases and name.endswith(tuple(table.compared)):
                best = max(rivals, key=lambda rival: summarise(rival, name)["mean"])
                scores[name]["difference"] = dataclasses.asdict(compare(best, results, name))
        if scores:
            computed[line.label] = {"scores": scores, "paper": dict(line.paper), "x": line.x}
    return computed


def _format(table: Table, lines: Mapping[str, Any]) -> dict[str, Any]:
    """The table as texts: a column for each score, beside it the paper's figure and the change."""
    found = dict.fromkeys(name for line in lines.values() for name in line["scores"])
    names = sorted(found, key=lambda name: "bidirectional" in name)
    texts: dict[str, dict[tuple[str, str], str]] = {}  # label -> (score, column of it) -> text
    for label, line in lines.items():
        own = texts[label] = {}
        for name, score in line["scores"].items():
            own[name, describe(name)] = _format_score(score)
            if change := score.get("difference"):
                limits = f"{change['low']:.1f} to {change['high']:.1f}"
                own[name, "change"] = f"{change['value']:+.1f} ({limits})"
                own[name, "p"] = f"{change['p_holm']:.4f}"
        own |= {(name, "paper"): f"{value:.1f}" for name, value in line["paper"].items()}
    columns = [
        (name, column)
        for name in names
        for column in (describe(name), "paper", "change", "p")
        if any((name, column) in own for own in texts.values())
    ]
    changed = any(column == "change" for _, column in columns)
    against = f", compared with {' or '.join(table.bases)}" if changed else ""
    return {
        "title": table.title + against,
        "columns": ["", *(column for _, column in columns)],
        "rows": [[label, *(own.get(key, "") for key in columns)] for label, own in texts.items()],
    }


def _format_score(score: Mapping[str, Any]) -> str:
    if score["deviation"] is not None:
        return f"{score['mean']:.1f} ± {score['deviation']:.1f}"
    if score["interval"]:
        return f"{score['mean']:.1f} ({score['interval'][0]:.1f} to {score['interval'][1]:.1f})"
    return f"{score['mean']:.1f}"


def describe(name: str) -> str:
    """The heading of a score: "cosine_bidirectional_r1" is "R@1 by cosine, bidirectional"."""
    way, _, measure = name.replace("_of_2", "").rpartition("_")
    heading = {"spearman": "Corr.", "map": "MAP", "mrr": "MRR"}.get(measure, f"R@{measure[1:]}")
    heading += " of 2" if name.endswith("_of_2") else ""
    way, _, side = way.partition("_")
    ways = {"projected": " behind the heads", "reranker": "", "": ""}
    return heading + ways.get(way, f" by {way}") + (f", {side}" if side else "")


def format_report(report: Mapping[str, Any], level: int = 2) -> str:
    """The report as Markdown, its title as a heading of a level."""
    told = [f"Commit {report['commit']}", report["date"], *filter(None, [report.get("machine")])]
    titles = [table["title"] for table in report["tables"]]
    # The only table needs no heading of its own.
    alone = f"{titles[0]}. " if len(titles) == 1 and titles[0] else ""
    parts = [
        f"{'#' * level} {report['title']}",
        _wrap(f"{alone}{', '.join(told)}: `{' '.join(report['command'].split())}`"),
    ]
    for title, table in zip(titles, report["tables"], strict=True):
        parts += [_wrap(f"**{title}**")] if title and not alone else []
        parts.append(format_table([table["columns"], *table["rows"]]))
    parts.append("\n".join(_wrap(f"- {note}", "  ") for note in report["notes"]))
    return "\n\n".join(parts) + "\n"


def _wrap(text: str, indent: str = "") -> str:
    options = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": indent}
    return textwrap.fill(text, 120, **options)


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row is its head."""
    head, *others = ([str(cell) for cell in row] for row in rows)
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *others))


def write(report: Mapping[str, Any], path: pathlib.Path) -> None:
    """Writes the report as JSON and, beside it, as Markdown and as a plot; prints it."""
    write_record(path, report, sort_keys=False)
    text = format_report(report, level=1)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    if report["values"]:
        write_plot(path.with_suffix(".png"), report["values"])
    print(f"\n{text}\nreport: {path}")


def write_plot(path: pathlib.Path, values: Mapping[str, Any]) -> None:
    """Plots each table's first two scores: bars by model, or lines over the varied setting.

    The paper's figures are marked in black.
    """
    import matplotlib.figure  # without pyplot no display is needed

    figure = matplotlib.figure.Figure(figsize=(10, 3.5 * len(values)), layout="constrained")
    grid = figure.subplots(len(values), 2, squeeze=False)
    for axes_row, (title, lines) in zip(grid, values.items(), strict=True):
        for axes, name in zip(axes_row, list(next(iter(lines.values()))["scores"])[:2]):
            axes.set_title(f"{title}: {describe(name)}")
            series: dict[str, list[Any]] = {}
            for label, line in lines.items():
                mean = line["scores"].get(name, {}).get("mean", np.nan)
                point = (line["x"], mean, line["paper"].get(name, np.nan))
                if line["x"] is None:
                    axes.barh(label, mean, color="C0")
                    axes.plot(point[2], label, "|k", markersize=12)
                else:
                    series.setdefault(label.rpartition(", ")[0], []).append(point)
            for label, points in series.items():
                x, mean, paper = zip(*points)
                axes.plot(x, mean, "o-", label=label)
                axes.plot(x, paper, "k--")
            axes.legend(frameon=False) if series else axes.invert_yaxis()
    figure.savefig(path, dpi=120)
