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
from collections.abc import Mapping, Sequence

import report
import runs

VOCABULARY = "6000"  # entries, where it is trained on the corpus
_SESSIONS = ("--batch_form=unique", "--global_batch_size=20")
_FROM_RANDOM = ("--learning_rate=1e-4", "--freeze_layers=0", "--nofreeze_embeddings")


@dataclasses.dataclass(frozen=True)
class Row:
    """How a model is made."""

    title: str  # the paper's name of the model, or ours beyond the paper
    train: tuple[str, ...] = ()  # flags of `train`; none for no training
    small: tuple[str, ...] = _SESSIONS  # further flags of `train` in size small
    fit: str = ""  # --kind of `fit_baseline`; "" for no fit
    pooling: str = "mean"  # of the sentence embedding
    adapted: bool = True  # whether it starts from the adapted encoder instead of the original

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


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A setting that is varied over several values in some rows."""

    title: str  # what the table or figure shows
    flag: str  # the flag of `train`; "" if the share of the dialogues is varied
    rows: tuple[str, ...]
    # Value -> corpus -> the paper's (correlation, MAP) of DialogueCSE I2, where it tells them.
    values: Mapping[float, Mapping[str, tuple[float, float]]]


_WITH_CONTEXT = ("dialogue_cse_i2", "siamese_multi", "recommended")
SWEEPS = {
    "table3": Sweep(
        "Table 3: the temperature of the contrastive loss",
        "temperature",
        ("dialogue_cse_i2", "recommended"),
        {
            0.05: {"jddc": (80.05, 67.19), "ecd": (82.24, 67.98)},
            0.1: {"jddc": (81.22, 68.02), "ecd": (83.94, 69.32)},
            0.2: {"jddc": (80.82, 67.55), "ecd": (84.24, 69.63)},
            0.5: {"jddc": (79.85, 68.63), "ecd": (83.76, 69.11)},
        },
    ),
    "table4": Sweep(
        "Table 4: the negatives of a positive",
        "negatives",
        ("dialogue_cse_i2", "recommended"),
        {
            1: {"jddc": (80.60, 67.48), "ecd": (82.55, 68.56)},
            4: {"jddc": (80.85, 67.69), "ecd": (83.14, 68.87)},
            9: {"jddc": (81.22, 68.02), "ecd": (83.94, 69.32)},
            19: {"jddc": (81.56, 68.63), "ecd": (84.12, 69.56)},
        },
    ),
    # In the paper both scores rise up to about 3 turns and then fall.
    "figure2": Sweep(
        "Figure 2: context turns on each side",
        "context_turns",
        _WITH_CONTEXT,
        {turns: {} for turns in (1, 2, 3, 4, 5, 6)},
    ),
    # In the paper the gap to SiameseBERT_M grows as the dialogues get fewer.
    "figure3": Sweep(
        "Figure 3: the share of the dialogues trained on",
        "",
        _WITH_CONTEXT,
        {share: {} for share in (0.05, 0.1, 0.25, 0.5, 1.0)},
    ),
}


class Experiment(report.Experiment):
    """The runs of one of the tables and figures, and their results."""

    def __init__(self, options: argparse.Namespace):
        super().__init__(options)
        self._sweep = SWEEPS.get(options.name)
        self._half = "choose" if self._sweep else "report"

    def make_tables(self) -> list[report.Table]:
        options, sweep = self.options, self._sweep
        rows, tables = choose_rows(options), []
        for corpus in runs.read_corpora(options, 3, runs.read_files):
            lines = []
            for name, row in rows.items():
                for value in sweep.values if sweep else (None,):
                    seeds = options.seeds if row.seeded else [0]
                    paths = [self._add_scores(corpus, name, row, seed, value) for seed in seeds]
                    label = row.title if value is None else f"{row.title}, {value:g}"
                    paper = find_paper(options.name, name, corpus.name, value)
                    lines.append(report.Line(label, self.read_seeds(paths), paper, value))
            bases = (ROWS["recommended"].title,) if not sweep else ()
            tables.append(report.Table(corpus.name.upper(), corpus.sets, lines, bases))
        return tables

    def _add_scores(
        self, corpus: runs.Corpus, name: str, row: Row, seed: int, value: float | None
    ) -> str:
        """Adds the evaluation of a row, and all it needs; returns the path of the results. `value`
        is that of the setting that is varied.
        """
        flag, share = "", 1.0
        if self._sweep and value is not None:
            flag = f"--{self._sweep.flag}={value:g}" if self._sweep.flag else ""
            share = 1.0 if flag else value
        words = [name, flag.strip("-"), f"share={share:g}" if share < 1 else ""]
        place = f"{corpus.name}/{'-'.join(filter(None, words))}"
        place += f"-seed{seed}" if row.seeded else ""
        model = self._add_model(corpus, row, seed, f"rows/{place}", flag, share)
        return self.add(
            f"scores/{self._half}/{place}",
            "evaluate",
            "results.json",
            *(f"--model={model}", "" if row.fit else f"--pooling={row.pooling}"),
            *(f"--{kind}={file}" for kind, file in zip(("retrieval", "sts"), corpus.sets)),
            *(f"--half={self._half}", "--output="),
        )

    def _add_model(
        self, corpus: runs.Corpus, row: Row, seed: int, name: str, flag: str, share: float
    ) -> str:
        options = self.options
        if row.fit == "word_vectors":
            vectors = runs.read_files(options.word_vectors or "--word_vectors")
            flags = (f"--kind={row.fit}", f"--word_vectors={vectors}", "--output_dir=")
            return self.add(name, "fit_baseline", "model", *flags)
        encoder = self._add_encoder(corpus, row.adapted)
        if not (row.train or row.fit):
            return encoder
        # Splits depend on a hash of a dialogue's name, so a smaller share is part of a larger one.
        given = (f"--encoder={encoder}", f"--data_dir={self._add_data(corpus, share)}")
        seeded = f"--seed={seed}" if row.seeded else ""
        steps = f"--steps={options.steps}" if options.size == "small" else ""
        if row.fit:
            kind = (f"--kind={row.fit}", f"--pooling={row.pooling}")
            output = (*kind, steps if row.fit == "flow" else "", seeded, *given, "--output_dir=")
            return self.add(name, "fit_baseline", "model", *output)
        weights = () if options.encoder else _FROM_RANDOM
        small = row.small if options.size == "small" else ()
        flags = (*small, *weights, steps, *row.train, *runs.LAST_STEP, *options.train_flags, flag)
        return self.add(name, "train", "model", *flags, *given, seeded, "--run_dir=")

    def _add_encoder(self, corpus: runs.Corpus, adapted: bool) -> str:
        """The path of the encoder that rows start from."""
        encoder, steps = self.options.encoder, self.options.mlm_steps
        if encoder and not (adapted and steps):
            return encoder
        start = f"--encoder={encoder}"
        rate = ""
        if not encoder:
            start, rate = f"--encoder_size={self.options.encoder_size}", "--learning_rate=5e-4"
        if not adapted:  # random weights: written by one step that changes nothing
            steps, rate = 1, "--learning_rate=0"
        flags = ("--preset=mlm", start, f"--steps={steps}", rate, *runs.LAST_STEP)
        data = f"--data_dir={self._add_data(corpus, 1.0)}"
        name = f"encoders/{corpus.name}-{'adapted' if adapted else 'original'}"
        return self.add(name, "train", "model", *flags, data, "--run_dir=")

    def _add_data(self, corpus: runs.Corpus, share: float) -> str:
        name = corpus.name + ("" if share == 1.0 else f"-share={share:g}")
        vocabulary, whole = self.options.encoder, share == 1.0
        # A share is read with the vocabulary of the encoder that is trained on it.
        vocabulary = vocabulary or (VOCABULARY if whole else self._add_encoder(corpus, True))
        longest = 100 if corpus.name == "jddc" else 50  # as in the paper, section 5.3
        return self.prepare(name, corpus.train, vocabulary, longest, [(1 - share) / 2] * 2)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = runs.make_parser(
        __doc__,
        "NAME FORMAT:FILE,FILE RETRIEVAL [STS]; the paper's figures are shown for the names mdc, "
        "jddc and ecd",
    )
    add = parser.add_argument
    add("name", choices=("table2", *SWEEPS))
    add(
        "--size",
        choices=("small", "paper"),
        default="small",
        help="small: batches of 20 dialogues and --steps, minutes a row on two cores; paper: every "
        "row's own settings, for full corpora and GPUs",
    )
    add("--encoder_size", default="mini", help="without --encoder: as in dcse train")
    add("--mlm_steps", type=int, help="steps of adaptation; default: 0, or 3000 without --encoder")
    add("--steps", type=int, default=150, help="small: steps of each row; default: %(default)s")
    add("--word_vectors", default="", help="file of the row of word vectors; without it, left out")
    parser.set_defaults(encoder="")
    options = parser.parse_args(arguments)
    if options.mlm_steps is None:
        options.mlm_steps = 0 if options.encoder else 3000
    return options


def choose_rows(options: argparse.Namespace) -> dict[str, Row]:
    """Name -> row, of the rows asked for; those that cannot be made only if they are named."""
    default = list(SWEEPS[options.name].rows if options.name in SWEEPS else ROWS)
    if not options.word_vectors:
        default = [name for name in default if name != "glove"]
    if not options.mlm_steps:  # the encoder is nowhere adapted
        default = [name for name in default if ROWS[name].train or not ROWS[name].adapted]
    return runs.choose_rows(options, ROWS, default, lambda name, flags: Row(name, flags, ()))


def find_paper(table: str, row: str, corpus: str, value: float | None) -> dict[str, float]:
    """Score -> the paper's figure of a line; empty if it gives none."""
    figures: Mapping[str, tuple[float, ...]] = {}  # by corpus
    if table == "table2":
        figures = dict(zip(_CORPORA, TABLE_2.get(row, ())))
    elif row == "dialogue_cse_i2":
        figures = SWEEPS[table].values[value]
    return dict(zip(("spearman", "map", "mrr"), figures.get(corpus, ())))


def main(arguments: Sequence[str]) -> None:
    options = parse_arguments(arguments)
    sweep = SWEEPS.get(options.name)
    note = (
        f"Measured on the {'choosing' if sweep else 'reporting'} half of each set, every row at "
        "its last step. The paper's figures are for BERT-base on the full corpora: compare the "
        "order of the rows, not their level."
    )
    title = sweep.title if sweep else "Table 2: semantic retrieval and dialogue STS"
    Experiment(options).run(title, options.name, lambda tables: [note])


if __name__ == "__main__":
    runs.start(main)
