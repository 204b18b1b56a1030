"""Runs the jobs of a checkout as measured processes, on random dialogues.

Only the command line of `dcse` is used, so that any version of the package can be measured.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import measure
import numpy as np
import report
from measure import Case, Round
from runs import DCSE, MINILM

LONGEST = 32  # tokens per utterance, at most
# In training, the first steps trace the graph and warm up; they are not measured.
WARM_UP_STEPS, LOG_EVERY = 10, 5
# Subject -> the unit of its rate.
SUBJECTS = {
    "train": "samples",
    "bfloat16": "samples",  # train in that type
    "embed": "sentences",
    "evaluate": "contexts",
    "rerank": "contexts",
}
RERANKER = (
    *("--task=response_selection", "--auxiliary=none", "--global_batch_size=16"),
    *("--context_turns=7", "--max_context_tokens=128", "--max_response_tokens=32"),
)


def make_parser(description: str | None, rounds: int = 3) -> argparse.ArgumentParser:
    """A parser with --encoder and with how much a round measures."""
    parser = measure.make_parser(description, rounds)
    parser.add_argument("--encoder", default=MINILM, help="default: %(default)s")
    for name, count in {"steps": 30, "sentences": 6_000, "contexts": 2_000}.items():
        parser.add_argument(f"--{name}", type=int, default=count, help="default: %(default)s")
    return parser


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Files that all measured jobs read; of pairs, the second is ten times the first."""

    dialogues: pathlib.Path  # session_tsv, for training
    sentences: tuple[pathlib.Path, pathlib.Path]  # texts, for embedding
    contexts: tuple[pathlib.Path, pathlib.Path]  # dialogues in jsonl, for response selection


def write_inputs(folder: pathlib.Path, sentences: int = 10, contexts: int = 10) -> Inputs:
    """Writes random dialogues, sentences and contexts: as many as given in the larger files."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghilmnoprstu"), 4)) for _ in range(5000)])
    roles = ("customer", "agent")

    def draw(lines: int) -> list[str]:
        lengths = rng.integers(1, 9, lines)
        drawn = words[np.minimum(rng.zipf(1.3, lengths.sum()), len(words)) - 1]
        return [" ".join(part) for part in np.split(drawn, np.cumsum(lengths)[:-1])]

    def write(name: str, lines: Sequence[str]) -> pathlib.Path:
        path = folder / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    def write_two(name: str, lines: Sequence[str]) -> tuple[pathlib.Path, pathlib.Path]:
        return write(f"few_{name}", lines[: len(lines) // 10]), write(f"many_{name}", lines)

    # Sessions of 8 turns by two speakers.
    rows = [f"{i // 8}\t{roles[i % 2]}\t{text}" for i, text in enumerate(draw(24_000))]
    # Numbered, so that all sentences differ; repeated ones would be encoded only once.
    distinct = [f"{i} {text}" for i, text in enumerate(draw(sentences))]
    said = [{"role": roles[i % 2], "text": text} for i, text in enumerate(draw(8 * contexts))]
    sessions = [
        json.dumps({"session_id": str(i), "turns": said[8 * i : 8 * i + 8]})
        for i in range(contexts)
    ]
    return Inputs(
        dialogues=write("dialogues.tsv", rows),
        sentences=write_two("sentences.txt", distinct),
        contexts=write_two("contexts.jsonl", sessions),
    )


class Usage(NamedTuple):
    """What a process and its children used."""

    seconds: float
    cpu_seconds: float
    kernel_seconds: float  # the part of the processor time that was spent in the kernel
    page_faults: int  # minor ones, which take a page from the system
    peak_mb: float  # memory of the largest process

    def describe(self) -> dict[str, float]:
        """The figures that are shown beside a rate."""
        return {
            "processor s": self.cpu_seconds,
            "kernel %": 100 * self.kernel_seconds / max(self.cpu_seconds, 1e-9),
            "page faults": self.page_faults,
            "peak MB": self.peak_mb,
        }


class Checkout:
    """One version of the package, and a folder for what its jobs write.

    Args:
        path: the checkout, a folder with dcse_tf and flags.
        work_dir: an empty folder.
        encoder: as --encoder of train.
    """

    def __init__(self, path: pathlib.Path, work_dir: pathlib.Path, encoder: str = MINILM):
        if not (path / "dcse_tf/cli/commands.py").is_file():
            sys.exit(f"error: {path}: no checkout of dcse_tf")
        self.path, self.encoder, self._work_dir = path.resolve(), encoder, work_dir
        work_dir.mkdir(parents=True, exist_ok=True)
        self._runs = 0
        self._reranker: pathlib.Path | None = None

    def case(
        self, name: str, subject: str, inputs: Inputs, args: argparse.Namespace, *flags: str
    ) -> Case:
        """The case that measures one of `SUBJECTS`, with further flags for its job."""
        return Case(name, lambda: self._measure(subject, inputs, args.steps, *flags))

    def _measure(self, subject: str, inputs: Inputs, steps: int, *flags: str) -> Round:
        if subject in ("train", "bfloat16"):
            # Steps of the recommended preset, without warm-up, saving and evaluation.
            how = ["--flagfile=flags/recommended.flags"]
            how += ["--compute_dtype=bfloat16"] if subject == "bfloat16" else []
            run_dir, used = self.train(inputs, WARM_UP_STEPS + steps, *how, *flags)
            seconds, samples = read_training(run_dir)
            return Round(seconds, samples, used.describe())
        if subject == "embed":
            return self.measure_embedding(inputs, self.encoder, *flags)
        model = self.train_reranker(inputs) if subject == "rerank" else self.encoder

        def evaluate(path: pathlib.Path) -> Usage:
            given = (f"--model={model}", f"--response_selection={path}", "--max_samples=0")
            return self.run("evaluate", *given, *flags)

        return compare_sizes(inputs.contexts, evaluate)

    def measure_embedding(self, inputs: Inputs, model: object, *flags: str) -> Round:
        """Embeds the sentences."""
        return compare_sizes(inputs.sentences, lambda path: self.embed(path, model, *flags))

    def embed(self, path: pathlib.Path, model: object, *flags: str) -> Usage:
        """Embeds the lines of a file."""
        rows = f"--output={self._new_place('rows.npy')}"
        return self.run("embed", f"--model={model}", f"--input={path}", rows, *flags)

    def train(self, inputs: Inputs, steps: int, *flags: str) -> tuple[pathlib.Path, Usage]:
        """Trains on the dialogues, which the first call prepares; returns the run directory."""
        data_dir, run_dir = self._prepare_once(inputs), self._new_place("run")
        never = ("--save_every=1000000", "--eval_every=1000000", "--dev_samples=0")
        given = (f"--encoder={self.encoder}", f"--data_dir={data_dir}", f"--run_dir={run_dir}")
        count = (f"--steps={steps}", f"--log_every={LOG_EVERY}")
        # A preset among the flags comes first, so that it does not set the number of steps.
        return run_dir, self.run("train", *flags, *given, *count, *never)

    def train_reranker(self, inputs: Inputs) -> pathlib.Path:
        """The run of a re-ranker that has taken some steps; one for all calls."""
        if self._reranker is None:
            self._reranker, _ = self.train(inputs, LOG_EVERY, *RERANKER)
        return self._reranker

    def export(self, inputs: Inputs, *flags: str) -> pathlib.Path:
        """Exports the encoder; the dialogues are the corpus of a static export."""
        output = self._new_place("export")
        corpus = (f"--data_dir={self._prepare_once(inputs)}",) if "--format=static" in flags else ()
        given = (f"--run_dir={self.encoder}", f"--output_dir={output}")
        self.run("export", *given, *corpus, *flags)
        return output

    def _prepare_once(self, inputs: Inputs) -> pathlib.Path:
        data_dir = self._work_dir / "data"
        if not data_dir.exists():
            given = ("--format=session_tsv", f"--input={inputs.dialogues}")
            made = (f"--max_sequence_length={LONGEST}", f"--output_dir={data_dir}")
            self.run("prepare_data", *given, f"--vocab={self.encoder}", *made)
        return data_dir

    def run(self, job: str, *flags: str) -> Usage:
        """Runs a job in a separate process; exits if it fails."""
        command = [sys.executable, *DCSE, job, *flags]
        environment = {**os.environ, "PYTHONPATH": str(self.path)}
        log = self._new_place("log.txt")
        with log.open("w", encoding="utf-8") as file:
            started = time.perf_counter()
            process = subprocess.Popen(
                command, cwd=self.path, env=environment, stdout=file, stderr=subprocess.STDOUT
            )
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"error: {' '.join(command)}\n{log.read_text(encoding='utf-8')[-2000:]}")
        # Kilobytes on Linux, bytes on macOS.
        peak = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        cpu = usage.ru_utime + usage.ru_stime
        return Usage(seconds, cpu, usage.ru_stime, usage.ru_minflt, peak)

    def _new_place(self, name: str) -> pathlib.Path:
        self._runs += 1
        return self._work_dir / f"{self._runs}-{name}"


def compare_sizes(paths: Sequence[pathlib.Path], job: Callable[[pathlib.Path], Usage]) -> Round:
    """The larger file minus the smaller, which leaves out start-up."""
    small, large = map(job, paths)
    few, many = (path.read_bytes().count(b"\n") for path in paths)
    if large.seconds <= small.seconds:
        sys.exit(f"error: {many} took no longer than {few}: measure more of them")
    used = Usage(*(after - before for after, before in zip(large, small)))
    used = used._replace(peak_mb=large.peak_mb)
    return Round(used.seconds, many - few, {"start-up s": small.seconds, **used.describe()})


def find_model(encoder: str) -> str:
    """The folder or hub name by which PyTorch libraries know an --encoder of ours."""
    kind, _, name = encoder.partition(":")
    if kind != "package":
        return encoder
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    found = sorted(pathlib.Path(folders[0]).rglob("config.json")) if folders else []
    if not found:
        sys.exit(f"error: {encoder}: no installed package of this name with a config.json")
    return str(min(found, key=lambda path: len(path.parts)).parent)


def read_training(run_dir: pathlib.Path) -> tuple[float, float]:
    """Seconds and samples after the warm-up, from TensorBoard's summaries."""
    curves = report.read_curves(run_dir, "train/")

    def read(ending: str) -> np.ndarray:
        (curve,) = [curve for name, curve in curves.items() if name.endswith(ending)]
        return np.array([value for step, value in curve.items() if step > WARM_UP_STEPS])

    seconds = LOG_EVERY * read("step_seconds")
    return float(seconds.sum()), float(read("samples_per_second") @ seconds)
