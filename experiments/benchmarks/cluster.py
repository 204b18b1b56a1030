"""Measures what several processes gain, and checks that their results equal those of one.

    python experiments/benchmarks/cluster.py prepare --turns=5000000
    python experiments/benchmarks/cluster.py embed --sentences=200000
    python experiments/benchmarks/cluster.py train --steps=10
    python experiments/benchmarks/cluster.py input
    python experiments/benchmarks/cluster.py prepare --turns=400000 --kills=20

prepare and embed run on this machine and on a standalone Spark cluster started here (a master and
two workers with one core each); embed also runs in two shards. train takes the same steps in one
and two processes, with one and two devices each, without dropout. input only makes batches, since
every worker makes those of the whole global batch. Each job runs once, by its command line, on
random dialogues; seconds include the start-up of the process. With --kills, the jobs on the cluster
are repeated until that many of its processes, chosen at random, have been killed, and embed leaves
out the shards.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import jobs
import measure
import numpy as np
from jobs import ENCODER, LONGEST, Checkout

FILES = 16  # files of a corpus; each is one task
CORES = 2
_MEMORY = "3g"  # per worker
# The Python processes that run the tasks are killed. Spark gives up on a task after four failures.
_TASK = "pyspark.daemon"
_KILLS_A_RUN = 3
_SECONDS_BETWEEN = (4.0, 12.0)
Row = dict[str, str | float]


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__, rounds=1)
    parser.add_argument("subject", choices=("prepare", "embed", "train", "input"))
    jobs.add_arguments(parser)
    parser.add_argument("--kills", type=int, default=0, help="prepare, embed: processes to kill")
    return parser.parse_args(arguments)


def measure_prepare(
    checkout: Checkout, folder: pathlib.Path, args: argparse.Namespace
) -> list[Row]:
    """Prepares the same corpus on this machine and on the cluster."""
    inputs = jobs.write_inputs(folder, args.turns, 10)
    lines = inputs.corpora[1].read_text(encoding="utf-8").splitlines(keepends=True)
    # A multiple of 8 lines, so that no session is split.
    size = -(-len(lines) // FILES // 8) * 8
    for number in range(FILES):
        part = "".join(lines[number * size : (number + 1) * size])
        (folder / f"part-{number:02d}.tsv").write_text(part, encoding="utf-8")

    def prepare(name: str, *flags: str) -> jobs.Usage:
        return checkout.run(
            "prepare_data",
            "--format=session_tsv",
            f"--input={folder}/part-*.tsv",
            f"--vocab={args.encoder}",
            f"--max_sequence_length={LONGEST}",
            f"--output_dir={folder}/{name}",
            *flags,
        )

    def run(master: str) -> tuple[jobs.Usage, str]:
        shutil.rmtree(folder / "cluster", ignore_errors=True)
        used = prepare("cluster", f"--spark_master={master}")
        names = {path.name for kind in ("local", "cluster") for path in (folder / kind).iterdir()}
        names.remove("manifest.json")
        same = sum(_is_same(folder / "local" / name, folder / "cluster" / name) for name in names)
        return used, f"{same} of {len(names)} files"

    return [_row("this machine", prepare("local")), *_run_on_cluster(folder, run, args.kills)]


def _run_on_cluster(
    folder: pathlib.Path, run: Callable[[str], tuple[jobs.Usage, str]], kills: int
) -> list[Row]:
    """Runs a job on a cluster once, then again until `kills` of its processes have been killed."""
    with _start_cluster(folder) as (master, processes):
        used, equal = run(master)
        rows = [{**_row("cluster", used, processes.most_mb), "equal": equal}]
        rng = random.Random(0)
        while processes.killed < kills:
            most = min(_KILLS_A_RUN, kills - processes.killed)
            done = processes.killed
            processes.kill(most, rng)
            used, equal = run(master)
            name = f"cluster, {processes.killed - done} killed"
            rows.append({**_row(name, used), "equal": equal})
    return rows


def _is_same(first: pathlib.Path, second: pathlib.Path) -> bool:
    if not (first.exists() and second.exists()):
        return False
    if first.is_dir():
        return all(_is_same(path, second / path.name) for path in first.iterdir())
    return first.read_bytes() == second.read_bytes()


def measure_embed(checkout: Checkout, folder: pathlib.Path, args: argparse.Namespace) -> list[Row]:
    """Embeds the same sentences in one job, in two shards and on the cluster."""
    from pyspark.sql import SparkSession

    source = jobs.write_inputs(folder, 80, args.sentences).sentences[1]
    flags, blocks = [f"--model={args.encoder}", f"--input={source}"], "--block_size=20000"

    def embed(name: str, *more: str) -> jobs.Usage:
        return checkout.run("embed", *flags, f"--output={folder}/{name}", *more)

    rows = [_row("one job", embed("one.npy", blocks))]
    if not args.kills:
        shards = (embed("two.npy", blocks, f"--shard={n}/2") for n in (0, 1))
        rows += [_row(f"shard {n} of 2", used) for n, used in enumerate(shards)]
        rows.append(_row("joined", embed("two.npy", blocks)))
        rows[-1]["equal"] = str(_is_same(folder / "one.npy", folder / "two.npy"))
    place = {text: row for row, text in enumerate(source.read_text("utf-8").splitlines())}
    one = np.load(folder / "one.npy")
    builder = SparkSession.builder.master("local[1]").config("spark.driver.memory", "3g")

    def run(master: str) -> tuple[jobs.Usage, str]:
        used = embed("cluster", f"--spark_master={master}", "--overwrite")
        found = builder.getOrCreate().read.parquet(f"{folder}/cluster").collect()
        largest = max(np.abs(one[place[row.text]] - row.embedding).max() for row in found)
        return used, f"{len(found)} rows, largest difference {largest:.1e}"

    return [*rows, *_run_on_cluster(folder, run, args.kills)]


def measure_train(checkout: Checkout, folder: pathlib.Path, args: argparse.Namespace) -> list[Row]:
    """Takes the same training steps in one and two processes, with one and two devices each."""
    from safetensors.numpy import load_file

    inputs = jobs.write_inputs(folder, 24_000, 10)
    rows, first = [], None
    for workers, devices in ((1, 1), (1, 2), (2, 1), (2, 2)):
        started = time.perf_counter()
        flags = ["--dropout=0", f"--logical_cpus={devices}"]
        found = checkout.train(inputs, args.steps, flags, workers=workers)
        weights = load_file(checkout.run_dir / "encoder/model.safetensors")
        first = first or weights
        largest = max(float(np.abs(first[name] - weights[name]).max()) for name in first)
        rows.append(
            {
                "": f"{workers} process(es) of {devices} device(s)",
                "seconds": round(time.perf_counter() - started, 1),
                "samples a second": round(found.rate("samples"), 1),
                "equal": f"largest difference of a weight {largest:.1e}",
            }
        )
    return rows


def measure_input(checkout: Checkout, folder: pathlib.Path, args: argparse.Namespace) -> list[Row]:
    """Makes global batches for several numbers of replicas, and keeps one replica's part."""
    import dcse_tf
    from dcse_tf.cli.flags import parse_flags
    from dcse_tf.tasks.options import TrainOptions
    from dcse_tf.training.build import build_training

    source = jobs.write_inputs(folder, 240_000, 10).corpora[1]
    data = str(folder / "data")
    dcse_tf.prepare_data(
        format="session_tsv", input=str(source), vocab=args.encoder, output_dir=data
    )
    rows: list[Row] = []
    for replicas in (1, 4, 16):
        flags = [f"--data_dir={data}", "--encoder_size=tiny", f"--run_dir={folder}/unused"]
        flags += ["--preset=recommended", f"--global_batch_size={20 * replicas}"]
        training = build_training(parse_flags(TrainOptions, "train", flags))
        setup = dataclasses.replace(training.setup, own_replicas=range(1))
        batches = iter(training.spec.make_dataset(setup, 0, replicas))
        for _ in range(jobs.WARM_UP_STEPS):
            next(batches)
        started = time.perf_counter()
        for _ in range(args.steps):
            next(batches)
        seconds = (time.perf_counter() - started) / args.steps
        name = f"1 of {replicas} parts of {20 * replicas} sessions"
        rows.append({"": name, "milliseconds a step": round(1000 * seconds, 1)})
    return rows


def _row(name: str, used: jobs.Usage, peak_mb: float = 0.0) -> Row:
    return {
        "": name,
        "seconds": round(used.seconds, 1),
        "MB": round(max(used.peak_mb, peak_mb)),
        "equal": "",
    }


@contextlib.contextmanager
def _start_cluster(folder: pathlib.Path) -> Iterator[tuple[str, "_Processes"]]:
    """Starts a cluster; yields its master's address and its processes."""
    import pyspark

    spark_class = pathlib.Path(pyspark.__file__).parent / "bin/spark-class"
    port = _find_port()
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    here = ["--host", "127.0.0.1"]
    commands = [[f"{deploy}.master.Master", *here, "--port", str(port), "--webui-port", "0"]]
    for number in range(CORES):
        where = ["--work-dir", f"{folder}/worker{number}", "--webui-port", "0"]
        size = ["--cores", "1", "--memory", _MEMORY]
        commands.append([f"{deploy}.worker.Worker", *here, *size, *where, master])
    with contextlib.ExitStack() as stack:
        processes = []
        log = stack.enter_context((folder / "cluster.log").open("w"))
        for command in commands:
            process = subprocess.Popen([spark_class, *command], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            processes.append(process)
            _wait_for(port)
        own = _Processes({process.pid for process in processes})
        stack.callback(own.stop)
        yield master, own


def _find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _wait_for(port: int) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    sys.exit("error: the master of the cluster does not answer")


class _Processes:
    """Watches the processes of a cluster: measures their total memory, and kills some of them.

    Attributes:
        most_mb: the peak of their total memory, in MB.
        killed: how many have been killed.
    """

    def __init__(self, roots: set[int]):
        self.most_mb, self.killed = 0.0, 0
        self._roots, self._times, self._ended = roots, [], threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def kill(self, most: int, rng: random.Random) -> None:
        """Schedules the killing of `most` task processes, some seconds apart, from now on."""
        self._rng = rng
        waits = [rng.uniform(*_SECONDS_BETWEEN) for _ in range(most)]
        self._times = [time.monotonic() + wait for wait in itertools.accumulate(waits)]

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            found = self._list()
            self.most_mb = max(self.most_mb, sum(size for size, _ in found.values()))
            if self._times and time.monotonic() > self._times[0]:
                tasks = [pid for pid, (_, command) in found.items() if _TASK in command]
                if tasks:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._rng.choice(tasks), signal.SIGKILL)
                        self.killed += 1
                        self._times.pop(0)

    def _list(self) -> dict[int, tuple[float, str]]:
        """Process id -> (memory in MB, command) of every process of the cluster."""
        parents, found = {}, {}
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The process name before ")" may contain spaces and brackets.
                fields = path.read_text().rpartition(")")[2].split()
                pid = int(path.parent.name)
                parents[pid] = int(fields[1])
                command = path.with_name("cmdline").read_text(errors="replace")
                found[pid] = 4096 * int(fields[21]) / 2**20, command

        def is_own(pid: int) -> bool:
            while pid not in self._roots and pid in parents:
                pid = parents[pid]
            return pid in self._roots

        return {pid: value for pid, value in found.items() if is_own(pid)}


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    subject = {
        "prepare": measure_prepare,
        "embed": measure_embed,
        "train": measure_train,
        "input": measure_input,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checkout = Checkout(jobs.ROOT, folder / "here", args.encoder or ENCODER)
        rows = subject[args.subject](checkout, folder, args)
    for row in rows:
        print("  ".join(f"{key} {value}".strip() for key, value in row.items() if value != ""))
    measure.write_json(args.output, rows)


if __name__ == "__main__":
    main()
