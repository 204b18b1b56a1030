"""The outer loop of training: restores, trains, runs hooks between steps, saves and stops."""

import dataclasses
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import tensorflow as tf
from absl import logging

from dcse_tf.progress import can_move
from dcse_tf.tasks.spec import Scores
from dcse_tf.training.checkpoint_store import CheckpointStore, step_of
from dcse_tf.training.trainer import Trainer

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):
    """A signal stopped the run, after it was saved; the message names the signal and the step."""


class TrainingError(RuntimeError):
    """Training cannot continue."""


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


@dataclasses.dataclass(frozen=True)
class Taken:
    """Steps that were taken without an interruption.

    Attributes:
        step: steps taken since the start of the run, these included.
        steps: the number of these steps.
        seconds: how long they took, including the input pipeline.
        metrics: what `Trainer.train` returned for them.
    """

    step: int
    steps: int
    seconds: float
    metrics: Scores


class Hook:
    """Base class of what a run does between its steps.

    A run calls `begin` once. It then repeats: `at_boundary` of the hooks whose boundary has come,
    the steps up to the next boundary of any hook, `after_steps` of all. At last it calls `end`.

    Args:
        every: steps between two boundaries, counted from the start of the run, which is one, as is
            its end; 0 for no boundaries.
    """

    def __init__(self, every: int = 0):
        self.every = every

    def begin(self, step: int, resumed: bool) -> None:
        """Called when the run starts at `step`; `resumed` if it starts from a checkpoint."""

    def at_boundary(self, step: int) -> None:
        """Called at the hook's boundaries."""

    def after_steps(self, taken: Taken) -> None:
        """Called after each series of steps, unless the last of them diverged."""

    def within_steps(self, taken: Taken) -> None:
        """Called every few seconds with the steps so far, if a progress line can be redrawn."""

    def end(self, step: int) -> None:
        """Called after the last step."""


class Checkpoints(Hook):
    """Saves and restores the state of the run.

    Args:
        store: writes and restores the checkpoints.
        every: steps between two checkpoints.
        write: whether this process writes them; of several workers, only the first one does, and
            without it no other can take the next step.
    """

    def __init__(self, store: CheckpointStore, every: int, write: bool = True):
        super().__init__(every)
        self.last: pathlib.Path | None = None
        self._store = store
        self._write = write
        self._saved = 0

    def restore(self) -> bool:
        """Restores the newest intact checkpoint; returns whether there is one."""
        if self._write:
            self._store.clear_left_overs()
        self.last = self._store.restore()
        if self.last:
            self._saved = step_of(self.last)
            logging.info("resumed from %s, step %d", self.last, self._saved)
        return self.last is not None

    def at_boundary(self, step: int) -> None:
        self.save(step)

    def save(self, step: int) -> None:
        """Saves the state after `step`, unless it is saved already."""
        if self._write and self._saved < step:
            self.last = self._store.save(step)
            self._saved = step
            logging.info("saved %s", self.last)


class Controller:
    """Drives a trainer through a run that may be interrupted at any time.

    A checkpoint holds the model, the optimizer with its step, and the step that was evaluated last.
    Data and dropout are functions of the step. So a resumed run continues as if it had never
    stopped.

    Args:
        trainer: the inner loop.
        start_at: makes the iterator over the batches from a step on.
        checkpoints: saves the state, after the hooks, so that it includes what they changed.
        hooks: what else is done between the steps.
        steps: the last step.
        signals: the requests to stop, which the trainer sees too.
        describe_batch: returns a sentence about the batch of a step, counted from 0, for the error
            if its loss diverges.
        several: whether other workers take the same steps. All workers must then call the trainer
            alike, so no progress is shown within the steps; they wait for each other at the end.
    """

    def __init__(
        self,
        trainer: Trainer,
        start_at: Callable[[int], Iterator[Any]],
        checkpoints: Checkpoints,
        hooks: Sequence[Hook],
        *,
        steps: int,
        signals: StopSignals,
        describe_batch: Callable[[int], str],
        several: bool = False,
    ):
        self._trainer = trainer
        self._start_at = start_at
        self._checkpoints = checkpoints
        self._hooks = [*hooks, checkpoints]
        self._steps = steps
        self._signals = signals
        self._describe_batch = describe_batch
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
            resumed = self._checkpoints.restore()
            self._meet("resume from different steps: expected a `run_dir` that all of them see")
            for hook in self._hooks:
                hook.begin(self.step, resumed)
            iterator = self._start_at(self.step)

            while True:
                step = self.step
                for hook in self._hooks:
                    if hook.every and (step >= self._steps or step % hook.every == 0):
                        hook.at_boundary(step)
                if step >= self._steps:
                    break
                nearest = min((step // h.every + 1) * h.every for h in self._hooks if h.every)
                self._train(iterator, step, min(nearest, self._steps))

            for hook in self._hooks:
                hook.end(self.step)
            self._meet("ended at different steps")

    def _train(self, iterator: Iterator[Any], step: int, target: int) -> None:
        """Takes the steps from `step` to `target`."""
        begun = time.monotonic()

        def measure(metrics: Scores) -> Taken:
            seconds, steps = time.monotonic() - begun, round(metrics["steps"])
            ends = ("steps", "diverged", "stopped")
            rest = {name: value for name, value in metrics.items() if name not in ends}
            return Taken(step + steps, steps, seconds, rest)

        def tell(metrics: Scores) -> None:
            for hook in self._hooks:
                hook.within_steps(measure(metrics))

        watched = tell if can_move() and not self._several else None
        metrics = self._trainer.train(iterator, target - step, watched)
        taken, last = measure(metrics), self._checkpoints.last
        if metrics["diverged"]:
            kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
            raise TrainingError(
                f"the loss diverged at the step after {taken.step - 1}, on "
                f"{self._describe_batch(taken.step - 1)}; {kept}; try a lower `learning_rate`"
            )
        if taken.steps:
            for hook in self._hooks:
                hook.after_steps(taken)
        if metrics["stopped"]:
            self._checkpoints.save(self.step)
            by = self._signals.signal.name if self._signals.signal else "another worker"
            raise Stopped(
                f"stopped by {by} at step {self.step} of {self._steps}, which is saved; the same "
                "command resumes it"
            )

    def _meet(self, otherwise: str) -> None:
        """Waits for the other workers; raises an error unless all are at the same step."""
        if self._several and not self._trainer.all_have(self.step):
            raise TrainingError(f"the workers {otherwise}")
