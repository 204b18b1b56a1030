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

# Every model reads up to 128 tokens of a text, however few it was trained with: sentences of guards
# that are cut would say nothing about the effect of training.
_READ = "--max_sequence_length=128"


@dataclasses.dataclass(frozen=True)
class Row:
    """How a model is made from the starting encoder."""

    train: tuple[str, ...] = ()  # flags of `train`; none for no training
    share: str = ""  # the trained encoder's share of a merge with the starting one; "": no merge
    centred: bool = False  # whether the corpus' mean sentence embedding is subtracted afterwards
    averaged: bool = False  # whether the model is the average with the encoder of `average_with`


BASES = ("untrained", "untrained_centred")
_IN_DOMAIN = ("--preset=in_domain", "--average_with=short_cosine")  # one training for three rows
ROWS = {
    "untrained": Row(),
    "untrained_centred": Row(centred=True),
    **{name: Row((f"--preset={name}",)) for name in ("recommended", "cosine", "dse", "simcse")},
    "dialogue_cse_i2": Row(("--preset=dialogue_cse",)),
    "in_domain": Row(_IN_DOMAIN),
    "in_domain_merged": Row(_IN_DOMAIN, share="0.7"),
    "in_domain_averaged": Row(_IN_DOMAIN, averaged=True),
}


class Experiment(report.Experiment):
    """The runs of the rows in a domain, and their results."""

    def make_tables(self) -> list[report.Table]:
        options, lines = self.options, []
        corpus = options.name, options.train, options.encoder, options.longest
        data = self.prepare(*corpus, [0.1, 0.1])
        held_out = f"{data}/{'test' if options.half == 'report' else 'dev'}.jsonl"
        rows = runs.choose_rows(options, ROWS, ROWS, lambda name, flags: Row(flags))
        for name, row in rows.items():
            seeds: list[report.Result] = []
            for seed in options.seeds if row.train else [0]:
                # All results of a seed together, whichever evaluation they are of.
                if results := self.read_seeds(self._add_scores(name, row, seed, data, held_out)):
                    seeds.append([result for of_kind in results for result in of_kind])
            lines.append(report.Line(name, seeds))
        sets = {
            f"{options.name}, response selection": self.locate(held_out),
            **{f"{options.name}, retrieval by {name}": file for name, file in options.sets.items()},
            **{f"another domain, {name}": file for name, file in options.guards.items()},
        }
        return [
            report.Table(title, [file], lines, BASES, ("map", "r1")) for title, file in sets.items()
        ]

    def _add_scores(self, name: str, row: Row, seed: int, data: str, held_out: str) -> list[str]:
        """Adds a row's evaluations; returns the paths of the results: responses, retrieval."""
        options, place = self.options, self._name(name, row, seed)
        flags = (f"--model={self._add_model(name, row, seed, data)}", _READ)
        kinds = {"responses": (f"--response_selection={held_out}",)}
        if sets := ",".join((*options.sets.values(), *options.guards.values())):
            kinds["retrieval"] = (f"--retrieval={sets}", f"--half={options.half}")
        evaluate = ("evaluate", "results.json", *flags)
        return [
            self.add(f"{kind}/{options.half}/{place}", *evaluate, *given, "--output=")
            for kind, given in kinds.items()
        ]

    def _add_model(self, name: str, row: Row, seed: int, data: str) -> str:
        options, place = self.options, self._name(name, row, seed)
        model, start = options.encoder, options.encoder
        if row.train:
            # Rows that differ in what follows share their training.
            same = (other for other, each in ROWS.items() if each.train == row.train)
            run = f"rows/{self._name(next(same, name), row, seed)}"
            how = (f"--steps={options.steps}", *runs.LAST_STEP, *options.train_flags, *row.train)
            given = (f"--encoder={start}", f"--data_dir={data}", f"--seed={seed}", "--run_dir=")
            model = self.add(run, "train", "model", *how, *given)
            model += "/averaged" if row.averaged else ""
        if row.share:
            given = (f"--share={row.share}", f"--start={start}", f"--trained={model}")
            model = self.add(f"merged/{place}", "merge", "model", *given, "--output_dir=")
        if row.centred:
            given = ("--kind=centering", f"--encoder={model}", f"--data_dir={data}")
            model = self.add(f"centred/{place}", "fit_baseline", "model", *given, "--output_dir=")
        return model

    def _name(self, name: str, row: Row, seed: int) -> str:
        return f"{self.options.name}/{name}" + (f"-seed{seed}" if row.train else "")


def read_named(text: str) -> tuple[str, str]:
    """The name and the file of a set, of NAME:FILE."""
    name, _, file = text.partition(":")
    return name, runs.read_files(file or text)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = runs.make_parser(__doc__)
    add = parser.add_argument
    add("--name", required=True, help="name of the domain, used in folders and the report")
    add(
        "--train",
        required=True,
        type=runs.read_source,
        metavar="FORMAT:FILE,FILE",
        help="the dialogues, as in dcse prepare_data; a tenth of them is held out for choosing "
        "settings, another tenth for reporting",
    )
    named = {"action": "append", "default": [], "metavar": "NAME:FILE", "type": read_named}
    add("--set", dest="sets", **named, help="a retrieval set of the domain; repeatable")
    add("--guard", dest="guards", **named, help="a retrieval set of another domain; repeatable")
    add("--longest", type=int, default=32, help="most tokens of an utterance; default: %(default)s")
    add("--steps", type=int, default=300, help="steps of every training; default: %(default)s")
    add("--half", choices=("report", "choose"), default="report", help="half that is measured")
    options = parser.parse_args(arguments)
    if len(dict(options.sets + options.guards)) < len(options.sets + options.guards):
        parser.error("--set and --guard: each needs a name of its own")
    options.sets, options.guards = dict(options.sets), dict(options.guards)
    return options


def main(arguments: Sequence[str]) -> None:
    options = parse_arguments(arguments)
    note = (
        f"Measured on the {'reporting' if options.half == 'report' else 'choosing'} half of each "
        "retrieval set and on held-out dialogues. Every trained row is measured at its last step."
    )
    title = f"{options.name}: encoders in their own domain"
    Experiment(options).run(title, f"{options.name}-{options.half}", lambda tables: [note])


if __name__ == "__main__":
    runs.start(main)
