"""What several processes bring, and that their results are those of one.

    python experiments/benchmarks/cluster.py prepare --turns=5000000
    python experiments/benchmarks/cluster.py embed --sentences=200000
    python experiments/benchmarks/cluster.py train --steps=10

prepare and embed run on this machine and on a standalone Spark cluster that is started here, a
master and two workers with a core each; embed also in two shards. train takes the same steps in one
process and two, of one device and two, without dropout. Each job once, by its command line, on
drawn dialogues; seconds are of the whole process, its start-up among them.
"""

import argparse
import contextlib
import pathlib
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

FILES = 16  # of a corpus: a task each
CORES = 2
_MEMORY = "3g"  # of a worker
Row = dict[str, str | float]


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__, rounds=1)
    parser.add_argument("subject", choices=("prepare", "embed", "train"))
    jobs.add_arguments(parser)
    return parser.parse_args(arguments)


def measure_prepare(
    checkout: Checkout, folder: pathlib.Path, args: argparse.Namespace
) -> list[Row]:
    """The same corpus by the processes of this machine and by the cluster."""
    inputs = jobs.write_inputs(folder, args.turns, 10)
    lines = inputs.corpora[1].read_text(encoding="utf-8").splitlines(keepends=True)
    # Sessions of 8 lines stay whole.
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

    rows = [_row("this machine", prepare("local"))]
    with _start_cluster(folder) as (master, peak):
        used = prepare("cluster", f"--spark_master={master}")
        rows.append(_row("cluster", used, peak()))
    names = {path.name for path in (folder / "local").iterdir()} - {"manifest.json"}
    same = sum(_is_same(folder / "local" / name, folder / "cluster" / name) for name in names)
    rows[1]["equal"] = f"{same} of {len(names)} files"
    return rows


def _is_same(first: pathlib.Path, second: pathlib.Path) -> bool:
    if first.is_dir():
        return all(_is_same(path, second / path.name) for path in first.iterdir())
    return first.read_bytes() == second.read_bytes()


def measure_embed(checkout: Checkout, folder: pathlib.Path, args: argparse.Namespace) -> list[Row]:
    """The same sentences in one job, in two shards and on the cluster."""
    from pyspark.sql import SparkSession

    source = jobs.write_inputs(folder, 80, args.sentences).sentences[1]
    flags = [f"--model={args.encoder}", f"--input={source}", "--block_size=20000"]

    def embed(name: str, *more: str) -> jobs.Usage:
        return checkout.run("embed", *flags, f"--output={folder}/{name}", *more)

    rows = [_row("one job", embed("one.npy"))]
    rows += [_row(f"shard {n} of 2", embed("two.npy", f"--shard={n}/2")) for n in (0, 1)]
    rows.append(_row("joined", embed("two.npy")))
    rows[-1]["equal"] = str(_is_same(folder / "one.npy", folder / "two.npy"))
    with _start_cluster(folder) as (master, peak):
        used = embed("cluster", f"--spark_master={master}")
        rows.append(_row("cluster", used, peak()))

    session = SparkSession.builder.master("local[1]").config("spark.driver.memory", "3g")
    found = session.getOrCreate().read.parquet(f"{folder}/cluster").collect()
    place = {text: row for row, text in enumerate(source.read_text("utf-8").splitlines())}
    one = np.load(folder / "one.npy")
    largest = max(np.abs(one[place[row.text]] - row.embedding).max() for row in found)
    rows[-1]["equal"] = f"{len(found)} rows, largest difference {largest:.1e}"
    return rows


def measure_train(checkout: Checkout, folder: pathlib.Path, args: argparse.Namespace) -> list[Row]:
    """The same steps by one process and by two, each of one device and of two."""
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


def _row(name: str, used: jobs.Usage, peak_mb: float = 0.0) -> Row:
    return {
        "": name,
        "seconds": round(used.seconds, 1),
        "MB": round(max(used.peak_mb, peak_mb)),
        "equal": "",
    }


@contextlib.contextmanager
def _start_cluster(folder: pathlib.Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yields a master's address, and what tells the most memory that its workers have taken, MB."""
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
        memory = _Memory({process.pid for process in processes})
        stack.callback(memory.stop)
        yield master, memory.stop


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


class _Memory:
    """The most memory that processes and those that they started have taken together."""

    def __init__(self, roots: set[int]):
        self._roots, self._most, self._ended = roots, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Ends the watch; returns the most, in MB."""
        self._ended.set()
        self._thread.join()
        return self._most

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self._most = max(self._most, self._sum())

    def _sum(self) -> float:
        parents, sizes = {}, {}
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The name before may have spaces and brackets.
                fields = path.read_text().rpartition(")")[2].split()
                parents[int(path.parent.name)] = int(fields[1])
                sizes[int(path.parent.name)] = 4096 * int(fields[21]) / 2**20

        def is_own(pid: int) -> bool:
            while pid not in self._roots and pid in parents:
                pid = parents[pid]
            return pid in self._roots

        return sum(size for pid, size in sizes.items() if is_own(pid))


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    subject = {"prepare": measure_prepare, "embed": measure_embed, "train": measure_train}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checkout = Checkout(jobs.ROOT, folder / "here", args.encoder or ENCODER)
        rows = subject[args.subject](checkout, folder, args)
    for row in rows:
        print("  ".join(f"{key} {value}".strip() for key, value in row.items() if value != ""))
    measure.write_json(args.output, rows)


if __name__ == "__main__":
    main()
