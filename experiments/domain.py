"""Measures what encoders gain in their own domain, and what they lose elsewhere.

    python experiments/domain.py --work_dir=FOLDER --name=support --train jsonl:dialogues.jsonl \\
        --set intent:intents.txt --set act:acts.txt --guard banking77:banking77.txt --seeds 0 1 2

Trains rows on a corpus of dialogues and scores them: in the domain, by semantic retrieval (sets
from `dcse build_retrieval`) and by response selection on held-out dialogues; in other domains, by
retrieval on guards. Every row is compared with the better of two that need no training: the encoder
that it starts from, as it is and less the mean of the corpus.

--half=choose measures the half of every set, and the dev dialogues, on which settings may be
picked; --half=report the other half and the test dialogues, which show what a pick is worth. The
same command reuses finished runs and resumes interrupted ones; flags may be given in a file: @FILE.
"""

import argparse
import dataclasses
from collections.abc import Sequence

import report
import runs
from runs import LAST_STEP, ExperimentError, Plan

# Every model reads up to 128 tokens of a text, however few it was trained with: sentences of guards
# that are cut would say nothing about the effect of training.
_READ = "--max_sequence_length=128"


@dataclasses.dataclass(frozen=True)
class Row:
    """How a model is made from the starting encoder.

    Attributes:
        train: flags of `train`; empty for no training.
        share: the trained encoder's share of a merge with the starting one; "" for no merge.
        centred: whether the mean sentence embedding of the corpus is subtracted afterwards.
    """

    train: tuple[str, ...] = ()
    share: str = ""
    centred: bool = False


BASES = ("untrained", "untrained_centred")
ROWS = {
    "untrained": Row(),
    "untrained_centred": Row(centred=True),
    **{
        name: Row((f"--preset={name}",))
        for name in ("recommended", "in_domain", "task_oriented", "cosine", "dse", "simcse")
    },
    "dialogue_cse_i2": Row(("--preset=dialogue_cse",)),
    "in_domain_merged": Row(("--preset=in_domain",), share="0.7"),
    "task_oriented_merged": Row(("--preset=task_oriented",), share="0.7"),
}


class Rows:
    """Adds the runs of rows to a plan.

    Args:
        plan: the plan.
        options: the command line.
    """

    def __init__(self, plan: Plan, options: argparse.Namespace):
        self._plan, self._options = plan, options
        self._data = plan.prepare(
            options.name, options.train, options.encoder, options.longest, [0.1, 0.1]
        )
        self._flags = runs.read_job_flags(options.train_flags)

    def add_scores(self, name: str, row: Row, seed: int) -> list[str]:
        """Adds a row's evaluations; returns the paths of the results: retrieval, responses."""
        half, model = self._options.half, self._add_model(name, row, seed)
        held_out = "test" if half == "report" else "dev"
        sets = ",".join((*self._options.sets.values(), *self._options.guards.values()))
        kinds = {"responses": (f"--response_selection={self._data}/{held_out}.jsonl",)}
        if sets:
            kinds["retrieval"] = (f"--retrieval={sets}", f"--half={half}")
        flags = (f"--model={model}", _READ)
        return [
            self._plan.add(
                f"{kind}/{half}/{self._name(name, row, seed)}",
                *("evaluate", "results.json", *flags, *given, "--output="),
            )
            for kind, given in kinds.items()
        ]

    def _add_model(self, name: str, row: Row, seed: int) -> str:
        model, data = self._options.encoder, f"--data_dir={self._data}"
        place = self._name(name, row, seed)
        if row.train:
            # Rows that differ in what follows share their training.
            trained = next(other for other, each in ROWS.items() if each.train == row.train)
            how = (f"--steps={self._options.steps}", *LAST_STEP, *self._flags, *row.train)
            given = (*how, f"--encoder={model}", data, f"--seed={seed}", "--run_dir=")
            run = f"rows/{self._name(trained, row, seed)}"
            model = self._plan.add(run, "train", "model", *given)
        if row.share:
            given = (f"--start={self._options.encoder}", f"--trained={model}")
            model = self._plan.add(
                f"merged/{place}", "merge", "model", f"--share={row.share}", *given, "--output_dir="
            )
        if row.centred:
            given = ("--kind=centering", f"--encoder={model}", data, "--output_dir=")
            model = self._plan.add(f"centred/{place}", "fit_baseline", "model", *given)
        return model

    def _name(self, name: str, row: Row, seed: int) -> str:
        return f"{self._options.name}/{name}" + (f"-seed{seed}" if row.train else "")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = runs.make_parser(__doc__)
    add = parser.add_argument
    add("--name", required=True, help="name of the domain, used in folders and the report")
    add(
        "--train",
        required=True,
        metavar="FORMAT:FILE,FILE",
        help="the dialogues, as in dcse prepare_data; a tenth of them is held out for choosing "
        "settings, another tenth for reporting",
    )
    named = {"action": "append", "default": [], "metavar": "NAME:FILE"}
    add("--set", dest="sets", **named, help="a retrieval set of the domain; repeatable")
    add("--guard", dest="guards", **named, help="a retrieval set of another domain; repeatable")
    add("--encoder", default=runs.MINILM, help="what training starts from; default: %(default)s")
    add("--longest", type=int, default=32, help="most tokens of an utterance; default: %(default)s")
    add("--steps", type=int, default=300, help="steps of every training; default: %(default)s")
    add("--half", choices=("report", "choose"), default="report", help="half that is measured")
    options = parser.parse_args(arguments)
    options.encoder = runs.locate_encoder(options.encoder)
    options.train = runs.read_source(options.train)
    for kind in ("sets", "guards"):
        pairs = [text.partition(":")[::2] for text in getattr(options, kind)]
        setattr(options, kind, {name: runs.read_files(file) for name, file in pairs})
    ROWS.update({name: Row(flags) for name, flags in runs.read_rows(options).items()})
    options.rows = options.rows or list(ROWS)
    if unknown := [name for name in options.rows if name not in ROWS]:
        raise ExperimentError(f"--rows: no row {unknown[0]}; there are {', '.join(ROWS)}")
    return options


def make_tables(plan: Plan, options: argparse.Namespace) -> list[report.Table]:
    """Plans all runs, and returns the tables of their results, where there are any yet."""
    adder = Rows(plan, options)
    lines = []
    for name in options.rows:
        row = ROWS[name]
        seeds = options.seeds if row.train else [0]
        paths = [adder.add_scores(name, row, seed) for seed in seeds]
        kinds = [report.read_seeds(options.work_dir, of_kind) for of_kind in zip(*paths)]
        # All results of a seed together, whichever evaluation they are of.
        together = [
            [result for results in of_seed for result in results] for of_seed in zip(*kinds)
        ]
        lines.append(report.Line(name, together))
    held_out = "test" if options.half == "report" else "dev"
    sets = {
        f"{options.name}, response selection": f"{options.work_dir}/data/{options.name}/data/"
        f"{held_out}.jsonl",
        **{f"{options.name}, retrieval by {name}": file for name, file in options.sets.items()},
        **{f"another domain, {name}": file for name, file in options.guards.items()},
    }
    return [
        report.Table(title, [file], lines, BASES, ("map", "r1")) for title, file in sets.items()
    ]


def main(arguments: Sequence[str]) -> None:
    options = parse_arguments(arguments)
    half = "reporting" if options.half == "report" else "choosing"
    note = (
        f"Measured on the {half} half of each retrieval set and on held-out dialogues. Every "
        "trained row is measured at its last step."
    )
    report.run_experiment(
        options,
        make_tables,
        f"{options.name}: encoders in their own domain",
        f"{options.name}-{options.half}",
        lambda *_: [note],
    )


if __name__ == "__main__":
    runs.start(main)
