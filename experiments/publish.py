"""Describes the origin of a report, and writes the report."""

import collections
import pathlib
import shlex
import shutil
import sys
from collections.abc import Iterable
from typing import Any

from plots import write_plot
from report import Report, format_markdown, write_json
from runner import UNKNOWN, read_record


def describe_origin(work_dir: pathlib.Path, runs: Iterable[str], commit: str) -> dict[str, Any]:
    """The command line, the commit of the loaded code, and the commits of the runs."""
    records = [read_record(work_dir / run) for run in runs]
    commits = [", ".join(record["commits"]) if record else UNKNOWN for record in records]
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit,
        "commits_of_runs": dict(collections.Counter(commits)),
    }


def write(
    report: Report,
    settings: dict[str, Any],
    work_dir: pathlib.Path,
    results_dir: pathlib.Path | None,
) -> None:
    """Writes the report as Markdown, JSON and PNG, and prints it."""
    folder = work_dir / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{report.name}.{suffix}" for suffix in ("md", "json", "png")]
    text = format_markdown(report)
    paths[0].write_text(text, encoding="utf-8")
    write_json(paths[1], report, settings)
    write_plot(paths[2], report)
    print(f"\n{text}\nreport: {', '.join(map(str, paths))}")
    if results_dir:
        results_dir.mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copyfile(path, results_dir / path.name)
        print(f"copied to {results_dir}")
