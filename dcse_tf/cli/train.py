"""Trains a sentence encoder on prepared dialogues."""

import sys

from dcse_tf.cli.flag_options import run
from dcse_tf.config import TrainConfig


def train(config: TrainConfig) -> None:
    from dcse_tf.jobs import train as job
    from dcse_tf.training.best_encoder import UNTRAINED
    from dcse_tf.training.controller import TrainingError
    from dcse_tf.training.stop_signals import EXIT_STATUS, Stopped

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
    run(TrainConfig, train)
