"""Compares kinds of search index on random vectors: build time, size, memory, recall, query time.

    python experiments/benchmarks/index.py --rows=1000000 --work_dir=FOLDER --output=index.json
    python experiments/benchmarks/index.py --rows=10000000 --kinds exact ivf_int8 binary ...

The vectors are a seeded mixture with one centre per hundred rows; each row is a centre plus noise
of the same length. The variances along the principal directions fall as 1, 1/2, 1/3, ..., because
embeddings vary mainly in few directions. A random rotation spreads them over all dimensions, and
all rows are scaled to length 1. A query is a row plus noise of a third of its length. Every build
and every search runs in a separate process. FOLDER keeps the vectors for later runs of the same
size.
"""

import argparse
import functools
import json
import mmap
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import measure
import numpy as np

from dcse_tf.encoder.unit_length import normalize
from dcse_tf.evaluation.nearest import Nearest, find_nearest, rank_rows
from dcse_tf.search.nearest import ApproximateIndex
from dcse_tf.search.options import KINDS, ApproximateOptions

QUERIES, TOP = 100, 10
BLOCK_ROWS = 65_536
LONGEST_S = 60  # seconds for queries one at a time, at most
# Suffix of the figures -> the default search settings, and four times as thorough ones.
EFFORTS = {
    "": ApproximateOptions(),
    " x4": ApproximateOptions(ef_search=4 * 128, nprobe=4 * 32, binary_candidates=4 * 50),
}
ROWS_FILE, QUERIES_FILE, TRUTH_FILE, INDEX_FILE = "rows.npy", "queries.npy", "truth.npy", "index"


def draw_rows(folder: pathlib.Path, rows: int, dim: int) -> None:
    """Writes the vectors, the queries and their exact nearest rows; see the module's docstring."""
    (folder / TRUTH_FILE).unlink(missing_ok=True)
    rng = np.random.default_rng(0)
    turned, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    spread = (turned / np.sqrt(np.arange(1, dim + 1))[:, None]).astype(np.float32)

    def draw(number: int) -> np.ndarray:
        return rng.standard_normal((number, dim), np.float32) @ spread

    centres = draw(max(1, rows // 100))
    matrix = np.lib.format.open_memmap(folder / ROWS_FILE, "w+", np.float32, (rows, dim))
    for start in range(0, rows, BLOCK_ROWS):
        size = min(BLOCK_ROWS, rows - start)
        block = centres[rng.integers(len(centres), size=size)] + draw(size)
        matrix[start : start + size] = block / np.linalg.norm(block, axis=1, keepdims=True)
    matrix.flush()
    chosen = matrix[np.sort(rng.choice(rows, QUERIES, replace=False))]
    queries = normalize(chosen + normalize(draw(QUERIES)) / 3)
    np.save(folder / QUERIES_FILE, queries.astype(np.float32))
    exact = find_nearest(matrix, np.load(folder / QUERIES_FILE), TOP)
    np.save(folder / TRUTH_FILE, np.stack([each.rows for each in exact]))


def is_drawn(folder: pathlib.Path, shape: tuple[int, int]) -> bool:
    """Whether the folder has the vectors of an earlier run of this shape."""
    if not (folder / TRUTH_FILE).exists():
        return False
    return np.load(folder / ROWS_FILE, mmap_mode="r").shape == shape


def read_memory() -> dict[str, float]:
    """This process' memory in MB: its own, and mapped file pages, which the system may reclaim."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split()[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return {"own": int(sizes["RssAnon:"]) / 1024, "of files": int(sizes["RssFile:"]) / 1024}


def watch_memory(function: Callable[[], Any]) -> tuple[Any, float]:
    """Calls a function; returns its result and the peak of the process' own memory, in MB."""
    peak, ended = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.05):
            peak = max(peak, read_memory()["own"])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        return function(), peak
    finally:
        ended.set()
        thread.join()


def build(folder: pathlib.Path, kind: str) -> dict[str, float]:
    """Builds and writes an index."""
    matrix = np.load(folder / ROWS_FILE, mmap_mode="r")
    started = time.perf_counter()
    _, peak = watch_memory(
        lambda: ApproximateIndex.build(matrix, kind, ApproximateOptions()).write(
            folder / INDEX_FILE
        )
    )
    return {
        "build s": time.perf_counter() - started,
        "build MB": peak,
        "file MB": (folder / INDEX_FILE).stat().st_size / 1e6,
    }


def search(folder: pathlib.Path, kind: str) -> dict[str, float]:
    """Opens an index and times queries one at a time, first with the files not in memory."""
    ranking = time_ranking(
        folder, ApproximateOptions().binary_candidates if kind == "binary" else 2
    )
    for name in (ROWS_FILE, INDEX_FILE):
        drop_from_memory(folder / name)
    before = read_memory()["own"]
    matrix = np.load(folder / ROWS_FILE, mmap_mode="r")
    queries = np.load(folder / QUERIES_FILE)
    truth = np.load(folder / TRUTH_FILE)
    if kind == "exact":

        def find(query: np.ndarray, options: ApproximateOptions) -> Nearest:
            return find_nearest(matrix, query, TOP)[0]
    else:
        index = ApproximateIndex.read(folder / INDEX_FILE, kind, matrix)

        def find(query: np.ndarray, options: ApproximateOptions) -> Nearest:
            return index.find_nearest(query, TOP, options)[0]

    first, _ = time_each(lambda query: find(query, ApproximateOptions()), queries)
    memory = read_memory()
    figures = {
        "ms first": float(np.median(first)),
        "own MB": memory["own"] - before,
        "of files MB": memory["of files"],
    }
    for name, options in EFFORTS.items() if kind != "exact" else [("", ApproximateOptions())]:
        times, found = time_each(functools.partial(find, options=options), queries)
        recall = np.mean([np.isin(t, f.rows).mean() for t, f in zip(truth, found)])
        figures |= {
            f"recall@10{name}": 100 * float(recall),
            f"ms{name}": float(np.median(times)),
            f"ms{name} p95": float(np.percentile(times, 95)),
        }
    return figures | ranking


def time_ranking(folder: pathlib.Path, candidates: int) -> dict[str, float]:
    """Milliseconds to rank random rows, `candidates` per answer, from disk and from memory."""
    drop_from_memory(folder / ROWS_FILE)
    matrix = np.load(folder / ROWS_FILE, mmap_mode="r")
    matrix.base.madvise(mmap.MADV_RANDOM)
    rng = np.random.default_rng(1)
    drawn = rng.integers(len(matrix), size=(QUERIES, candidates * TOP))
    times: list[float] = []
    for rows in (*drawn, *drawn):
        started = time.perf_counter()
        rank_rows(matrix, np.unique(rows), matrix[0], TOP)
        times.append(1000 * (time.perf_counter() - started))
    first, again = np.median(np.reshape(times, (2, QUERIES)), axis=1).tolist()
    return {"ranking ms": again, "ranking ms first": first}


def time_each(
    find: Callable[[np.ndarray], Nearest], queries: np.ndarray
) -> tuple[list[float], list[Nearest]]:
    """The milliseconds and answer of each query; stops early after LONGEST_S seconds."""
    times: list[float] = []
    found: list[Nearest] = []
    for place in range(len(queries)):
        started = time.perf_counter()
        found.append(find(queries[place : place + 1]))
        times.append(1000 * (time.perf_counter() - started))
        if sum(times) > 1000 * LONGEST_S:
            break
    return times, found


def drop_from_memory(path: pathlib.Path) -> None:
    """Asks the system to drop a file from its page cache; mapped pages stay."""
    if path.exists():
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


STEPS = {"build": build, "search": search}


def run_child(step: str, folder: pathlib.Path, kind: str) -> dict[str, float]:
    """Runs one of `STEPS` in a separate process."""
    command = [sys.executable, __file__, f"--child={step}", f"--work_dir={folder}", "--kinds", kind]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"error: {step} of {kind} ended with status {done.returncode}")
    return json.loads(done.stdout)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=measure.at_least_one, default=200_000)
    parser.add_argument("--dim", type=measure.at_least_one, default=384)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["exact", "ivf", "binary"])
    parser.add_argument("--work_dir", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, help="JSON file to write")
    parser.add_argument("--child", choices=STEPS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    folder = args.work_dir
    if args.child:
        print(json.dumps(STEPS[args.child](folder, *args.kinds)))
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not is_drawn(folder, (args.rows, args.dim)):
        draw_rows(folder, args.rows, args.dim)
    results: dict[str, dict[str, float]] = {}
    for kind in args.kinds:
        built = {} if kind == "exact" else run_child("build", folder, kind)
        results[kind] = {**built, **run_child("search", folder, kind)}
        (folder / INDEX_FILE).unlink(missing_ok=True)
        figures = (f"{name} {value:.3g}" for name, value in results[kind].items())
        print(f"{kind}: {', '.join(figures)}", flush=True)
        measure.write_json(args.output, results, rows=args.rows, dim=args.dim)


if __name__ == "__main__":
    main()
