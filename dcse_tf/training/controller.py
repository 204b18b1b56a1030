"""The outer loop: restore, train, summarise, evaluate, save, stop."""

import dataclasses
import json
import math
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import tensorflow as tf
from absl import logging

from dcse_tf.errors import InputError
from dcse_tf.files import atomic_file
from dcse_tf.input_files import parse_json
from dcse_tf.training.checkpoint_store import BestEncoder, CheckpointStore, Kept, find_checkpoint
from dcse_tf.training.summaries import Showcase, StepProfiler, SummaryWriter
from dcse_tf.training.trainer import Trainer

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# sysexits.h EX_TEMPFAIL: nothing is wrong, try again. No other end of a job has it.
EXIT_STATUS = 75


class Stopped(Exception):
    """A signal stopped the run, which was saved; the message says where and by which."""


class StopSignals:
    """While it is entered, the first signal asks for a stop and the second ends the process.

    Python runs a handler only between two of its own instructions, so not within a call of
    TensorFlow, which may take many steps. So the signal's number goes to a pipe, and a thread sets
    a variable that the inner loop reads before every step.

    Outside the main thread, where signals cannot be had, nothing is done.
    """

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self.asked = tf.Variable(False, trainable=False, name="stop_asked")
        self.signal: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._active = threading.current_thread() is threading.main_thread()
        if self._active:
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            self._handlers: dict[signal.Signals, Any] = {
                number: signal.signal(number, lambda *_: None) for number in SIGNALS
            }
            self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._active:
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            os.close(self._write)
            self._thread.join()
            os.close(self._read)

    def _watch(self) -> None:
        while number := os.read(self._read, 1):
            if number[0] not in SIGNALS:
                continue
            if self.signal:
                os._exit(128 + number[0])
            self.signal = signal.Signals(number[0])
            self.asked.assign(True)


SKIPPED_FILE = "skipped_batches.json"
DIVERGED_FILE = "diverged_batch.json"
_SHOWN = 5


class SkippedBatches:
    """A list in the run's folder, so that a run that is started again leaves out the same.

    Args:
        run_dir: the run's folder.
        list_sessions: the ids of the sessions of a step's batch.

    Raises:
        InputError: the file is not such a list.
    """

    def __init__(self, run_dir: pathlib.Path, list_sessions: Callable[[int], Sequence[str]]):
        self._path = run_dir / SKIPPED_FILE
        self._last = run_dir / DIVERGED_FILE
        self._list_sessions = list_sessions
        self._batches: list[dict] = []
        if self._path.is_file():
            try:
                self._batches = parse_json(self._path.read_text(encoding="utf-8"))["batches"]
                self.steps  # noqa: B018
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{self._path}: not a list of batches: {error!r}") from error

    @property
    def steps(self) -> list[int]:
        """Steps, from 0, that are not taken."""
        return [int(batch["step"]) for batch in self._batches]

    def add(self, step: int) -> None:
        """Notes a batch with its sessions."""
        sessions = list(self._list_sessions(step))
        self._batches = [*self._batches, {"step": step, "sessions": sessions}]
        _write(self._path, {"batches": self._batches})

    def describe(self, step: int) -> str:
        """The sessions of a step's batch, some for a message and all in a file."""
        sessions = list(self._list_sessions(step))
        _write(self._last, {"step": step, "sessions": sessions})
        more = f", ... (all are in {self._last})" if len(sessions) > _SHOWN else ""
        return f"{len(sessions)} samples of the sessions {', '.join(sessions[:_SHOWN])}{more}"


def _write(path: pathlib.Path, content: dict[str, Any]) -> None:
    with atomic_file(path) as partial:
        text = json.dumps(content, ensure_ascii=False, indent=1)
        partial.write_text(text + "\n", encoding="utf-8")


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


@dataclasses.dataclass(frozen=True)
class Divergence:
    """What a loss that diverges leads to.

    Attributes:
        loss_limit: a step's loss above it counts as diverged, as does one that is no number.
        skip: whether to go back to the last checkpoint and leave the batch out; else stop.
        most: batches left out at most in the whole run.
    """

    loss_limit: float = math.inf
    skip: bool = False
    most: int = 0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run ends with.

    Attributes:
        scores: dev scores of the last step; empty where there are no dev data.
        kept: where the encoder comes from that the run leaves.
    """

    scores: Scores
    kept: Kept


class Controller:
    """Drives a trainer through a run that may be cut off at any time.

    A checkpoint has the model, the optimizer with its step, and which step was evaluated last.
    Data and dropout come from the step, so a run that is started again continues as if it had not
    stopped, and one that goes back to a checkpoint takes the same steps again.

    Args:
        trainer: the inner loop.
        start_at: makes the iterator over batches from a step on.
        evaluate: gives dev scores; an empty dict where there are no dev data.
        best: keeps the best encoder.
        advise: remarks on a stretch's metrics, None where there is nothing to say.
        schedule: how often what.
        divergence: what to do about a loss that diverges.
        skipped: the batches that are left out, and where they are noted.
        signals: what a stop is asked by, also of the trainer.
        run_dir: where checkpoints and summaries go.
        showcase: what is shown besides the figures.
    """

    def __init__(
        self,
        trainer: Trainer,
        start_at: Callable[[int], Iterator[Any]],
        evaluate: Callable[[], Scores],
        best: BestEncoder,
        advise: Callable[[Scores], str | None],
        schedule: Schedule,
        divergence: Divergence,
        skipped: SkippedBatches,
        signals: StopSignals,
        run_dir: pathlib.Path,
        showcase: Showcase,
    ):
        self._trainer = trainer
        self._start_at = start_at
        self._evaluate = evaluate
        self._best = best
        self._advise = advise
        self._schedule = schedule
        self._divergence = divergence
        self._skipped = skipped
        self._signals = signals
        self._run_dir = run_dir
        self._showcase = showcase
        self._folder = run_dir / "tensorboard"
        self._summaries = SummaryWriter(self._folder)
        self._scored = tf.Variable(-1, trainable=False, dtype=tf.int64)
        state = tf.train.Checkpoint(
            model=trainer.model, optimizer=trainer.optimizer, scored=self._scored
        )
        self._store = CheckpointStore(run_dir, state, schedule.keep_checkpoints)
        self._saved = -1

    @property
    def step(self) -> int:
        return int(self._trainer.optimizer.iterations.numpy())

    def run(self, settings: str) -> Outcome:
        """Trains to the last step, from the last checkpoint if there is one.

        Args:
            settings: the run's configuration as text, for the summaries.

        Raises:
            TrainingError: the loss diverged.
            Stopped: a signal stopped it; where it is has been saved.
        """
        with self._signals:
            self._store.clear_left_overs()
            self._restore()
            if self._saved >= 0:
                self._best.restore()
            self._summaries.text("configuration", settings, self.step)
            self._showcase.begin(self._summaries)
            self._first, self._started = self.step, time.monotonic()
            scores: Scores | None = None
            iterator = self._start_at(self.step)
            profiler = StepProfiler(self._folder, self.step, self._schedule.profile_steps)
            while True:
                if self._signals.signal:
                    self._stop(self._signals.signal)
                scored = self._scored.numpy() >= self.step and self._best.kept
                if self._is_due(self._schedule.eval_every) and not scored:
                    scores = self._score()
                if self._is_due(self._schedule.save_every):
                    self._save()
                if self.step >= self._schedule.steps:
                    break
                profiler.before(self.step)
                iterator = self._train_stretch(iterator, profiler.boundaries(self.step))
            profiler.stop()
            scores = self._score() if scores is None else scores
            kept = self._best.end(scores, self.step)
            self._showcase.end(self._summaries)
            return Outcome(scores, kept)

    def _is_due(self, every: int) -> bool:
        return self.step >= self._schedule.steps or self.step % every == 0

    def _restore(self) -> None:
        path = self._store.restore()
        if path:
            self._saved = self.step
            logging.info("resumed from %s, step %d", path, self.step)

    def _save(self) -> None:
        """Saves what is not saved yet; the start alone where a run may have to go back to it."""
        if self._saved < self.step and (self.step > 0 or self._divergence.skip):
            logging.info("saved %s", self._store.save(self.step))
            self._saved = self.step

    def _stop(self, by: signal.Signals) -> None:
        self._save()
        raise Stopped(
            f"stopped by {by.name} at step {self.step} of {self._schedule.steps}, which is saved; "
            "the same command resumes it"
        )

    def _train_stretch(self, iterator: Iterator[Any], stops: list[int]) -> Iterator[Any]:
        """Trains to the next step at which the outer loop has something to do, or of `stops`.

        Returns:
            The iterator over what comes next.
        """
        schedule, step = self._schedule, self.step
        every = (schedule.log_every, schedule.save_every, schedule.eval_every)
        if step in self._skipped.steps:
            self._trainer.optimizer.iterations.assign(step + 1)
            return self._start_at(step + 1)
        skips = [skip for skip in self._skipped.steps if skip > step]
        target = min([schedule.steps, *stops, *skips, *((step // n + 1) * n for n in every)])
        begun = time.monotonic()
        metrics = self._trainer.train(iterator, target - step, self._divergence.loss_limit)
        taken = round(metrics.pop("steps"))
        if metrics.pop("diverged"):
            return self._go_back(step + taken - 1)
        if taken:
            self._report(metrics, step, taken, time.monotonic() - begun)
        return iterator

    def _go_back(self, bad: int) -> Iterator[Any]:
        """After the step from `bad` to the next diverged: to the last checkpoint, without it.

        Raises:
            TrainingError: it may not be left out.
        """
        sessions = self._skipped.describe(bad)
        where = f"the loss diverged at the step after {bad}, on {sessions}"
        last = find_checkpoint(self._run_dir)
        kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        if not self._divergence.skip or len(self._skipped.steps) >= self._divergence.most:
            raise TrainingError(f"{where}; {kept}; try a lower `learning_rate`")
        self._skipped.add(bad)
        self._restore()
        logging.warning("%s; the batch is left out from now on", where)
        return self._start_at(self.step)

    def _report(self, metrics: Scores, step: int, taken: int, seconds: float) -> None:
        """Logs and summarises the steps taken from `step` on."""
        schedule, now = self._schedule, step + taken
        metrics["fill"] = metrics["tokens"] / max(metrics.pop("cells"), 1.0)
        metrics["step_seconds"] = seconds / taken
        if without_negatives := metrics.pop("without_negatives"):
            metrics["without_negatives"] = without_negatives / metrics["samples"]
        for name in ("samples", "tokens"):
            metrics[f"{name}_per_second"] = metrics.pop(name) / seconds
        metrics["learning_rate"] = float(self._trainer.optimizer.learning_rate)
        self._summaries.scalars("train", metrics, now)
        spent = time.monotonic() - self._started
        left = spent / max(1, now - self._first) * (schedule.steps - now)
        logging.info(
            "step %d of %d, %s, about %.0f s left", now, schedule.steps, _line(metrics), left
        )
        advice = self._advise(metrics)
        if advice:
            logging.warning("%s", advice)
            self._summaries.text("advice", advice, now)

    def _score(self) -> Scores:
        """Evaluates, and keeps the encoder if it is the best so far."""
        started = time.monotonic()
        scores = self._evaluate()
        if scores:
            self._summaries.scalars("eval", scores, self.step)
            seconds = time.monotonic() - started
            logging.info("step %d, dev scores: %s (%.0f s)", self.step, _line(scores), seconds)
        try:
            # At step 0 too: a run that never improves leaves its start, and says so.
            if self._best.offer(scores, self.step):
                self._showcase.kept(self._summaries, scores, self.step)
        except KeyError as error:
            known = ", ".join(sorted(scores))
            raise TrainingError(f"`best_metric`={error.args[0]}: not among {known}") from error
        self._scored.assign(self.step)
        self._showcase.evaluated(self._summaries, self.step)
        return scores


def _line(metrics: Scores) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
