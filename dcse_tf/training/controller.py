"""The outer loop of training: restores, trains, runs hooks between steps, saves and stops."""

import dataclasses
import json
import math
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import tensorflow as tf
from absl import logging

from dcse_tf.errors import InputError
from dcse_tf.files import atomic_file
from dcse_tf.input_files import parse_json
from dcse_tf.progress import can_move
from dcse_tf.tasks.spec import Scores
from dcse_tf.training.checkpoint_store import CheckpointStore, step_of
from dcse_tf.training.trainer import Trainer

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):
    """A signal stopped the run, after it was saved; the message names the signal and the step."""


class StopSignals:
    """A context manager in which the first signal requests a stop and the second ends the process.

    Python runs a signal handler only between two of its own instructions, hence not during a call
    to TensorFlow, which may take many steps. Instead the signal's number is written to a pipe, and
    a thread that reads the pipe sets a variable. The inner loop checks it at every step.

    Does nothing outside the main thread, where Python allows no signal handlers.
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

    def __exit__(self, *_: object) -> None:
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


class TrainingError(RuntimeError):
    """Training cannot continue."""


SKIPPED_FILE = "skipped_batches.json"
DIVERGED_FILE = "diverged_batch.json"
_SHOWN = 5


class Divergence:
    """Decides what to do when the loss diverges, and keeps the list of skipped batches.

    The list is written to the run's folder, so that a resumed run skips the same batches.

    Args:
        run_dir: the run's folder.
        list_sessions: returns the ids of the sessions in the batch of a step, counted from 0.
        loss_limit: a loss above this, or one that is not finite, counts as diverged.
        skip: whether to return to the last checkpoint and skip the batch; otherwise stop.
        most: maximum number of batches to skip in the whole run.
        write: whether this process writes the files.

    Raises:
        InputError: the run's list of skipped batches cannot be parsed.
    """

    def __init__(
        self,
        run_dir: pathlib.Path,
        list_sessions: Callable[[int], Sequence[str]],
        *,
        loss_limit: float = math.inf,
        skip: bool = False,
        most: int = 0,
        write: bool = True,
    ):
        self.loss_limit = loss_limit
        self.skip = skip
        self._most = most
        self._writes = write
        self._path = run_dir / SKIPPED_FILE
        self._last = run_dir / DIVERGED_FILE
        self._list_sessions = list_sessions
        self._batches: list[dict] = []
        if self._path.is_file():
            try:
                self._batches = parse_json(self._path.read_text(encoding="utf-8"))["batches"]
                self.left_out  # noqa: B018
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{self._path}: not a list of batches: {error!r}") from error

    @property
    def left_out(self) -> list[int]:
        """The steps to skip, counted from 0."""
        return [int(batch["step"]) for batch in self._batches]

    def leave_out(self, step: int, last: pathlib.Path | None) -> str:
        """Adds the batch of a diverged step to the skipped ones; returns a message to log.

        Args:
            step: the step whose loss diverged, counted from 0.
            last: the last good checkpoint; None if there is none yet.

        Raises:
            TrainingError: the batch may not be skipped.
        """
        sessions = list(self._list_sessions(step))
        batch = {"step": step, "sessions": sessions}
        self._write(self._last, batch)
        more = f", ... (all are in {self._last})" if len(sessions) > _SHOWN else ""
        where = (
            f"the loss diverged at the step after {step}, on {len(sessions)} samples of the "
            f"sessions {', '.join(sessions[:_SHOWN])}{more}"
        )
        if not self.skip or len(self._batches) >= self._most:
            kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
            raise TrainingError(f"{where}; {kept}; try a lower `learning_rate`")
        self._batches = [*self._batches, batch]
        self._write(self._path, {"batches": self._batches})
        return f"{where}; the batch is left out from now on"

    def _write(self, path: pathlib.Path, content: dict[str, Any]) -> None:
        if not self._writes:
            return
        with atomic_file(path) as partial:
            text = json.dumps(content, ensure_ascii=False, indent=1)
            partial.write_text(text + "\n", encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Stretch:
    """A series of steps taken without interruption.

    Attributes:
        step: steps taken since the start of the run, these included.
        taken: number of steps in this stretch.
        seconds: how long they took, including the input pipeline.
        metrics: the metrics that `Trainer.train` returned for them.
    """

    step: int
    taken: int
    seconds: float
    metrics: Scores


class Hook:
    """Base class of what a run does between stretches of steps.

    A run calls `begin` once. It then repeats: `at_boundary`, the steps up to the next boundary of
    any hook, `after_stretch`. After the last step it calls `end`. Several hooks are called in the
    order in which they were given.

    Attributes:
        every: steps between two boundaries, counted from the start of the run; 0 for no boundaries.
    """

    every = 0

    def begin(self, step: int, resumed: bool) -> None:
        """Called when the run starts at `step`; `resumed` if it starts from a checkpoint."""

    def next_boundary(self, step: int) -> int | None:
        """The next step at which training must be interrupted; None if it need not be."""
        return (step // self.every + 1) * self.every if self.every else None

    def at_boundary(self, step: int, last: bool) -> None:
        """Called before each stretch, and once more after the last one."""

    def after_stretch(self, stretch: Stretch) -> None:
        """Called after each stretch in which a step was taken, unless it diverged."""

    def within_stretch(self, stretch: Stretch) -> None:
        """Called every few seconds with the steps so far, if a progress line can be redrawn."""

    def end(self, step: int) -> None:
        """Called after the last step."""

    def is_due(self, step: int, last: bool) -> bool:
        """Whether a boundary is this hook's own; the last step is a boundary of every hook."""
        return last or step % self.every == 0


class Boundaries(Hook):
    """Interrupts training at its boundaries and does nothing there.

    Args:
        every: steps between two boundaries.
    """

    def __init__(self, every: int):
        self.every = every


class Checkpoints(Hook):
    """Saves and restores the state of the run.

    Args:
        store: writes and restores the checkpoints.
        every: steps between two checkpoints.
        keep_start: whether to save step 0 too, for a run that may have to return to it.
    """

    def __init__(self, store: CheckpointStore, every: int, keep_start: bool = False):
        self.every = every
        self.last: pathlib.Path | None = None
        self._store = store
        self._saved = -1
        self._keep_start = keep_start

    def clear_left_overs(self) -> None:
        """Deletes what interrupted writes left behind."""
        self._store.clear_left_overs()

    def restore(self) -> bool:
        """Restores the newest intact checkpoint; returns whether there is one."""
        self.last = self._store.restore()
        if self.last:
            self._saved = step_of(self.last)
            logging.info("resumed from %s, step %d", self.last, self._saved)
        return self.last is not None

    def at_boundary(self, step: int, last: bool) -> None:
        if self.is_due(step, last):
            self.save(step)

    def save(self, step: int) -> None:
        """Saves the state after `step`, unless it is saved already."""
        if self._saved < step and (step > 0 or self._keep_start):
            self.last = self._store.save(step)
            self._saved = step
            logging.info("saved %s", self.last)


class ReadCheckpoints(Checkpoints):
    """Restores the checkpoints that the chief worker saves, and writes none."""

    def clear_left_overs(self) -> None:
        """Does nothing: the chief clears them."""

    def save(self, step: int) -> None:
        """Does nothing: the chief saves, and without it no worker can take the next step."""


class Controller:
    """Drives a trainer through a run that may be interrupted at any time.

    A checkpoint holds the model, the optimizer with its step, and the step that was evaluated last.
    Data and dropout are functions of the step. So a resumed run continues as if it had never
    stopped, and a run that returns to a checkpoint repeats the same steps.

    Args:
        trainer: the inner loop.
        start_at: makes the iterator over the batches from a step on.
        checkpoints: saves the state, after the hooks, so that it includes what they changed.
        hooks: what else is done between the steps.
        steps: the last step.
        divergence: decides what to do when the loss diverges.
        signals: the requests to stop, which the trainer sees too.
        several: whether other workers take the same steps. All workers must then call the trainer
            alike, so no progress is shown within a stretch; they wait for each other at the end.
    """

    def __init__(
        self,
        trainer: Trainer,
        start_at: Callable[[int], Iterator[Any]],
        checkpoints: Checkpoints,
        hooks: Sequence[Hook],
        *,
        steps: int,
        divergence: Divergence,
        signals: StopSignals,
        several: bool = False,
    ):
        self._trainer = trainer
        self._start_at = start_at
        self._checkpoints = checkpoints
        self._hooks = [*hooks, checkpoints]
        self._steps = steps
        self._divergence = divergence
        self._signals = signals
        self._several = several

    @property
    def step(self) -> int:
        return int(self._trainer.optimizer.iterations.numpy())

    def run(self) -> None:
        """Trains to the last step, from the newest intact checkpoint if there is one.

        Raises:
            TrainingError: the loss diverged, or the workers are at different steps.
            Stopped: a signal stopped the run; its state is saved.
        """
        with self._signals:
            self._checkpoints.clear_left_overs()
            resumed = self._checkpoints.restore()
            self._meet(
                "the workers resume from different steps: expected a `run_dir` that all of them see"
            )
            for hook in self._hooks:
                hook.begin(self.step, resumed)
            iterator = self._start_at(self.step)

            while True:
                step = self.step
                last = step >= self._steps
                for hook in self._hooks:
                    hook.at_boundary(step, last)
                if last:
                    break
                iterator = self._train_stretch(iterator)

            for hook in self._hooks:
                hook.end(self.step)
            self._meet("the workers ended at different steps")

    def _meet(self, otherwise: str) -> None:
        """Waits for the other workers; raises an error unless all are at the same step."""
        if self._several and not self._trainer.all_have(self.step):
            raise TrainingError(otherwise)

    def _stop(self) -> None:
        self._checkpoints.save(self.step)
        by = self._signals.signal.name if self._signals.signal else "another worker"
        raise Stopped(
            f"stopped by {by} at step {self.step} of {self._steps}, which is saved; the same "
            "command resumes it"
        )

    def _train_stretch(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Trains to the next boundary of any hook; returns the iterator over the next batches."""
        step, left_out = self.step, self._divergence.left_out
        if step in left_out:
            self._trainer.optimizer.iterations.assign(step + 1)
            return self._start_at(step + 1)

        boundaries = [hook.next_boundary(step) for hook in self._hooks]
        boundaries += [skip for skip in left_out if skip > step]
        target = min([self._steps, *(b for b in boundaries if b is not None)])

        begun = time.monotonic()

        def measure(metrics: Scores) -> Stretch:
            seconds, taken = time.monotonic() - begun, round(metrics["steps"])
            ends = ("steps", "diverged", "stopped")
            rest = {name: value for name, value in metrics.items() if name not in ends}
            return Stretch(step + taken, taken, seconds, rest)

        def tell(metrics: Scores) -> None:
            for hook in self._hooks:
                hook.within_stretch(measure(metrics))

        metrics = self._trainer.train(
            iterator,
            target - step,
            self._divergence.loss_limit,
            tell if can_move() and not self._several else None,
        )
        stretch = measure(metrics)
        if metrics["diverged"]:
            return self._go_back(stretch.step - 1)
        if stretch.taken:
            for hook in self._hooks:
                hook.after_stretch(stretch)
        if metrics["stopped"]:
            self._stop()
        return iterator

    def _go_back(self, bad: int) -> Iterator[Any]:
        """Returns to the last checkpoint and skips step `bad` (from 0), whose loss diverged."""
        message = self._divergence.leave_out(bad, self._checkpoints.last)
        self._checkpoints.restore()
        logging.warning("%s", message)
        return self._start_at(self.step)
