"""Compares ways of embedding on a CPU, ours and others': sentences per second, and quality.

    pip install -e '.[onnx]'
    python experiments/benchmarks/backends.py --retrieval=select.txt --retrieval=other/select.txt

Ours run as the command line in a separate process (see jobs.py for what is timed), on a checkpoint
and on its exports. The others are sentence-transformers with each of its backends, fastembed on the
file that sentence-transformers exported, and model2vec distilled from the same model; each runs in
its own environment, on the same texts in memory. All use two threads and take turns on the same
distinct utterances of chitchat-dataset. Static models (tables of token vectors) get many more
utterances, because they take seconds where others take minutes.

Quality is the MAP of each one's embeddings on each --retrieval set, computed by the same code. With
--start, the checkpoint that a trained --encoder started from, the share of the training's gain that
each one keeps is reported too. What cannot be installed or loaded is left out, with the reason.
"""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import jobs
import measure
import numpy as np
import peers

from dcse_tf.data.formats import FORMATS
from dcse_tf.evaluation.report import short_path
from dcse_tf.evaluation.retrieval import RetrievalSet, evaluate_retrieval, read_retrieval_set
from dcse_tf.input_files import BadLines, resolve_inputs

UTTERANCES = "package:chitchat_dataset/dataset.json"
START = "start"


@dataclasses.dataclass(frozen=True)
class Tier:
    """One of our ways: the flags of its export ("" for the checkpoint itself) and of `embed`."""

    export: str = ""
    embed: str = ""
    static: bool = False


OURS = {
    "dcse_tf": Tier(),
    "dcse_tf bfloat16": Tier(embed="--compute_dtype=bfloat16"),
    "dcse_tf ONNX": Tier("--format=onnx"),
    "dcse_tf ONNX int8": Tier("--format=onnx --quantize=int8"),
    "dcse_tf static": Tier("--format=static", static=True),
}
# Mode of tier_peer.py -> the packages to install, with the versions in MODE_constraints.txt. The
# order matters: fastembed uses what optimum exports.
PEERS = {
    "torch": ("torch", "transformers", "sentence-transformers"),
    "optimum": ("torch", "sentence-transformers[onnx,openvino]", "datasets"),
    "fastembed": ("fastembed",),
    "model2vec": ("torch", "model2vec[distill,quantization]"),
}
STATIC_PEERS = ("model2vec",)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__, rounds=3)
    add = parser.add_argument
    jobs.add_arguments(parser)
    count = measure.at_least_one
    add("--static_sentences", type=count, default=100_000, help="for static models")
    add("--threads", type=count, default=2, help="threads of each; default: %(default)s")
    add("--data_dir", help="corpus for the static export; default: chitchat-dataset, prepared here")
    add("--retrieval", action="append", default=[], type=pathlib.Path, help="select.txt; repeated")
    add("--start", help="what a trained --encoder started from")
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="default: all")
    add(
        "--peer_env",
        type=pathlib.Path,
        default=peers.DEFAULT_ENVIRONMENT,
        help="virtual environment of torch; the others' lie beside it, with -MODE appended; "
        "built if missing (5 GB together); default: .venv-peers in the clone",
    )
    return parser.parse_args(arguments)


def write_utterances(folder: pathlib.Path, count: int) -> jobs.Inputs:
    """Writes distinct utterances in random order: one file of a tenth of them, one of all.

    If there are too few, repeated ones get a number appended.

    Args:
        folder: the folder to create.
        count: the number of utterances.
    """
    (path,) = resolve_inputs([UTTERANCES])
    sessions = FORMATS["chitchat"].read(path, BadLines(0))
    texts = sorted({" ".join(turn.text.split()) for _, turns, *_ in sessions for turn in turns})
    drawn = np.random.default_rng(0).permutation(texts).tolist()
    repeated = [drawn[i % len(drawn)] + f" {i}" * (i >= len(drawn)) for i in range(count)]
    folder.mkdir()
    few, many = folder / "few.txt", folder / "many.txt"
    few.write_text("".join(f"{text}\n" for text in repeated[: count // 10]), encoding="utf-8")
    many.write_text("".join(f"{text}\n" for text in repeated), encoding="utf-8")
    return jobs.Inputs(folder, (folder, folder), (few, many))


@dataclasses.dataclass(frozen=True)
class Work:
    """The files that every way reads and writes.

    Attributes:
        folder: the folder of all files.
        inputs: the timed sentences, with key True for static models and False for all others.
        texts: file of the sentences of the retrieval sets, one per line; empty without sets.
        vectors: folder of their embeddings, NAME.npy.
    """

    folder: pathlib.Path
    inputs: Mapping[bool, jobs.Inputs]
    texts: pathlib.Path
    vectors: pathlib.Path


def make_work(folder: pathlib.Path, args: argparse.Namespace, sets: list[RetrievalSet]) -> Work:
    counts = {False: args.sentences, True: args.static_sentences}
    inputs = {
        static: write_utterances(folder / f"drawn-{count}", count)
        for static, count in counts.items()
    }
    work = Work(folder, inputs, folder / "texts.txt", folder / "vectors")
    work.vectors.mkdir()
    lines = [f"{text}\n" for each in sets for text in each.sentences]
    work.texts.write_text("".join(lines), encoding="utf-8")
    return work


def make_ours(work: Work, args: argparse.Namespace) -> Iterator[measure.Case]:
    """Exports the models, embeds the retrieval sets with each, and yields the cases to time."""
    maker = jobs.Checkout(jobs.ROOT, work.folder / "export", args.encoder)
    for place, (name, tier) in enumerate(OURS.items()):
        model, flags = args.encoder, tier.export.split()
        if flags:
            model = str(work.folder / f"export-{place}")
            if tier.static:
                flags.append(f"--data_dir={args.data_dir or prepare(maker, work)}")
            maker.run("export", f"--run_dir={args.encoder}", f"--output_dir={model}", *flags)
        checkout = jobs.Checkout(jobs.ROOT, work.folder / f"ours-{place}", model)
        embed_texts(checkout, work, name, tier.embed.split())
        yield checkout.case(name, "embed", work.inputs[tier.static], args, tier.embed.split())


def prepare(checkout: jobs.Checkout, work: Work) -> pathlib.Path:
    """Prepares the corpus that the static export is fitted to; returns its folder."""
    folder = work.folder / "corpus"
    checkout.run(
        "prepare_data",
        "--format=chitchat",
        f"--input={UTTERANCES}",
        f"--vocab={checkout.encoder}",
        f"--output_dir={folder}",
    )
    return folder


def embed_texts(checkout: jobs.Checkout, work: Work, name: str, flags: list[str]) -> None:
    if work.texts.stat().st_size:
        output = work.vectors / f"{name}.npy"
        model = f"--model={checkout.encoder}"
        checkout.run("embed", model, f"--input={work.texts}", f"--output={output}", *flags)


def make_peers(stack: ExitStack, work: Work, args: argparse.Namespace) -> Iterator[measure.Case]:
    """Starts the peers, which embed the retrieval sets, and yields their cases to time."""
    settings = {
        "model": find_folder(work, args.encoder),
        "folder": str(work.folder),
        "threads": args.threads,
    }
    if work.texts.stat().st_size:
        settings |= {"texts": str(work.texts), "vectors": str(work.vectors)}
    for mode in (mode for mode in PEERS if mode in args.peers):
        settings["sentences"] = str(work.inputs[mode in STATIC_PEERS].sentences[1])
        try:
            python = build_environment(mode, args.peer_env)
            peer = stack.enter_context(peers.Peer(python, mode, settings, peers.TIERS))
        except (subprocess.CalledProcessError, RuntimeError) as error:
            print(f"left out: {mode}: {error}", flush=True)
            continue
        print(f"{mode}: {peer.found['versions']}", flush=True)
        for name, reason in peer.found["left_out"].items():
            print(f"left out: {name}: {reason}", flush=True)
        for name in peer.found["variants"]:
            yield measure.Case(name, peer.found["unit"], partial(peer.run, name))


def build_environment(mode: str, base: pathlib.Path) -> pathlib.Path:
    """Builds a peer's environment if necessary; returns its Python."""
    folder = base if mode == "torch" else base.with_name(f"{base.name}-{mode}")
    constraints = peers.TIERS.with_name(f"{mode}_constraints.txt")
    return peers.build_environment(folder, PEERS[mode], [constraints])


def find_folder(work: Work, encoder: str) -> str:
    """A folder of the encoder in sentence-transformers' form, exported if necessary."""
    found = peers.find_model(encoder)
    if pathlib.Path(found, "modules.json").is_file():
        return found
    output = str(work.folder / "sentence-transformers")
    form = "--format=sentence_transformers"
    checkout = jobs.Checkout(jobs.ROOT, work.folder / "export-peers", encoder)
    checkout.run("export", f"--run_dir={encoder}", f"--output_dir={output}", form)
    return output


def score(embeddings: np.ndarray, sets: Mapping[str, RetrievalSet]) -> dict[str, float]:
    """Name of a set -> MAP in percent.

    Args:
        embeddings: `[sentences, dim]`, of the sentences of all sets, one set after the other.
        sets: name -> set, in that order.
    """
    ends = np.cumsum([len(each.sentences) for each in sets.values()])
    if len(embeddings) != ends[-1]:
        raise ValueError(f"{len(embeddings)} embeddings of {ends[-1]} sentences")
    parts = np.split(embeddings, ends[:-1])
    return {
        name: evaluate_retrieval(each, lambda _, part=part: part).scores["map"]
        for part, (name, each) in zip(parts, sets.items(), strict=True)
    }


def format_scores(scores: Mapping[str, Mapping[str, float]], full: str) -> str:
    """Formats the MAP of every way on each set, and its share of `full`'s gain over the start."""
    lines = []
    for name, found in scores.items():
        cells = [name]
        for each, value in found.items():
            cells.append(f"{value:.2f}")
            if START in scores:
                before = scores[START][each]
                cells.append(f"{(value - before) / (scores[full][each] - before):.0%}")
        lines.append(cells)
    shares = ["of the gain"] if START in scores else []
    head = [word for each in scores[full] for word in (f"MAP {each}", *shares)]
    return measure.format_table([["", *head], *lines])


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    if hasattr(os, "sched_setaffinity"):  # inherited by child processes
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    sets = {short_path(str(path)): read_retrieval_set(path) for path in args.retrieval}
    scores = {}
    with ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = make_work(folder, args, list(sets.values()))
        cases = [*make_peers(stack, work, args), *make_ours(work, args)]
        names = [case.name for case in cases]
        if sets and args.start:
            embed_texts(jobs.Checkout(jobs.ROOT, folder / START, args.start), work, START, [])
            names.append(START)
        for name in names if sets else ():
            scores[name] = score(np.load(work.vectors / f"{name}.npy"), sets)
        if scores:
            print(format_scores(scores, next(iter(OURS))), flush=True)
        rows = measure.run_rounds(cases, args.rounds)
    print(measure.format_rows(rows))
    measure.write_json(args.output, rows, scores=scores)


if __name__ == "__main__":
    main()
