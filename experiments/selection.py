"""Reproduces the tables and Figure 3 of Xu et al. 2020 (response selection) on your data.

    python experiments/selection.py table1 --work_dir=FOLDER --corpora ecd \\
        --ecd_train dialoguecse:train_data.txt --ecd_test ecd:test.txt \\
        --chinese_text jsonl:other_dialogues.jsonl

table1: the models compared with BERT-VFT. ablation: BERT-SL without each of its auxiliary tasks.
table2: DualLSTM and ESIM, with and without the tasks. figure3: R@1 by the length of the context.
choose: learning rates, weight of the auxiliary tasks and consistency margin, compared on groups
drawn from the dev split of the first corpus. It writes the best values to a file of flags,
reports/chosen-SIZE.flags, which the other tables take as @FILE.

Tables with the same work folder share their models. Corpora are done one after another, and within
a corpus the seeds, so that partial results are useful at any time. After --minutes, no further run
starts and the report covers what is done; the same command continues. --minutes=0 only reports.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from publish import describe_origin, write
from report import Line, Report, correct, describe_size, make_closing_notes
from rows import Variant
from runner import Runner, read_commit, tell_errors
from selection_plan import SelectionPlan, make_plan
from selection_report import (
    MEASURES,
    compare_order,
    describe_tasks,
    make_length_lines,
    make_lines,
    read_lengths,
    read_scores,
)
from selection_rows import BERT_SL, BERT_VFT, TABLES, SelectionRow
from selection_settings import KINDS, SelectionSettings, add_flags, read_settings
from settings import SettingsError, add_run_flags

from dcse_tf.evaluation.report import short_path

# What `choose` tries: setting -> the row it is tried on, and values. The learning rates are tried
# on BERT-VFT, which the others are compared with, so that they are not tuned to BERT-SL alone.
CHOICES: dict[str, tuple[SelectionRow, tuple[float, ...]]] = {
    "post_learning_rate": (BERT_VFT, (1e-5, 3e-5, 1e-4)),
    "learning_rate": (BERT_VFT, (3e-5, 1e-4, 3e-4)),
    "auxiliary_weight": (BERT_SL, (0.1, 0.3, 1.0)),
    "consistency_margin": (BERT_SL, (0.2, 0.4, 0.6, 0.8)),
}
_SIZES = {
    "small": "Size small: short contexts, a few hundred steps, small encoders; see the settings. "
    "All models take equally many steps of their own training. All seeds of a row with a BERT "
    "start from the same encoder or the same post-training of it. The paper's figures are for "
    "BERT-base on the full corpora; compare only the order of the rows. DualLSTM and ESIM start "
    "from random weights, so that few steps say little about them compared with a BERT.",
    "paper": "Size paper: the paper's lengths, batch size and maximum number of epochs; its text "
    "lacks learning rate, weight and margin.",
}
_KEPT = (
    "Each training is scored by its model with the best R@1 on dev dialogues. R@k and MRR are for "
    "10 candidates; with one true response, MAP equals MRR."
)


def list_variants(name: str, settings: SelectionSettings, rows: list[str]) -> list[Variant]:
    """The variants that are the lines of a table."""
    if name == "choose":
        choices = [
            tried for flag, tried in list_choices(settings).items() if CHOICES[flag][0].name in rows
        ]
        return list(dict.fromkeys(v for tried in choices for v in tried.values()))
    return [Variant(row) for row in TABLES[name][2] if row.name in rows]


def list_choices(settings: SelectionSettings) -> dict[str, dict[float, Variant]]:
    """Setting -> value -> the variant to compare, including the current value."""
    found = {}
    for flag, (row, values) in CHOICES.items():
        now = getattr(settings.figures, flag)
        found[flag] = {value: _try(row, flag, value, now) for value in sorted({*values, now})}
    return found


def _try(row: SelectionRow, flag: str, value: float, now: float) -> Variant:
    """A row with a value of a setting; with the current one the row itself, for every setting."""
    if value == now:
        return Variant(row)
    if flag == "post_learning_rate":
        post = (*(row.post or ()), f"--learning_rate={value:g}")
        return Variant(dataclasses.replace(row, name=f"{row.name}-{flag}={value:g}", post=post))
    return Variant(row, flags=(f"--{flag}={value:g}",))


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        fromfile_prefix_chars="@",
    )
    parser.add_argument("name", choices=(*TABLES, "choose"))
    add_flags(parser)
    add = parser.add_argument
    add("--minutes", type=float, help="start no run after this many minutes; default: no limit")
    add_run_flags(parser)
    return parser.parse_args(arguments)


def make_reports(
    name: str, settings: SelectionSettings, found: SelectionPlan, commit: str
) -> Iterator[Report]:
    """Yields the reports of a table, at most two, from the results that exist.

    Raises:
        InputError: a file cannot be used.
    """
    origin = describe_origin(settings.work_dir, found.plan.runs, commit)
    scores = {key: read_scores(found, key) for key in found.sets}
    if name == "figure3":
        for by, axis in MEASURES.items():
            sets = {
                found.sets[key].title: make_length_lines(
                    scored, read_lengths(found.sets[key], settings.work_dir, by)
                )
                for key, scored in scores.items()
                if scored
            }
            notes = make_notes(settings, found, scores, sets, origin)
            title = f"{TABLES[name][0]}: {axis}"
            yield Report(f"figure3-{by}-{settings.size}", title, axis, "", notes, sets, origin)
        return
    title, against, _ = TABLES[name]
    sets = {}
    for key, scored in scores.items():
        corpus, _, name_of_set = key.partition("/")
        # The paper's figures are for the test files, not for drawn groups.
        theirs = KINDS[corpus].paper if name_of_set == "test" else ""
        if scored:
            sets[found.sets[key].title] = make_lines(scored, against, theirs)
    sets = correct(sets)
    bases = {row.title for row in against.values()}
    label = " or ".join(sorted(bases)) + (", without the tasks" if len(bases) > 1 else "")
    notes = make_notes(settings, found, scores, sets, origin)
    tables = make_tables(found, scores)
    yield Report(f"{name}-{settings.size}", title, "", label, notes, sets, origin, tables)


def make_tables(
    found: SelectionPlan, scores: Mapping[str, Mapping[Variant, Any]]
) -> dict[str, list[list[str | float]]]:
    """Tables of the rows' order on each set and of the auxiliary tasks' accuracy on each corpus."""
    tables = {}
    for key, scored in scores.items():
        corpus = KINDS[key.partition("/")[0]]
        if len(scored) > 1:
            heading = (
                f"{found.sets[key].title}: R@1 against the order on {KINDS[corpus.order].title}"
            )
            tables[heading] = compare_order(scored, corpus.order)
    for name in dict.fromkeys(key.partition("/")[0] for key in scores):
        if table := describe_tasks(found, name):
            tables[f"{KINDS[name].title}: held-out accuracy of the auxiliary tasks"] = table
    return tables


def make_notes(
    settings: SelectionSettings,
    found: SelectionPlan,
    scores: Mapping[str, Mapping[Variant, Any]],
    sets: dict[str, list[Line]],
    origin: dict[str, Any],
) -> list[str]:
    """The notes at the head of a report."""
    sizes = [
        f"{found.sets[key].title}: {describe_size(next(iter(scored.values())))}"
        for key, scored in scores.items()
        if scored
    ]
    wanted = len(found.plan.results) * len(settings.seeds)
    there = sum(path.is_file() for paths in found.plan.results.values() for path in paths)
    lacking = [f"Not done yet: {wanted - there} of {wanted} scores."] if there < wanted else []
    counts = [f"{'; '.join(sizes)}."] if sizes else []
    return [*lacking, *counts, _SIZES[settings.size], _KEPT, *make_closing_notes(sets, origin)]


def choose(
    settings: SelectionSettings, found: SelectionPlan, commit: str
) -> tuple[Report, dict[str, float]]:
    """The report on the dev groups, and setting -> the value with the highest MRR.

    MRR is used because it is finer than R@1 on a few hundred groups. Nothing is chosen for a
    setting of which a value has no score yet.

    Raises:
        InputError: a file cannot be used.
    """
    (key,) = found.sets
    scores, sets, best = read_scores(found, key), {}, {}
    for flag, tried in list_choices(settings).items():
        values = [value for value, variant in tried.items() if variant in scores]
        there = {tried[value]: scores[tried[value]] for value in values}
        lines = make_lines(there, {}, "")
        if not lines:
            continue
        sets[flag] = [
            dataclasses.replace(line, label=f"{line.series}, {value:g}")
            for line, value in zip(lines, values, strict=True)
        ]
        if {len(there.get(variant, ())) for variant in tried.values()} == {len(settings.seeds)}:
            means = [line.scores["mrr"].mean for line in lines]
            best[flag] = values[means.index(max(means))]
    origin = describe_origin(settings.work_dir, found.plan.runs, commit)
    notes = make_notes(settings, found, {key: scores}, sets, origin)
    picked = ", ".join(f"{flag} {value:g}" for flag, value in best.items())
    notes = [f"Highest MRR on dev: {picked or 'nothing yet'}.", *notes]
    title = f"Settings, on {found.sets[key].title}"
    return Report(f"choose-{settings.size}", title, "", "", notes, sets, origin), best


def write_choice(path: pathlib.Path, best: Mapping[str, float]) -> None:
    """Writes the chosen values as a file of flags for the other tables."""
    path.write_text("".join(f"--{flag}={value:g}\n" for flag, value in best.items()))
    print(f"chosen: @{path}")


def describe_settings(settings: SelectionSettings) -> dict[str, Any]:
    """The settings as a dictionary, with short paths instead of this machine's."""
    return {
        "size": settings.size,
        **dataclasses.asdict(settings.figures),
        "seeds": settings.seeds,
        "mlm_steps": settings.mlm_steps,
        "train_flags": settings.train_flags,
        "compute_dtype": settings.compute_dtype,
        "corpora": {
            corpus.kind.title: {
                "train": [short_path(source) for source in corpus.train],
                "test": short_path(corpus.test),
                "encoder": short_path(corpus.encoder),
            }
            for corpus in settings.corpora
        },
    }


def run(options: argparse.Namespace) -> None:
    """Runs the experiment and writes its reports."""
    commit = read_commit()  # the commit of the loaded code, before the runs
    settings, choosing = read_settings(options), options.name == "choose"
    if choosing:
        settings = dataclasses.replace(settings, corpora=settings.corpora[:1])
    variants = list_variants(options.name, settings, options.rows)
    if not variants:
        raise SettingsError(f"--rows: none of them is in {options.name}")
    found = make_plan(settings, variants, dev=choosing)
    runner = Runner(settings.work_dir, found.plan.runs, options.jobs, minutes=options.minutes)
    if options.dry_run:
        print("\n".join(runner.list_work()))
        return
    if not runner.run_all():
        print(f"{options.minutes:g} minutes are over; the same command continues")
        found = found.keep_done(runner)
    if choosing:
        report, best = choose(settings, found, commit)
        reports = [report]
    else:
        reports = list(make_reports(options.name, settings, found, commit))
    for report in reports:
        if report.sets:
            write(report, describe_settings(settings), settings.work_dir, options.results_dir)
    if choosing and best:
        write_choice(settings.work_dir / f"reports/chosen-{settings.size}.flags", best)


def main() -> None:
    with tell_errors():
        run(parse_arguments(sys.argv[1:]))


if __name__ == "__main__":
    main()
