"""The results of an evaluation as a table and as JSON."""

import dataclasses
import json
import pathlib
import unicodedata
from collections.abc import Sequence
from typing import Any

from dcse_tf.atomic import atomic_file
from dcse_tf.errors import InputError, OutputError
from dcse_tf.evaluation import Evaluation, geometry
from dcse_tf.evaluation.bootstrap import interval, score_names
from dcse_tf.input_files import read_json_object
from dcse_tf.locking import lock_output

TIE_WARNING = 1.0  # percent


@dataclasses.dataclass(frozen=True)
class Result:
    """The scores of one evaluation on one file.

    Attributes:
        task: what was evaluated.
        source: the file.
        fingerprint: of the set; equal fingerprints can be compared.
        scores, items: as in `Evaluation`.
        intervals: a score's 95% interval, where there are items enough.
    """

    task: str
    source: str
    fingerprint: str
    scores: dict[str, float]
    items: dict[str, list[float]]
    intervals: dict[str, tuple[float, float]]

    def warning(self) -> str | None:
        share = self.scores["tie_share"]
        if share <= TIE_WARNING:
            return None
        return (
            f"{self.task} on {self.source}: {share:.1f}% of the scores are tied; ties count in "
            "expectation. Many ties mean repeated sentences, or an encoder that has collapsed."
        )


def make_result(task: str, source: str, fingerprint: str, evaluation: Evaluation) -> Result:
    """A result with its intervals, drawn from the items."""
    drawn = {name: interval(evaluation.items, name) for name in score_names(evaluation.items)}
    return Result(
        task,
        source,
        fingerprint,
        evaluation.scores,
        {name: values.round(6).tolist() for name, values in evaluation.items.items()},
        {name: limits for name, limits in drawn.items() if limits},
    )


def format_table(results: list[Result]) -> str:
    """A line a score, with its interval, the chance level and the share of ties beside it; below,
    a line of geometry for each result that has it.
    """
    rows = [("evaluation", "file", "score", "value", "95% interval", "chance", "tied %")]
    for result in results:
        for name in score_names(result.items):
            limits = result.intervals.get(name)
            rows.append(
                (
                    result.task,
                    short_path(result.source),
                    name,
                    f"{result.scores[name]:.2f}",
                    f"{limits[0]:.2f} to {limits[1]:.2f}" if limits else "",
                    f"{result.scores[f'chance_{name}']:.2f}",
                    f"{result.scores['tie_share']:.1f}",
                )
            )
    warnings = [warning for result in results if (warning := result.warning())]
    return "\n".join([align(rows, text_columns=3), *_geometry_table(results), *warnings])


def _geometry_table(results: list[Result]) -> list[str]:
    rows = [
        (
            result.task,
            short_path(result.source),
            *(f"{result.scores[n]:.3f}" if n in result.scores else "" for n in geometry.NAMES),
        )
        for result in results
        if any(name in result.scores for name in geometry.NAMES)
    ]
    return ["", align([("geometry", "file", *geometry.NAMES), *rows], 2)] if rows else []


def align(rows: Sequence[Sequence[str]], text_columns: int) -> str:
    """A table in text: the first row is its head, the first columns stand to the left."""
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - _width(cell))
            cells.append(cell + space if column < text_columns else space + cell)
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * _width(lines[0]), *lines[1:]])


def _width(text: str) -> int:
    """Columns that a text takes in a terminal: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def short_path(source: str) -> str:
    """A file's name with its two folders, which tell one select.txt from another."""
    return "/".join(pathlib.Path(source).parts[-3:])


def refuse_unwritable(path: pathlib.Path) -> None:
    """Looks whether `write_json` may write a file, whose folder is made if there is none.

    Raises:
        OutputError: it may not.
    """
    if path.is_dir():
        raise OutputError(f"{path}: is a folder; expected the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    with lock_output(path):  # needs a file in the same folder, as the writing does
        pass


def write_json(
    path: pathlib.Path, model: str, settings: dict[str, Any], results: list[Result]
) -> None:
    """Writes the results with what produced them, atomically.

    Args:
        path: the file.
        model: what the user calls it.
        settings: those that the scores were made with, as they were resolved.
        results: the results.
    """
    content = {
        "model": model,
        "settings": settings,
        "results": [
            {**dataclasses.asdict(result), "warning": result.warning()} for result in results
        ],
    }
    with atomic_file(path) as partial:
        partial.write_text(
            json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def read_json(path: pathlib.Path) -> tuple[str, list[Result], dict[str, Any]]:
    """Reads what `write_json` wrote: the model, its results, and the settings.

    Raises:
        InputError: the file is not of this form.
    """
    fields = [field.name for field in dataclasses.fields(Result)]
    content = read_json_object(path, "a file of results of evaluate")
    try:
        results = []
        for entry in content["results"]:
            limits = {name: (low, high) for name, (low, high) in entry["intervals"].items()}
            results.append(Result(**{**{k: entry[k] for k in fields}, "intervals": limits}))
        return str(content["model"]), results, dict(content["settings"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a file of results of evaluate: {error!r}") from error
