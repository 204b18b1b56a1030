"""What frozen layers save: seconds and peak memory of a training step by layers frozen.

    python experiments/benchmarks/frozen_layers.py

Each number of frozen layers trains in a process of its own (form dense, padded, no dropout), so
that its peak memory is its own. The tokens of the batch are the same in all. About 4 minutes.
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

import dialogues
import measure

FROZEN = (0, 3, 5)
STEPS = 4


def train(data_dir: pathlib.Path, encoder: str, frozen: int) -> dict[str, float]:
    """Some steps in this process: median seconds of all but the first, and memory in MB."""
    from train_step import Step

    step = Step(
        data_dir,
        encoder,
        {
            "batch_form": "dense",
            "layout": "padded",
            "global_batch_size": 32,
            "dropout": 0.0,
            "freeze_layers": frozen,
            "freeze_embeddings": frozen > 0,
        },
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = [step.run().seconds for _ in range(1 + STEPS)][1:]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": statistics.median(seconds), "peak": peak / 1024, "built": before / 1024}


def in_process(data_dir: pathlib.Path, encoder: str, frozen: int) -> dict[str, float]:
    command = [sys.executable, __file__, f"--data_dir={data_dir}", f"--encoder={encoder}"]
    output = subprocess.run(
        [*command, f"--frozen={frozen}"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = measure.make_parser(__doc__, rounds=1)
    dialogues.add_arguments(parser)
    parser.add_argument("--frozen", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.frozen is not None:
        print(json.dumps(train(args.data_dir, args.encoder, args.frozen)))
        return
    with dialogues.prepared(args.data_dir, args.encoder) as data_dir:
        results: dict[int, list[dict[str, float]]] = {frozen: [] for frozen in FROZEN}
        for _ in range(args.rounds):
            for frozen in FROZEN:
                results[frozen].append(in_process(data_dir, args.encoder, frozen))
    lines = [["layers frozen", "seconds a step", "of none", "MB taken by the steps", "of none"]]
    none = results[0]
    for frozen, rounds in results.items():
        own, base = ([r["peak"] - r["built"] for r in each] for each in (rounds, none))
        seconds = [r["seconds"] for r in rounds]
        lines.append(
            [
                str(frozen),
                f"{statistics.median(seconds):.2f}",
                f"{measure.median_ratio(seconds, [r['seconds'] for r in none]):.2f}",
                f"{statistics.median(own):.0f}",
                f"{measure.median_ratio(own, base):.2f}",
            ]
        )
    print(measure.format_table(lines))
    measure.write_json(args.output, results)


if __name__ == "__main__":
    main()
