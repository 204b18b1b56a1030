"""Reproduces the tables and figures of Liu et al. 2021 (DialogueCSE) on your data.

    python experiments/dialogue_cse.py table2 --work_dir=FOLDER --encoder=bert-base-chinese \\
        --mlm_steps=20000 --seeds 0 1 2 --corpus ecd dialoguecse:train.txt select.txt sts.txt

table2: the baselines, DialogueCSE, and what goes beyond the paper, on the reporting half of each
set. The others use the choosing half, on which settings may be picked: table3 (the temperature),
table4 (the negatives of a positive), figure2 (context turns on each side) and figure3 (the share of
the dialogues trained on).

Trained rows start from the same encoder: --encoder, after --mlm_steps of adaptation to the corpus.
Without --encoder it is one of --encoder_size from random weights, which needs the adaptation. The
same command reuses finished runs and resumes interrupted ones; flags may be given in a file: @FILE.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import report
import runs
from runs import LAST_STEP, ExperimentError, Plan

VOCABULARY = "6000"  # entries, where it is trained on the corpus
_SESSIONS = ("--batch_form=unique", "--global_batch_size=20")
_FROM_RANDOM = ("--learning_rate=1e-4", "--freeze_layers=0", "--nofreeze_embeddings")


@dataclasses.dataclass(frozen=True)
class Row:
    """How a model is made.

    Attributes:
        title: the paper's name of the model, or ours beyond the paper.
        train: flags of `train`; empty for no training.
        small: further flags of `train` in size small.
        fit: --kind of `fit_baseline`; "" for no fit.
        pooling: the pooling of the sentence embedding.
        adapted: whether it starts from the adapted encoder instead of the original.
    """

    title: str
    train: tuple[str, ...] = ()
    small: tuple[str, ...] = _SESSIONS
    fit: str = ""
    pooling: str = "mean"
    adapted: bool = True

    @property
    def seeded(self) -> bool:
        """Whether another seed gives another model."""
        return bool(self.train) or self.fit == "flow"


def _preset(title: str, name: str, small: tuple[str, ...] = _SESSIONS) -> Row:
    return Row(title, (f"--preset={name}",), small)


def _untrained(prefix: str, title: str, adapted: bool) -> dict[str, Row]:
    return {
        f"{prefix}_cls": Row(f"{title}-CLS", pooling="cls", adapted=adapted),
        f"{prefix}_avg": Row(f"{title}-avg", adapted=adapted),
        f"{prefix}_flow": Row(f"{title}-flow", fit="flow", adapted=adapted),
        f"{prefix}_whitening": Row(f"{title}-whitening", fit="whitening", adapted=adapted),
    }


ROWS = {
    "glove": Row("Avg. word vectors", fit="word_vectors"),
    **_untrained("bert", "BERT", adapted=False),
    **_untrained("adapt", "BERT(adapt)", adapted=True),
    "siamese_single": _preset("SiameseBERT_S", "siamese_single"),
    "siamese_multi": _preset("SiameseBERT_M", "siamese_multi"),
    "dialogue_cse_i1": _preset("DialogueCSE I1", "dialogue_cse_i1"),
    "dialogue_cse_i2": _preset("DialogueCSE I2", "dialogue_cse"),
    # Beyond the paper.
    "simcse": _preset("SimCSE", "simcse", ()),
    "dse": _preset("DSE", "dse"),
    "cosine": _preset("plain cosine", "cosine"),
    "recommended": _preset("recommended", "recommended", ()),
    "in_domain": _preset("in_domain", "in_domain", ()),
}

# Table 2 of the paper, percent: row -> (correlation, MAP, MRR) on MDC, JDDC and ECD.
TABLE_2 = {
    "glove": ((36.64, 31.59, 40.91), (39.61, 45.94, 59.53), (19.80, 46.14, 63.68)),
    "bert_cls": ((22.34, 29.54, 35.94), (21.40, 45.05, 59.58), (16.61, 47.75, 65.91)),
    "bert_avg": ((40.95, 32.10, 43.01), (50.89, 49.08, 64.54), (43.68, 51.77, 70.79)),
    "bert_flow": ((45.56, 33.13, 40.86), (65.11, 49.53, 64.30), (55.04, 52.16, 71.06)),
    "bert_whitening": ((26.70, 32.09, 43.01), (61.57, 49.08, 64.54), (47.64, 51.77, 70.80)),
    "adapt_cls": ((27.35, 31.30, 39.83), (26.49, 48.51, 65.70), (33.91, 51.75, 74.68)),
    "adapt_avg": ((42.81, 32.53, 43.49), (72.60, 53.03, 66.99), (74.26, 59.32, 76.89)),
    "adapt_flow": ((50.17, 34.32, 41.62), (73.32, 53.42, 67.00), (74.31, 59.77, 76.48)),
    "adapt_whitening": ((29.68, 32.53, 43.48), (67.18, 53.04, 67.01), (57.22, 59.33, 76.84)),
    "siamese_single": ((77.95, 76.26, 84.92), (75.70, 61.92, 74.44), (74.83, 65.84, 79.88)),
    "siamese_multi": ((76.70, 73.81, 85.09), (76.85, 62.45, 74.64), (75.45, 66.24, 80.58)),
    "dialogue_cse_i1": ((80.13, 87.26, 85.89), (80.60, 66.54, 74.79), (81.79, 68.70, 79.89)),
    "dialogue_cse_i2": ((82.36, 91.40, 90.45), (81.22, 68.02, 79.52), (83.94, 69.32, 81.20)),
}
_CORPORA = ("mdc", "jddc", "ecd")
# Tables 3 and 4: value -> corpus -> (correlation, MAP).
TABLE_3 = {
    0.05: {"jddc": (80.05, 67.19), "ecd": (82.24, 67.98)},
    0.1: {"jddc": (81.22, 68.02), "ecd": (83.94, 69.32)},
    0.2: {"jddc": (80.82, 67.55), "ecd": (84.24, 69.63)},
    0.5: {"jddc": (79.85, 68.63), "ecd": (83.76, 69.11)},
}
TABLE_4 = {
    1: {"jddc": (80.60, 67.48), "ecd": (82.55, 68.56)},
    4: {"jddc": (80.85, 67.69), "ecd": (83.14, 68.87)},
    9: {"jddc": (81.22, 68.02), "ecd": (83.94, 69.32)},
    19: {"jddc": (81.56, 68.63), "ecd": (84.12, 69.56)},
}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A setting that is varied over several values in some rows.

    Attributes:
        title: what the table or figure shows.
        flag: the flag of `train`; "" if the share of the dialogues is varied.
        values: the values.
        rows: the rows.
        paper: value -> corpus -> the paper's (correlation, MAP) of DialogueCSE I2.
    """

    title: str
    flag: str
    values: tuple[float, ...]
    rows: tuple[str, ...]
    paper: dict[Any, dict[str, tuple[float, float]]] = dataclasses.field(default_factory=dict)


_WITH_CONTEXT = ("dialogue_cse_i2", "siamese_multi", "recommended")
SWEEPS = {
    "table3": Sweep(
        "Table 3: the temperature of the contrastive loss",
        "temperature",
        (0.05, 0.1, 0.2, 0.5),
        ("dialogue_cse_i2", "recommended"),
        TABLE_3,
    ),
    "table4": Sweep(
        "Table 4: the negatives of a positive",
        "negatives",
        (1, 4, 9, 19),
        ("dialogue_cse_i2", "recommended"),
        TABLE_4,
    ),
    # In the paper both scores rise up to about 3 turns and then fall.
    "figure2": Sweep(
        "Figure 2: context turns on each side", "context_turns", (1, 2, 3, 4, 5, 6), _WITH_CONTEXT
    ),
    # In the paper the gap to SiameseBERT_M grows as the dialogues get fewer.
    "figure3": Sweep(
        "Figure 3: the share of the dialogues trained on",
        "",
        (0.05, 0.1, 0.25, 0.5, 1.0),
        _WITH_CONTEXT,
    ),
}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus as given by --corpus.

    Attributes:
        name: used in folders; the paper's figures are shown for mdc, jddc and ecd.
        train: "FORMAT:FILE,FILE", all that is trained on.
        retrieval: the file of semantic retrieval.
        sts: the file of dialogue STS; "" for none.
    """

    name: str
    train: str
    retrieval: str
    sts: str = ""


class Rows:
    """Adds the runs of rows to a plan.

    Args:
        plan: the plan.
        options: the command line.
    """

    def __init__(self, plan: Plan, options: argparse.Namespace):
        self._plan, self._options = plan, options
        self._flags = runs.read_job_flags(options.train_flags)

    def add_scores(
        self, corpus: Corpus, name: str, row: Row, seed: int, half: str, flag: str = "", share=1.0
    ) -> str:
        """Adds the evaluation of a row on one half of a corpus' sets, and all it needs.

        Args:
            corpus: the corpus.
            name: the row's name, used in folders.
            row: the row.
            seed: the seed of the training.
            half: "choose" or "report".
            flag: a further flag of `train`.
            share: the share of the dialogues to train on.

        Returns:
            The path of the results.
        """
        words = [name, flag.strip("-"), f"share={share:g}" if share < 1 else ""]
        place = f"{corpus.name}/{'-'.join(filter(None, words))}"
        place += f"-seed{seed}" if row.seeded else ""
        model = self._add_model(corpus, row, seed, f"rows/{place}", flag, share)
        return self._plan.add(
            f"scores/{half}/{place}",
            "evaluate",
            "results.json",
            *(f"--model={model}", f"--pooling={'mean' if row.fit else row.pooling}"),
            f"--retrieval={corpus.retrieval}",
            f"--sts={corpus.sts}" if corpus.sts else "",
            *(f"--half={half}", "--output="),
        )

    def _add_model(
        self, corpus: Corpus, row: Row, seed: int, name: str, flag: str, share: float
    ) -> str:
        if row.fit == "word_vectors":
            vectors = runs.read_files(self._options.word_vectors)
            flags = (f"--kind={row.fit}", f"--word_vectors={vectors}", "--output_dir=")
            return self._plan.add(name, "fit_baseline", "model", *flags)
        encoder = self._add_encoder(corpus, row.adapted)
        if not (row.train or row.fit):
            return encoder
        # Splits depend on a hash of a dialogue's name, so a smaller share is part of a larger one.
        data = self._add_data(corpus, share)
        given = (f"--encoder={encoder}", f"--data_dir={data}")
        if row.fit:
            kind = (f"--kind={row.fit}", f"--pooling={row.pooling}")
            steps = f"--steps={self._options.steps}" if row.fit == "flow" else ""
            seeded = f"--seed={seed}" if row.seeded else ""
            output = (*kind, steps, seeded, *given, "--output_dir=")
            return self._plan.add(name, "fit_baseline", "model", *output)
        small = row.small if self._options.size == "small" else ()
        weights = () if self._options.encoder else _FROM_RANDOM
        steps = f"--steps={self._options.steps}" if self._options.size == "small" else ""
        flags = (*row.train, *small, *weights, steps, *LAST_STEP, *self._flags, flag)
        return self._plan.add(
            name, "train", "model", *flags, *given, f"--seed={seed}", "--run_dir="
        )

    def _add_encoder(self, corpus: Corpus, adapted: bool) -> str:
        """The path of the encoder that rows start from."""
        encoder, steps = self._options.encoder, self._options.mlm_steps
        if encoder and not (adapted and steps):
            return encoder
        start = (
            f"--encoder={encoder}" if encoder else f"--encoder_size={self._options.encoder_size}"
        )
        rate = "" if encoder else "--learning_rate=5e-4"
        if not adapted:  # random weights: written by one step that changes nothing
            steps, rate = 1, "--learning_rate=0"
        flags = (f"--steps={steps}", rate, *LAST_STEP)
        data = f"--data_dir={self._add_data(corpus, 1.0)}"
        name = f"encoders/{corpus.name}-{'adapted' if adapted else 'original'}"
        return self._plan.add(
            name, "train", "model", "--preset=mlm", start, *flags, data, "--run_dir="
        )

    def _add_data(self, corpus: Corpus, share: float) -> str:
        name = corpus.name + ("" if share == 1.0 else f"-share={share:g}")
        vocabulary, held_out = self._options.encoder or VOCABULARY, [(1 - share) / 2] * 2
        longest = 100 if corpus.name == "jddc" else 50  # as in the paper, section 5.3
        return self._plan.prepare(name, corpus.train, vocabulary, longest, held_out)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = runs.make_parser(__doc__)
    add = parser.add_argument
    add("name", choices=("table2", *SWEEPS))
    add(
        "--corpus",
        nargs="+",
        action="append",
        required=True,
        metavar="WORD",
        help="NAME FORMAT:FILE,FILE RETRIEVAL [STS]; repeatable. The paper's figures are shown for "
        "the names mdc, jddc and ecd",
    )
    add(
        "--size",
        choices=("small", "paper"),
        default="small",
        help="small: batches of 20 dialogues and --steps, minutes a row on two cores; paper: every "
        "row's own settings, for full corpora and GPUs",
    )
    add("--encoder", default="", help="checkpoint: a folder, a hub name or package:NAME")
    add("--encoder_size", default="mini", help="without --encoder: as in dcse train")
    add("--mlm_steps", type=int, help="steps of adaptation; default: 0, or 3000 without --encoder")
    add("--steps", type=int, default=150, help="small: steps of each row; default: %(default)s")
    add("--word_vectors", default="", help="file of the row of word vectors; without it, left out")
    options = parser.parse_args(arguments)
    options.encoder = runs.locate_encoder(options.encoder)
    if options.mlm_steps is None:
        options.mlm_steps = 0 if options.encoder else 3000
    return options


def read_corpora(options: argparse.Namespace) -> list[Corpus]:
    """The corpora of --corpus.

    Raises:
        ExperimentError: a file is missing, or a set is among the training files.
    """
    corpora = []
    for words in options.corpus:
        if not 3 <= len(words) <= 4:
            raise ExperimentError(f"--corpus {' '.join(words)}: expected 3 or 4 words")
        name, train, *sets = words
        corpus = Corpus(name, runs.read_source(train), *map(runs.read_files, sets))
        if {corpus.retrieval, corpus.sts} & set(corpus.train.partition(":")[2].split(",")):
            raise ExperimentError(f"--corpus {name}: a set is among the training files")
        corpora.append(corpus)
    return corpora


def choose_rows(options: argparse.Namespace) -> dict[str, Row]:
    """Name -> row, of the rows asked for."""
    added = runs.read_rows(options)
    known = {**ROWS, **{name: Row(name, flags, ()) for name, flags in added.items()}}
    default = SWEEPS[options.name].rows if options.name in SWEEPS else known
    names = [*(options.rows or default), *(name for name in added if options.rows)]
    if unknown := [name for name in names if name not in known]:
        raise ExperimentError(f"--rows: no row {unknown[0]}; there are {', '.join(known)}")
    left_out = set()
    if not options.word_vectors:
        left_out.add("glove")
    if not options.mlm_steps:  # the encoder is nowhere adapted
        left_out |= {name for name, row in ROWS.items() if row.adapted and not row.train}
    return {name: known[name] for name in names if name not in left_out - set(options.rows or ())}


def make_tables(plan: Plan, options: argparse.Namespace) -> list[report.Table]:
    """Plans all runs, and returns the tables of their results, where there are any yet."""
    rows, adder, sweep = choose_rows(options), Rows(plan, options), SWEEPS.get(options.name)
    half = "choose" if sweep else "report"
    values = sweep.values if sweep else (None,)
    tables = []
    for corpus in read_corpora(options):
        lines = []
        for name, row in rows.items():
            for value in values:
                varied = {}
                if sweep and value is not None:
                    flag = f"--{sweep.flag}={value:g}"
                    varied = {"flag": flag} if sweep.flag else {"share": value}
                seeds = options.seeds if row.seeded else [0]
                paths = [adder.add_scores(corpus, name, row, s, half, **varied) for s in seeds]
                label = row.title if value is None else f"{row.title}, {value:g}"
                found = report.read_seeds(options.work_dir, paths)
                paper = find_paper(options.name, name, corpus.name, value)
                lines.append(report.Line(label, found, paper, value))
        base = (ROWS["recommended"].title,) if not sweep else ()
        files = [corpus.retrieval, *filter(None, [corpus.sts])]
        tables.append(report.Table(corpus.name.upper(), files, lines, base))
    return tables


def find_paper(table: str, row: str, corpus: str, value: float | None) -> dict[str, float]:
    """Score -> the paper's figure of a line; empty if it gives none."""
    if table == "table2" and row in TABLE_2 and corpus in _CORPORA:
        scores = TABLE_2[row][_CORPORA.index(corpus)]
        return dict(zip(("spearman", "map", "mrr"), scores, strict=True))
    if table in SWEEPS and row == "dialogue_cse_i2":
        scores = SWEEPS[table].paper.get(value, {}).get(corpus, ())
        return dict(zip(("spearman", "map"), scores))
    return {}


def main(arguments: Sequence[str]) -> None:
    options = parse_arguments(arguments)
    sweep = SWEEPS.get(options.name)
    half = "choosing" if sweep else "reporting"
    note = (
        f"Measured on the {half} half of each set, every row at its last step. The paper's figures "
        "are for BERT-base on the full corpora: compare the order of the rows, not their level."
    )
    title = sweep.title if sweep else "Table 2: semantic retrieval and dialogue STS"
    report.run_experiment(options, make_tables, title, options.name, lambda *_: [note])


if __name__ == "__main__":
    runs.start(main)
