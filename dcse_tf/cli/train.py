"""Trains a sentence encoder on prepared dialogues."""

import sys

from dcse_tf.cli.flags import run
from dcse_tf.tasks.options import TrainOptions


def train(config: TrainOptions) -> None:
    from dcse_tf.training import job
    from dcse_tf.training.checkpoint_store import UNTRAINED
    from dcse_tf.training.controller import EXIT_STATUS, Stopped, TrainingError

    try:
        outcome = job.train(config)
    except TrainingError as error:
        sys.exit(f"error: {error}")
    except Stopped as stop:
        print(stop)
        sys.exit(EXIT_STATUS)
    for name, value in outcome.scores.items():
        print(f"{name}: {value:.4g}")
    print(f"the trained encoder is {config.run_dir}/encoder")
    print(f"kept: {outcome.kept.describe()}")
    if outcome.kept.step == 0:
        print(f"warning: {UNTRAINED}")
    print(f"watch it with: tensorboard --logdir {config.run_dir}")


if __name__ == "__main__":
    run(TrainOptions, train)
