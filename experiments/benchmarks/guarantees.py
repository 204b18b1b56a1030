"""What a training that can be trusted costs: checks in the loop, checkpoints, determinism.

    PYTHONPATH=. python experiments/benchmarks/guarantees.py

Steps by the recommended preset's form from all-MiniLM-L6-v2 on chitchat, by turns: a bare loop, and
the loop that asks for signals and for divergence at every step; then a checkpoint with its sizes
and SHA-256, flushed to the disk. Every round is two processes, one with --deterministic, since that
is a setting of the whole process. About 15 minutes.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import dialogues
import measure

STEPS, TURNS = 5, 4  # steps of one loop at a time, and how often the loops take turns


def make_step(data_dir: pathlib.Path, encoder: str, deterministic: bool) -> Any:
    from train_step import Step

    settings: dict[str, Any] = {"batch_form": "dense", "global_batch_size": 16}
    return Step(data_dir, encoder, {**settings, "deterministic": deterministic})


def make_bare_loop(step: Any) -> Any:
    """The same steps, and nothing looked at between them."""
    import tensorflow as tf

    trainer = step.training.trainer

    @tf.function
    def loop(iterator: Any, steps: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(steps):
            sums = trainer.strategy.run(trainer._step, args=(next(iterator),))
            loss += trainer.strategy.reduce(tf.distribute.ReduceOp.SUM, sums["loss"], axis=None)
        return loss

    return lambda: float(loop(step.iterator, tf.constant(STEPS)))


def run_child(data_dir: pathlib.Path, encoder: str, deterministic: bool) -> dict[str, float]:
    """Seconds of a step in either loop and of a checkpoint, and its MB."""
    import tensorflow as tf

    from dcse_tf.training.checkpoint_store import CheckpointStore

    step = make_step(data_dir, encoder, deterministic)
    loops = {
        "bare": make_bare_loop(step),
        "checked": lambda: step.training.trainer.train(step.iterator, STEPS),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(1 + TURNS):  # the first traces
        for name, loop in loops.items():
            started = time.perf_counter()
            loop()
            if turn:
                seconds[name].append((time.perf_counter() - started) / STEPS)
    state = tf.train.Checkpoint(
        model=step.training.trainer.model, optimizer=step.training.trainer.optimizer
    )
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(pathlib.Path(folder), state, keep=2)
        saves = []
        for number in range(3):
            started = time.perf_counter()
            path = store.save(number)
            saves.append(time.perf_counter() - started)
        size = sum(file.stat().st_size for file in path.iterdir())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {**medians, "save": statistics.median(saves), "checkpoint_mb": size / 1e6}


def in_process(data_dir: pathlib.Path, encoder: str, deterministic: bool) -> dict[str, float]:
    command = [sys.executable, __file__, f"--data_dir={data_dir}", f"--encoder={encoder}"]
    child = [*command, f"--child={int(deterministic)}"]
    output = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def report(rounds: list[tuple[dict[str, float], dict[str, float]]], save_every: int) -> None:
    def with_saves(figures: dict[str, float]) -> float:
        return figures["checked"] + figures["save"] / save_every

    cases = {
        "bare loop": lambda plain, exact: plain["bare"],
        "asking for signals and divergence": lambda plain, exact: plain["checked"],
        f"and a checkpoint every {save_every} steps": lambda plain, exact: with_saves(plain),
        "and --deterministic": lambda plain, exact: with_saves(exact),
    }
    lines = [["", "seconds a step", "speed against the bare loop", "spread"]]
    for name, seconds in cases.items():
        ratios = [plain["bare"] / seconds(plain, exact) for plain, exact in rounds]
        middle = statistics.median(seconds(plain, exact) for plain, exact in rounds)
        spread = f"{min(ratios):.3f} - {max(ratios):.3f}"
        lines.append([name, f"{middle:.3f}", f"{statistics.median(ratios):.3f}", spread])
    print(measure.format_table(lines))
    saves = [figures["save"] for each in rounds for figures in each]
    size = rounds[0][0]["checkpoint_mb"]
    print(f"a checkpoint: {size:.0f} MB in {statistics.median(saves):.2f} s")


def main() -> None:
    parser = measure.make_parser(__doc__)
    dialogues.add_arguments(parser)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(run_child(args.data_dir, args.encoder, bool(args.child))))
        return
    from dcse_tf.tasks.options import TrainOptions

    with dialogues.prepared(args.data_dir, args.encoder) as data_dir:
        rounds = [
            (in_process(data_dir, args.encoder, False), in_process(data_dir, args.encoder, True))
            for _ in range(args.rounds)
        ]
    report(rounds, TrainOptions.save_every)
    measure.write_json(args.output, rounds)


if __name__ == "__main__":
    main()
