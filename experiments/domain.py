"""Measures what encoders gain in their own domain, and what they lose elsewhere.

    python experiments/domain.py --work_dir=FOLDER --name=support --train jsonl:dialogues.jsonl \\
        --intent_file=intents.txt --act_file=acts.txt --guards banking77:test.csv:category

Trains rows on a corpus of dialogues and scores them: in the domain, by semantic retrieval (sets
from build_retrieval, labelled by intent and by dialogue act) and by response selection on held-out
dialogues; in other domains, by retrieval on guards. Every row is compared with the better of the
start and the centred start, which need no training. A row passes if its MAP in the domain rises
significantly, its guards hold, and its response selection stays near the recommended preset's.

The seeds of a row are pooled. Finished runs are reused, and the same command resumes interrupted
ones. After --minutes, no further run starts and the report covers what is done. --half=choose
measures the other half of every set, on which settings may be picked. Flags may be given in a file:
@FILE.
"""

import argparse
import dataclasses
import sys
from typing import Any

from domain_plan import DomainPlan, make_plan
from domain_report import (
    GUARD_FALL,
    RESPONSE_FALL,
    SIGNIFICANCE,
    make_lines,
    make_overview,
    make_verdicts,
    read_scores,
)
from domain_rows import BASES
from domain_settings import DomainSettings, add_flags, read_settings
from publish import describe_origin, write
from report import Report, describe_size, make_closing_notes
from runner import Runner, read_commit, tell_errors
from settings import add_run_flags

from dcse_tf.evaluation.report import short_path

_HALVES = {
    "report": "Measured on the reporting half of each set (evaluate --half=report) and on the test "
    "dialogues, on which no setting may be picked.",
    "choose": "Measured on the choosing half of each set (evaluate --half=choose) and on the dev "
    "dialogues, on which settings may be compared; --half=report shows what a pick is worth.",
}
_RULE = (
    "A row passes if its MAP rises on a set of the domain, and falls on none, with p (Holm) below "
    f"{SIGNIFICANCE:g}; if no guard falls by more than {GUARD_FALL:g}; and if R@1 by the better of "
    f"its similarities is at most {RESPONSE_FALL:g} below recommended's. Rises and falls are the "
    "differences in the tables: from the start or the centred start, whichever is better on the "
    "set."
)
_LAST_STEP = (
    "Every trained row is measured at its last step. Seconds are the duration of the training's "
    "process, including its start, averaged over seeds."
)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        fromfile_prefix_chars="@",
    )
    add_flags(parser)
    parser.add_argument("--minutes", type=float, help="start no run after this many minutes")
    add_run_flags(parser)
    return parser.parse_args(arguments)


def make_report(settings: DomainSettings, found: DomainPlan, commit: str) -> Report:
    """Makes the report from the results that exist.

    Raises:
        InputError: a file cannot be used.
    """
    scores = read_scores(settings, found)
    lines = make_lines(scores)
    sizes = [
        f"{measured.title}: {describe_size(next(iter(of.values())))}"
        for measured, of in scores.items()
    ]
    origin = {
        "half": settings.half,
        **describe_origin(settings.work_dir, found.runs, commit),
    }
    sets = {measured.title: list(of.values()) for measured, of in lines.items()}
    return Report(
        f"domain-{settings.name}" + ("-choose" if settings.half == "choose" else ""),
        f"{settings.name}: encoders in their own domain",
        "",
        " or ".join(row.title for row in BASES if any(row in of for of in lines.values())),
        [
            *_describe_lack(settings, found),
            f"{_HALVES[settings.half]} {'; '.join(sizes)}.",
            _LAST_STEP,
            _RULE,
            *make_closing_notes(sets, origin, by_table=True),
        ],
        sets,
        origin,
        {
            "Overview": make_overview(settings, found, lines),
            "Which rows pass": make_verdicts(lines),
        },
    )


def _describe_lack(settings: DomainSettings, found: DomainPlan) -> list[str]:
    kinds = (found.retrieval, found.responses)
    there = sum(path.is_file() for of in kinds for paths in of.values() for path in paths)
    seeds = sum(len(settings.seeds) if row.seeded else 1 for row in settings.rows)
    wanted = len(kinds) * seeds
    return [f"Not done yet: {wanted - there} of {wanted} evaluations."] if there < wanted else []


def describe_settings(settings: DomainSettings) -> dict[str, Any]:
    """The settings as a dictionary, with short paths instead of this machine's."""
    names = ("name", "longest", "min_turns", "mlm_steps", "seeds", "steps", "train_flags", "half")
    return {
        **{name: getattr(settings, name) for name in names},
        "train": [short_path(source) for source in settings.train],
        "encoder": short_path(settings.encoder),
        "chinese_text": [short_path(source) for source in settings.chinese_text],
        "sets": {each.name: short_path(each.file) for each in (*settings.domain, *settings.guards)},
        "rows": [dataclasses.asdict(row) for row in settings.rows],
    }


def run(options: argparse.Namespace) -> None:
    """Runs the experiment and writes its report."""
    commit = read_commit()  # the commit of the loaded code, before the runs
    settings = read_settings(options)
    found = make_plan(settings)
    runner = Runner(settings.work_dir, found.runs, options.jobs, minutes=options.minutes)
    if options.dry_run:
        print("\n".join(runner.list_work()))
        return
    if not runner.run_all():
        print(f"{options.minutes:g} minutes are over; the same command continues")
        found = found.keep_done(runner)
    report = make_report(settings, found, commit)
    if report.sets:
        write(report, describe_settings(settings), settings.work_dir, options.results_dir)


def main() -> None:
    with tell_errors():
        run(parse_arguments(sys.argv[1:]))


if __name__ == "__main__":
    main()
