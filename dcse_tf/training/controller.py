"""The outer loop: restore, train, summarise, evaluate, save, stop."""

import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from dcse_tf.training.profiler import StepProfiler
from dcse_tf.training.summaries import SummaryWriter
from dcse_tf.training.trainer import Trainer

Scores = dict[str, float]


class TrainingError(RuntimeError):
    """The training cannot go on."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Steps of the run, and how often the outer loop does what."""

    steps: int
    log_every: int
    save_every: int
    eval_every: int
    keep_checkpoints: int
    profile_steps: int = 0


_CHECKPOINTS = "checkpoints"


def has_checkpoint(run_dir: pathlib.Path) -> bool:
    """Whether a run has come to its first checkpoint."""
    return tf.train.latest_checkpoint(str(run_dir / _CHECKPOINTS)) is not None


class Controller:
    """Drives a trainer through a run that may be cut off at any time.

    A checkpoint has the model, the optimizer with its step, and the best dev score. Data and
    dropout come from the step, so a run that is started again goes on as if it had not stopped.

    Args:
        trainer: the inner loop.
        start_at: sets what is drawn by step to a step, and makes the iterator over batches from it.
        evaluate: gives dev scores; an empty dict where there are no dev data.
        best_metric: the score by which the best encoder is kept.
        save_encoder: writes the encoder as it is now.
        advise: remarks on a stretch's metrics, None where there is nothing to say.
        schedule: how often what.
        run_dir: where checkpoints and summaries go.
    """

    def __init__(
        self,
        trainer: Trainer,
        start_at: Callable[[int], Iterator[Any]],
        evaluate: Callable[[], Scores],
        best_metric: str,
        save_encoder: Callable[[], None],
        advise: Callable[[Scores], str | None],
        schedule: Schedule,
        run_dir: pathlib.Path,
    ):
        self._trainer = trainer
        self._start_at = start_at
        self._evaluate = evaluate
        self._best_metric = best_metric
        self._save_encoder = save_encoder
        self._advise = advise
        self._schedule = schedule
        self._folder = run_dir / "tensorboard"
        self._summaries = SummaryWriter(self._folder)
        self._best = tf.Variable(-math.inf, trainable=False, dtype=tf.float64)
        self._checkpoint = tf.train.Checkpoint(
            model=trainer.model, optimizer=trainer.optimizer, best=self._best
        )
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(run_dir / _CHECKPOINTS), schedule.keep_checkpoints
        )

    @property
    def step(self) -> int:
        return int(self._trainer.optimizer.iterations.numpy())

    def run(self, settings: str) -> Scores:
        """Trains to the last step, from the last checkpoint if there is one.

        Args:
            settings: the run's configuration as text, for the summaries.

        Returns:
            The last dev scores.

        Raises:
            TrainingError: the loss is not a number any more.
        """
        self._restore()
        self._summaries.text("configuration", settings, self.step)
        first, started = self.step, time.monotonic()
        scores: Scores = {}
        if first == 0:
            scores = self._score()
        iterator = self._start_at(first)
        profiler = StepProfiler(self._folder, first, self._schedule.profile_steps)
        while self.step < self._schedule.steps:
            profiler.before(self.step)
            self._train_stretch(iterator, first, started, profiler.boundaries(self.step))
            at_end = self.step == self._schedule.steps
            if at_end or self.step % self._schedule.eval_every == 0:
                scores = self._score()
            if at_end or self.step % self._schedule.save_every == 0:
                logging.info("saved %s", self._manager.save(checkpoint_number=self.step))
        profiler.stop()
        return scores or self._score()

    def _restore(self) -> None:
        latest = self._manager.latest_checkpoint
        if latest:
            self._checkpoint.restore(latest).assert_existing_objects_matched().expect_partial()
            logging.info("going on from %s, step %d", latest, self.step)

    def _train_stretch(
        self, iterator: Iterator[Any], first: int, started: float, stops: list[int]
    ) -> None:
        """Trains to the next step at which the outer loop has something to do, or of `stops`."""
        schedule, step = self._schedule, self.step
        every = (schedule.log_every, schedule.save_every, schedule.eval_every)
        target = min([schedule.steps, *stops, *((step // n + 1) * n for n in every)])
        begun = time.monotonic()
        metrics = self._trainer.train(iterator, target - step)
        seconds = time.monotonic() - begun
        if not math.isfinite(metrics["loss"]):
            raise TrainingError(
                f"the loss is {metrics['loss']} between steps {step} and {target}; the last good "
                f"checkpoint is {self._manager.latest_checkpoint}; try a lower --learning_rate"
            )
        metrics["fill"] = metrics["tokens"] / max(metrics.pop("cells"), 1.0)
        metrics["step_seconds"] = seconds / (target - step)
        for name in ("samples", "tokens"):
            metrics[f"{name}_per_second"] = metrics.pop(name) / seconds
        metrics["learning_rate"] = float(self._trainer.optimizer.learning_rate)
        self._summaries.scalars("train", metrics, target)
        left = (time.monotonic() - started) / (target - first) * (schedule.steps - target)
        logging.info(
            "step %d of %d, %s, about %.0f s left", target, schedule.steps, _line(metrics), left
        )
        advice = self._advise(metrics)
        if advice:
            logging.warning("%s", advice)
            self._summaries.text("advice", advice, target)

    def _score(self) -> Scores:
        """Evaluates, and keeps the encoder if it is the best so far (or nothing is known of it)."""
        started = time.monotonic()
        scores = self._evaluate()
        if scores:
            self._summaries.scalars("eval", scores, self.step)
            seconds = time.monotonic() - started
            logging.info("step %d, dev scores: %s (%.0f s)", self.step, _line(scores), seconds)
            if self._best_metric not in scores:
                raise TrainingError(
                    f"--best_metric={self._best_metric}: not among {', '.join(sorted(scores))}"
                )
        score = scores.get(self._best_metric, math.inf)
        # At the first step the start is kept too: a run that never improves must not claim it did.
        if score > self._best.numpy() or math.isinf(score):
            self._best.assign(score if scores else -math.inf)
            self._save_encoder()
        return scores


def _line(metrics: Scores) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
