"""The results of an evaluation as a table and as JSON."""

import dataclasses
import json
import pathlib
from typing import Any

from dcse_tf.atomic import atomic_file

TIE_WARNING = 1.0  # percent
_NOT_SCORES = ("tie_share", "queries", "pairs", "samples")


@dataclasses.dataclass(frozen=True)
class Result:
    """The scores of one evaluation on one file.

    Attributes:
        task: what was evaluated.
        source: the file.
        scores: percentages; "chance_x" is what a random ranking has in place of "x".
    """

    task: str
    source: str
    scores: dict[str, float]

    def warning(self) -> str | None:
        share = self.scores["tie_share"]
        if share <= TIE_WARNING:
            return None
        return (
            f"{self.task} on {self.source}: {share:.1f}% of the scores are tied; ties count in "
            "expectation. Many ties mean repeated sentences, or an encoder that has collapsed."
        )


def format_table(results: list[Result]) -> str:
    """A line a score, with the chance level beside it."""
    rows = [("evaluation", "file", "score", "value", "chance")]
    for result in results:
        for name, value in result.scores.items():
            if name in _NOT_SCORES or name.startswith("chance_"):
                continue
            chance = result.scores[f"chance_{name}"]
            rows.append((result.task, _short(result.source), name, f"{value:.2f}", f"{chance:.2f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join(
            cell.rjust(width) if column > 2 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    warnings = [warning for result in results if (warning := result.warning())]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], *warnings])


def _short(source: str) -> str:
    return "/".join(pathlib.Path(source).parts[-3:])


def write_json(
    path: pathlib.Path, model: str, settings: dict[str, Any], results: list[Result]
) -> None:
    """Writes the results with what produced them, atomically."""
    content = {
        "model": model,
        "settings": settings,
        "results": [
            {**dataclasses.asdict(result), "warning": result.warning()} for result in results
        ],
    }
    with atomic_file(path) as partial:
        partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
