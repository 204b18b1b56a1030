"""Kills a training at random points until it has ended, and compares it with one left alone.

    python tests/faults/kill_harness.py --kills=50 --work_dir=FOLDER     # the long mode

Every start is killed a random time after its first checkpoint, so that many kills fall into the
writing of one (a checkpoint a step), and the same command is given again. Of several workers
(--workers) one is killed, which one is drawn.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from conftest import make_dialogues

from dcse_tf.errors import EXIT_STATUS

ROOT = pathlib.Path(__file__).parent.parent.parent
_LONGEST_WAIT = 1.5  # seconds after the first checkpoint of a start
# How a job ends that is killed, or whose worker is, or that has lost one.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL, EXIT_STATUS)


@dataclasses.dataclass
class Report:
    """What became of a run that was killed again and again.

    Attributes:
        kills: how often it was.
        in_writing: kills that left a checkpoint half written.
        most_lost: most steps that were logged as saved and had to be taken again.
        equal: whether weights, optimizer and encoder are bit for bit those of the run left alone.
    """

    kills: int = 0
    in_writing: int = 0
    most_lost: int = 0
    equal: bool = False


def prepare(folder: pathlib.Path) -> pathlib.Path:
    """A small prepared corpus."""
    lines = [json.dumps(dialogue) for dialogue in make_dialogues(120)]
    (folder / "dialogues.jsonl").write_text("\n".join(lines) + "\n")
    flags = ["--format=jsonl", "--vocab_size=300", "--max_sequence_length=16"]
    places = [f"--input={folder}/dialogues.jsonl", f"--output_dir={folder}/data"]
    check(start("prepare_data", *flags, *places))
    return folder / "data"


def train_flags(
    data_dir: pathlib.Path, run_dir: pathlib.Path, steps: int, task: str = "dialogue_cse"
) -> list[str]:
    return [
        f"--task={task}",
        f"--data_dir={data_dir}",
        f"--run_dir={run_dir}",
        f"--steps={steps}",
        "--encoder_size=tiny",
        "--deterministic",
        "--global_batch_size=8",
        "--negatives=3",
        "--learning_rate=0.003",
        "--freeze_layers=0",
        "--log_every=1",
        "--save_every=1",
        "--eval_every=7",
        "--dev_samples=10",
    ]


def run_alone(
    data_dir: pathlib.Path,
    run_dir: pathlib.Path,
    steps: int,
    task: str = "dialogue_cse",
    workers: int = 1,
) -> None:
    check(start("train", *train_flags(data_dir, run_dir, steps, task), workers=workers))


def run_killed(
    data_dir: pathlib.Path,
    alone: pathlib.Path,
    run_dir: pathlib.Path,
    kills: int,
    seed: int,
    task: str = "dialogue_cse",
    workers: int = 1,
) -> Report:
    """Kills a run `kills` times, its steps being as many as that takes, and compares it."""
    steps = _last_step(alone)
    report, rng, saved = Report(), random.Random(seed), 0
    flags = train_flags(data_dir, run_dir, steps, task)
    while True:
        process = start("train", *flags, workers=workers)
        delay = rng.uniform(0.0, _LONGEST_WAIT) if report.kills < kills else None
        victim = rng.randrange(workers)
        begun, saved_now = watch(process, delay, victim if workers > 1 else None)
        if begun is not None:
            report.most_lost = max(report.most_lost, saved - begun)
        saved = max(saved, saved_now)
        if process.returncode == 0:
            break
        if process.returncode not in _KILLED:
            raise RuntimeError(f"ended with {process.returncode}, log above")
        report.kills += 1
        report.in_writing += any((run_dir / "checkpoints").glob("*.dcse_tf-partial"))
    report.equal = _equal(alone, run_dir)
    return report


def start(job: str, *flags: str, workers: int = 1) -> subprocess.Popen:
    command = [sys.executable, "-m", "dcse_tf.cli", job, *flags]
    if workers > 1:
        module = "dcse_tf.cli.launch"
        command = [sys.executable, "-m", module, f"--workers={workers}", job, *flags]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def watch(
    process: subprocess.Popen, delay: float | None, victim: int | None = None
) -> tuple[int | None, int]:
    """Reads what a start says; kills it, or a worker of it, so long after its first checkpoint.

    Returns:
        The step that it went on from, None where it began anew; the last that it saved.
    """
    begun, saved, timer, lines = None, 0, None, []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if found := re.search(r"resumed from .*, step (\d+)", line):
            begun = int(found[1])
        if found := re.search(r"saved .*/step-(\d+)", line):
            saved = int(found[1])
            if delay is not None and timer is None:
                timer = threading.Timer(delay, _kill, [process, victim])
                timer.start()
    process.wait()
    if timer:
        timer.cancel()
    if process.returncode not in (0, *_KILLED):
        print("".join(lines[-30:]))
    return begun, saved


def _kill(process: subprocess.Popen, victim: int | None) -> None:
    if victim is None:
        process.kill()
        return
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    os.kill(int(children.split()[victim]), signal.SIGKILL)


def check(process: subprocess.Popen) -> None:
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(output)


def _last_step(run_dir: pathlib.Path) -> int:
    return max(int(path.name[5:]) for path in (run_dir / "checkpoints").glob("step-*"))


def _equal(first: pathlib.Path, second: pathlib.Path) -> bool:
    encoders = [(run / "encoder/model.safetensors").read_bytes() for run in (first, second)]
    last = f"checkpoints/step-{_last_step(first):09d}/state"
    readers = [tf.train.load_checkpoint(str(run / last)) for run in (first, second)]
    shapes = [reader.get_variable_to_shape_map() for reader in readers]
    return (
        encoders[0] == encoders[1]
        and shapes[0] == shapes[1]
        and all(
            np.array_equal(*(reader.get_tensor(name) for reader in readers))
            for name in shapes[0]
            if name != "_CHECKPOINTABLE_OBJECT_GRAPH"
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--runs", type=int, default=5, help="runs that share the kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--task", default="dialogue_cse", help="of the training")
    parser.add_argument("--workers", type=int, default=1, help="processes of the training")
    parser.add_argument("--work_dir", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.work_dir.mkdir(parents=True, exist_ok=False)
    data_dir = prepare(options.work_dir)
    alone = options.work_dir / "alone"
    run_alone(data_dir, alone, options.steps, options.task, options.workers)
    for number in range(options.runs):
        started = time.monotonic()
        kills = options.kills // options.runs
        seed = options.seed + number
        run_dir = options.work_dir / f"run{number}"
        report = run_killed(data_dir, alone, run_dir, kills, seed, options.task, options.workers)
        print(f"run {number}: {report} in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
