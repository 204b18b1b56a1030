"""Reproduces the paper's tables and figures on your data, and ablates the recommended preset.

    python experiments/reproduce.py table2 --work_dir=FOLDER --seeds 0 1 2 \
        --ecd_train train_data.txt --ecd_retrieval select.txt --ecd_sts sts.txt

table2: every baseline, DialogueCSE, and what goes beyond the paper, on the reporting half of each
set. The others use the choosing half, on which settings may be picked: table3 (the temperature),
table4 (the number of negatives per positive), figure2 (context turns on each side; in the paper
both scores rise up to about 3 and then fall), figure3 (the share of dialogues trained on; in the
paper the gap grows as they get fewer) and levers (the recommended preset with one setting changed
at a time).

All trained rows start from the same adapted encoder. Experiments with the same work folder share
their common runs. Finished runs are reused, and the same command resumes interrupted ones. Flags
may be given in a file, one per line: @FILE.

Longer masked language modelling (--mlm_steps) and warm starts (--token_vectors) change the encoder;
give each its own work folder.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import paper
from plan import Plan, make_plan
from publish import describe_origin, write
from report import (
    Line,
    Report,
    compare,
    correct,
    describe_geometry,
    describe_size,
    get_names,
    make_notes,
    read_results,
    summarise,
)
from rows import DIALOGUE_CSE, RECOMMENDED, ROWS, SIAMESE_MULTI, Row, Variant, vary
from runner import Runner, read_commit, tell_errors
from settings import (
    Settings,
    SettingsError,
    add_flags,
    add_run_flags,
    read_job_flags,
    read_settings,
)

from dcse_tf.evaluation.report import short_path


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        title: what it shows.
        variants: its lines.
        axis: what is varied; "" if nothing is.
        against: name of the variant that the others are compared with.
        paper: variant -> corpus -> the paper's scores.
        note: a further remark for the report.
        half: the half of the sets that is scored: "choose" for comparing settings, "report" for
            comparing models.
    """

    title: str
    variants: list[Variant]
    axis: str = ""
    against: str = DIALOGUE_CSE.name
    paper: Callable[[Variant], dict[str, dict[str, float]]] = lambda variant: {}
    note: str = ""
    half: str = "choose"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A setting that is varied over several values in some rows.

    Attributes:
        title, axis, note: as in `Experiment`.
        flag: the flag of `train`; "" if the share of the dialogues is varied.
        defaults: row -> its own value; with it, the variant is the row of table 2 and shares its
            training.
        values: the values to try.
        paper: value -> corpus -> the paper's scores for DialogueCSE.
    """

    title: str
    axis: str
    flag: str
    defaults: dict[Row, float]
    values: tuple[float, ...]
    paper: dict[float, dict[str, dict[str, float]]] = dataclasses.field(default_factory=dict)
    note: str = ""


SWEEPS = {
    "table3": Sweep(
        "Table 3: the temperature of the contrastive loss",
        axis="temperature",
        flag="temperature",
        defaults={DIALOGUE_CSE: 0.1, RECOMMENDED: 0.05},
        values=(0.05, 0.1, 0.2, 0.5),
        paper=paper.TABLE_3,
    ),
    "table4": Sweep(
        "Table 4: the negatives a positive",
        axis="number of negatives",
        flag="negatives",
        defaults={DIALOGUE_CSE: 9, RECOMMENDED: 9},
        values=(1, 4, 9, 19),
        paper=paper.TABLE_4,
    ),
    "figure2": Sweep(
        "Figure 2: most context turns on each side",
        axis="context turns on each side",
        flag="context_turns",
        defaults={DIALOGUE_CSE: 3, SIAMESE_MULTI: 3, RECOMMENDED: 3},
        values=(1, 2, 3, 4, 5, 6),
    ),
    "figure3": Sweep(
        "Figure 3: share of the dialogues trained on",
        axis="share of the dialogues",
        flag="",
        defaults={DIALOGUE_CSE: 1, SIAMESE_MULTI: 1, RECOMMENDED: 1},
        values=(0.05, 0.1, 0.25, 0.5, 1.0),
        note="The encoder was adapted to all training text; the share is of the contrastive "
        "training. With --steps the number of steps is the same for every share.",
    ),
}
LEVERS = (
    "--cosine_weight=0",
    "--cosine_weight=0.5",
    "--center_tokens",
    "--center_tokens --cosine_weight=0.5",
    "--negatives=all",
    "--context_side=before",
    "--batch_form=unique",
    "--learning_rate=1e-4",
    "--steps=75",
    "--steps=300",
    "--freeze_layers=-1 --freeze_embeddings",
)


def make_experiment(options: argparse.Namespace) -> Experiment:
    """Makes the experiment from a command line.

    Raises:
        SettingsError: a value cannot be used.
    """
    if options.name == "table2":
        return Experiment(
            "Table 2: models on semantic retrieval and dialogue STS",
            [Variant(row) for row in ROWS if row.name in options.rows],
            against=options.against,
            paper=lambda variant: paper.TABLE_2.get(variant.row.name, {}),
            half="report",
        )
    if options.name == "levers":
        levers = [read_job_flags(words, "lever") for words in options.lever or LEVERS]
        return Experiment(
            "The recommended preset, one setting changed at a time",
            [Variant(RECOMMENDED), *(Variant(RECOMMENDED, flags=flags) for flags in levers)],
            against=RECOMMENDED.name,
        )
    sweep = SWEEPS[options.name]
    values = options.values or sweep.values
    if not sweep.flag and not all(0 < share <= 1 for share in values):
        raise SettingsError(f"--values={values}: expected shares above 0, up to 1")
    return Experiment(
        sweep.title,
        [
            vary(row, sweep.flag, value, default)
            for row, default in sweep.defaults.items()
            for value in values
        ],
        sweep.axis,
        paper=lambda variant: sweep.paper.get(variant.x, {}) if variant.row is DIALOGUE_CSE else {},
        note=sweep.note,
    )


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        fromfile_prefix_chars="@",
    )
    parser.add_argument("name", choices=("table2", *SWEEPS, "levers"))
    add_flags(parser)
    names = [row.name for row in ROWS]
    add = parser.add_argument
    add("--rows", nargs="+", choices=names, default=names, help="table2: only these rows")
    add(
        "--against",
        choices=names,
        default=RECOMMENDED.name,
        help="table2: row to compare the others with; default: %(default)s",
    )
    add("--values", type=float, nargs="+", help="tables 3 and 4, figures: values to try")
    add(
        "--lever",
        action="append",
        metavar="FLAGS",
        help="levers: flags of train to try, in quotes, instead of the default ones; repeatable",
    )
    add_run_flags(parser)
    return parser.parse_args(arguments)


def make_report(
    name: str, experiment: Experiment, settings: Settings, plan: Plan, commit: str
) -> Report:
    """Makes the report from the results files.

    Raises:
        InputError: a file cannot be used.
    """
    sets: dict[str, list[Line]] = {}
    counts = []
    against = ""
    for corpus in settings.corpora:
        paths = {v: files for (v, place), files in plan.results.items() if place == corpus.name}
        if not paths:
            continue
        base = next((v for v in paths if v.name == experiment.against), None)
        against = base.label if base else against
        for measured in corpus.sets:
            scored = {v: read_results(files, measured.files) for v, files in paths.items()}
            counts.append(f"{measured.title}: {describe_size(next(iter(scored.values())))}")
            sets[measured.title] = [
                Line(
                    variant.label,
                    variant.row.title,
                    variant.x,
                    {name: summarise(seeds, name) for name in get_names(seeds)},
                    experiment.paper(variant).get(corpus.name, {}),
                    {name: compare(scored[base], seeds, name) for name in get_names(seeds)}
                    if base and variant is not base
                    else {},
                    describe_geometry(seeds),
                )
                for variant, seeds in scored.items()
            ]
    found = describe_origin(settings.work_dir, plan.runs, commit)
    origin = {"half": experiment.half, **found}
    picked = [variant.row.title for variant in experiment.variants if variant.row.recipe]
    further = [*filter(None, [experiment.note]), *(f"Left out: {why}." for why in plan.skipped)]
    notes = [*make_notes(settings.size, counts, picked, sets, origin), *further]
    return Report(
        f"{name}-{settings.size}",
        experiment.title,
        experiment.axis,
        against,
        notes,
        correct(sets),
        origin,
    )


def describe_settings(settings: Settings) -> dict[str, Any]:
    """The settings as a dictionary, with short paths instead of this machine's."""
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


def main() -> None:
    options = parse_arguments(sys.argv[1:])
    commit = read_commit()  # the commit of the loaded code, before the runs
    with tell_errors():
        experiment = make_experiment(options)
        settings = read_settings(options)
        plan = make_plan(settings, experiment.variants, experiment.half)
        for reason in plan.skipped:
            print(f"left out: {reason}")
        if not plan.results:
            raise SettingsError("all rows are left out, so there is nothing to measure")
        runner = Runner(settings.work_dir, plan.runs, options.jobs)
        if options.dry_run:
            print("\n".join(runner.list_work()))
            return
        runner.run_all()
        report = make_report(options.name, experiment, settings, plan, commit)
        write(report, describe_settings(settings), settings.work_dir, options.results_dir)


if __name__ == "__main__":
    main()
