"""An experiment's results as Markdown and as JSON."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable
from typing import Any

from scores import TITLES, Score

from dcse_tf.evaluation import geometry
from dcse_tf.evaluation.bootstrap import Difference, holm
from dcse_tf.files import atomic_file


@dataclasses.dataclass(frozen=True)
class Line:
    """A model's results on one corpus' sets.

    Attributes:
        label: of the model, and of the setting that is varied.
        series: of the model.
        x: the setting; None where none is varied.
        scores: by name, in the order of `TITLES`; some may lack, of all lines of a set.
        paper: the paper's scores, where it gives some.
        differences: from the line that all are compared with; empty of that line itself.
        geometry: what `describe_geometry` gives.
        corrected: the differences' p-values, corrected for all the comparisons of the report.
    """

    label: str
    series: str
    x: float | None
    scores: dict[str, Score]
    paper: dict[str, float]
    differences: dict[str, Difference]
    geometry: dict[str, float]
    corrected: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Report:
    """An experiment.

    Attributes:
        name: for files, such as "table2-small".
        title: what it shows.
        axis: what is varied; "" where nothing is.
        against: label of the line that all are compared with; "" for none.
        notes: what a reader must know, one sentence or more each.
        sets: title of what the models are measured on -> lines.
        origin: half of the sets, command line, commit, commits of the runs.
    """

    name: str
    title: str
    axis: str
    against: str
    notes: list[str]
    sets: dict[str, list[Line]]
    origin: dict[str, Any]


def correct(sets: dict[str, list[Line]]) -> dict[str, list[Line]]:
    """The lines with their p-values corrected: all of a report, of every set, are one family."""
    p_values = [
        difference.p_value
        for lines in sets.values()
        for line in lines
        for difference in line.differences.values()
    ]
    corrected = iter(holm(p_values))
    return {
        title: [
            dataclasses.replace(
                line, corrected={name: next(corrected) for name in line.differences}
            )
            for line in lines
        ]
        for title, lines in sets.items()
    }


def format_markdown(report: Report) -> str:
    """Of each set a table, one of the differences and one of the geometry."""
    parts = [f"# {report.title}", "\n".join(f"- {note}" for note in report.notes)]
    for title, lines in report.sets.items():
        parts += [f"## {title}", _markdown(_score_rows(lines))]
        if any(line.differences for line in lines):
            parts += [f"Difference from {report.against}:", _markdown(_difference_rows(lines))]
        if any(line.geometry for line in lines):
            parts += ["Geometry of the embeddings:", _markdown(_geometry_rows(lines))]
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
            row.append(_score(line.scores[name]))
            if name in given:
                row.append(f"{line.paper[name]:.2f}" if name in line.paper else "")
        yield row


def _difference_rows(lines: list[Line]) -> Iterable[list[str]]:
    names = list(lines[0].scores)
    yield ["", *(cell for name in names for cell in (TITLES[name], "p", "p (Holm)"))]
    for line in lines:
        if line.differences:
            row = [line.label]
            for name in names:
                d = line.differences[name]
                row.append(f"{d.value:+.1f} [{d.low:+.1f}, {d.high:+.1f}]")
                row += [f"{p_value:.4f}" for p_value in (d.p_value, line.corrected[name])]
            yield row


def _geometry_rows(lines: list[Line]) -> Iterable[list[str]]:
    yield ["", *geometry.NAMES]
    for line in lines:
        cells = [line.geometry.get(name) for name in geometry.NAMES]
        yield [line.label, *("" if cell is None else f"{cell:.2f}" for cell in cells)]


def _score(score: Score) -> str:
    text = f"{score.mean:.1f}"
    if score.deviation is not None:
        text += f" ± {score.deviation:.1f}"
    if score.low is not None and score.high is not None:
        text += f" [{score.low:.1f}, {score.high:.1f}]"
    return text


def _markdown(rows: Iterable[list[str]]) -> str:
    head, *others = rows
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *others))


def write_json(path: pathlib.Path, report: Report, settings: dict[str, Any]) -> None:
    """Writes all figures unrounded, with what they were made with."""
    content = {"settings": settings, **dataclasses.asdict(report)}
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n"
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
