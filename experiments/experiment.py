"""What the commands of the tables and figures have in common: run, collect, report."""

import argparse
import collections
import dataclasses
import pathlib
import shlex
import shutil
import sys
from collections.abc import Callable
from typing import Any

from notes import describe_correction, describe_origin, describe_scores
from plan import Plan, make_plan
from plots import write_plot
from rows import Variant
from run_markers import UNKNOWN, RunError, read_commit, read_marker
from runs import Runner
from scores import (
    compare,
    describe_geometry,
    describe_size,
    get_names,
    read_results,
    summarise,
)
from settings import Settings, SettingsError, add_flags, read_settings
from tables import Line, Report, correct, format_markdown, write_json

from dcse_tf.errors import InputError
from dcse_tf.evaluation.job import CHOOSE
from dcse_tf.evaluation.report import short_path


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: for files.
        title: what it shows.
        variants: its lines.
        axis: what is varied; "" where nothing is.
        against: name of the variant that the others are compared with; "" for none.
        paper: variant -> corpus -> the paper's scores.
        notes: further remarks.
        half: of the sets, on which it is measured: "choose" where settings are compared, "report"
            where models are.
    """

    name: str
    title: str
    variants: list[Variant]
    axis: str
    against: str
    paper: Callable[[Variant], dict[str, dict[str, float]]]
    notes: tuple[str, ...] = ()
    half: str = CHOOSE


def make_parser(description: str) -> argparse.ArgumentParser:
    """The flags that all have."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    add_flags(parser)
    parser.add_argument("--results_dir", type=pathlib.Path, help="copy the report here too")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="runs at once, on a machine without a GPU; each gets its share of the cores",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print what would be run, and run nothing"
    )
    return parser


def run(experiment: Experiment, options: argparse.Namespace) -> None:
    """Runs what is not done, then writes and prints the report; faults in one line."""
    commit = read_commit()  # of the code that is loaded
    try:
        settings = read_settings(options)
        if options.jobs < 1:
            raise SettingsError(f"--jobs={options.jobs}: expected at least 1")
        plan = make_plan(settings, experiment.variants, experiment.half)
        for reason in plan.skipped:
            print(f"left out: {reason}")
        Runner(settings.work_dir, plan.runs, jobs=options.jobs).run_all(options.dry_run)
        if not options.dry_run:
            report = make_report(experiment, settings, plan, commit)
            _write(report, settings, options.results_dir)
    except (RunError, SettingsError, InputError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")


def make_report(experiment: Experiment, settings: Settings, plan: Plan, commit: str) -> Report:
    """The report from the results files.

    Raises:
        InputError: a file cannot be used.
    """
    sets: dict[str, list[Line]] = {}
    sizes = []
    against = ""
    for corpus in settings.corpora:
        paths = {v: files for (v, name), files in plan.results.items() if name == corpus.name}
        base = next((v for v in paths if v.name == experiment.against), None)
        against = _label(base) if base else ""
        for measured in corpus.sets:
            found = {v: read_results(files, measured.files) for v, files in paths.items()}
            sizes.append(f"{measured.title}: {describe_size(next(iter(found.values())))}")
            sets[measured.title] = [
                Line(
                    _label(variant),
                    variant.row.title,
                    variant.x,
                    {name: summarise(seeds, name) for name in get_names(seeds)},
                    experiment.paper(variant).get(corpus.name, {}),
                    {name: compare(found[base], seeds, name) for name in get_names(seeds)}
                    if base and variant is not base
                    else {},
                    describe_geometry(seeds),
                )
                for variant, seeds in found.items()
            ]
    origin = {
        "half": experiment.half,
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit,
        "commits_of_runs": _count_commits(settings, plan),
    }
    notes = [
        *describe_scores(settings.size, experiment.half, sizes, experiment.variants),
        *describe_correction(sets),
        *experiment.notes,
        *(f"Left out: {reason}." for reason in plan.skipped),
        *describe_origin(origin),
    ]
    name = f"{experiment.name}-{settings.size}"
    return Report(name, experiment.title, experiment.axis, against, notes, correct(sets), origin)


def _count_commits(settings: Settings, plan: Plan) -> dict[str, int]:
    """The commits that runs were made at, and of how many; one that went on at another has both."""
    markers = [read_marker(settings.work_dir / run.name) for run in plan.runs]
    found = [", ".join(marker["commits"]) if marker else UNKNOWN for marker in markers]
    return dict(collections.Counter(found))


def _label(variant: Variant) -> str:
    if variant.x is not None:
        return f"{variant.row.title}, {variant.x:g}"
    return ", ".join([variant.row.title, *(flag.removeprefix("--") for flag in variant.flags)])


def _describe(settings: Settings) -> dict[str, Any]:
    """The settings without the places where files lie on this machine."""
    names = ("size", "seeds", "steps", "mlm_steps", "batch_form", "train_flags")
    return {
        **{name: getattr(settings, name) for name in names},
        "token_vectors": [short_path(path) for path in settings.token_vectors],
        "corpora": {
            corpus.title: {
                "train": [short_path(path) for path in corpus.train],
                "sets": [short_path(path) for each in corpus.sets for path in each.files],
            }
            for corpus in settings.corpora
        },
    }


def _write(report: Report, settings: Settings, results_dir: pathlib.Path | None) -> None:
    folder = settings.work_dir / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{report.name}.{suffix}" for suffix in ("md", "json", "png")]
    text = format_markdown(report)
    paths[0].write_text(text, encoding="utf-8")
    write_json(paths[1], report, _describe(settings))
    write_plot(paths[2], report)
    print(f"\n{text}\nreport: {', '.join(map(str, paths))}")
    if results_dir:
        results_dir.mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copyfile(path, results_dir / path.name)
        print(f"copied to {results_dir}")
