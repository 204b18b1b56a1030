"""Kills a training at random points until it has ended, and compares it with one left alone.

    python tests/faults/kill_harness.py --kills=50 --work_dir=FOLDER     # the long mode

Every start is killed a random time after its first checkpoint, so that many kills fall into the
writing of one (a checkpoint a step), and the same command is given again. Of several workers
(--workers) one is killed, which one is drawn.
"""

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import pathlib
import random
import re
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "helpers"))
from written_dialogues import json_lines, make_dialogues

from dcse_tf.errors import EXIT_STATUS

ROOT = pathlib.Path(__file__).parent.parent.parent
_LONGEST_WAIT = 1.5  # seconds after the first checkpoint of a start
# How a job ends that is killed, or that has lost a worker.
_KILLED = (-signal.SIGKILL, EXIT_STATUS)
SETTINGS = ["--encoder_size=tiny", "--deterministic", "--global_batch_size=8", "--negatives=3"]
SETTINGS += ["--learning_rate=0.003", "--log_every=1", "--save_every=1", "--eval_every=7"]
SETTINGS += ["--dev_samples=10"]


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


# A process that has imported TensorFlow but not used it; every job is forked from it.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["keras_hub", "dcse_tf.cli.commands", "dcse_tf.training.train"])


def _run(writer: Connection, environment: dict[str, str], arguments: list[str]) -> None:
    """What a forked process does: the job, with its output sent to the writer."""
    os.environ.update(environment)
    for stream in (1, 2):
        os.dup2(writer.fileno(), stream)
    writer.close()
    from dcse_tf.cli.commands import main

    # For a few small steps, optimizing a graph costs more than running it.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    main(arguments)


def start(job: str, *flags: str, **environment: str) -> multiprocessing.Process:
    """Starts a job, with further variables in its environment; its output is `.stdout`."""
    reader, writer = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_run, args=(writer, environment, [job, *flags]))
    process.start()
    writer.close()
    process.stdout = os.fdopen(os.dup(reader.fileno()))
    return process


def start_workers(count: int, *flags: str) -> list[multiprocessing.Process]:
    """Starts the workers of a training on this machine; the output of the first one is to read."""
    with contextlib.ExitStack() as stack:  # local addresses with free ports
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    threads = {"TF_NUM_INTRAOP_THREADS": "1"} if count > 1 else {}
    workers = []
    for index in range(count):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        variables = {"TF_CONFIG": json.dumps(config)} if count > 1 else {}
        workers.append(start("train", *flags, **threads, **variables))
    for other in workers[1:]:  # it would wait for a reader
        threading.Thread(target=other.stdout.read, daemon=True).start()
    return workers


def run_killed(
    flags: list[str], alone: pathlib.Path, run_dir: pathlib.Path, kills: int, seed: int, workers=1
) -> Report:
    """Kills a run `kills` times, begins it again until it ends, and compares it."""
    report, rng, saved = Report(), random.Random(seed), 0
    while True:
        processes = start_workers(workers, *flags, f"--run_dir={run_dir}")
        delay = rng.uniform(0.0, _LONGEST_WAIT) if report.kills < kills else None
        victim = rng.randrange(workers)
        begun, saved_now = watch(processes, delay, victim)
        if begun is not None:
            report.most_lost = max(report.most_lost, saved - begun)
        saved = max(saved, saved_now)
        status = processes[0].exitcode
        if status == 0:
            break
        if status not in _KILLED:
            raise RuntimeError(f"ended with {status}, log above")
        report.kills += 1
        report.in_writing += any((run_dir / "checkpoints").glob("*.dcse_tf-partial"))
    report.equal = _equal(alone, run_dir)
    return report


def watch(
    processes: list[multiprocessing.Process], delay: float | None, victim: int = 0
) -> tuple[int | None, int]:
    """Reads what the first worker says; kills one so long after the first checkpoint.

    Returns:
        The step that it went on from, None where it began anew; the last that it saved.
    """
    begun, saved, timer, lines = None, 0, None, []
    for line in processes[0].stdout:
        lines.append(line)
        if found := re.search(r"resumed from .*, step (\d+)", line):
            begun = int(found[1])
        if found := re.search(r"saved .*/step-(\d+)", line):
            saved = int(found[1])
            if delay is not None and timer is None:
                timer = threading.Timer(delay, processes[victim].kill)
                timer.start()
    for process in processes:
        process.join(timeout=120)
    if timer:
        timer.cancel()
    if processes[0].exitcode not in (0, *_KILLED):
        print("".join(lines[-30:]))
    return begun, saved


def _equal(first: pathlib.Path, second: pathlib.Path) -> bool:
    found, last = [], max(path.name for path in (first / "checkpoints").glob("step-*"))
    for run in (first, second):
        reader = tf.train.load_checkpoint(str(run / "checkpoints" / last / "state"))
        names = set(reader.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
        tensors = {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}
        found.append((tensors, (run / "encoder/model.safetensors").read_bytes()))
    return found[0] == found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--runs", type=int, default=5, help="runs that share the kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--task", default="dialogue_cse", help="of the training")
    parser.add_argument("--workers", type=int, default=1, help="processes of the training")
    parser.add_argument("--work_dir", type=pathlib.Path, required=True)
    given = parser.parse_args()
    work = given.work_dir
    work.mkdir(parents=True, exist_ok=False)
    (work / "dialogues.jsonl").write_text(json_lines(make_dialogues(120)))
    data = [f"--input={work}/dialogues.jsonl", f"--output_dir={work}/data"]
    preparing = start("prepare_data", "--format=jsonl", "--vocab_size=300", *data)
    output = preparing.stdout.read()
    preparing.join()
    if preparing.exitcode:
        raise RuntimeError(output)
    flags = [f"--task={given.task}", f"--data_dir={work}/data", f"--steps={given.steps}", *SETTINGS]
    watch(start_workers(given.workers, *flags, f"--run_dir={work}/alone"), None)
    for number in range(given.runs):
        run_dir, kills = work / f"run{number}", given.kills // given.runs
        seed = given.seed + number
        report = run_killed(flags, work / "alone", run_dir, kills, seed, given.workers)
        print(f"run {number}: {report}", flush=True)


if __name__ == "__main__":
    main()
