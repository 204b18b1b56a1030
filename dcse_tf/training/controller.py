"""The outer loop of training: restores, trains, runs hooks between steps, saves and stops."""

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import tensorflow as tf

from dcse_tf.tasks.spec import Scores
from dcse_tf.training.trainer import Trainer, Worker

if TYPE_CHECKING:
    from dcse_tf.training.checkpoint_store import CheckpointStore

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):
    """A signal stopped the run, after it was saved; the message names the signal and the step."""


class TrainingError(RuntimeError):
    """Training cannot continue."""


class WorkersError(RuntimeError):
    """The other workers can no longer be reached."""


@contextlib.contextmanager
def name_lost_workers(worker: Worker) -> Iterator[None]:
    """Converts the errors that collectives raise when another worker is lost to WorkersError."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        if worker.count == 1:
            raise
        raise WorkersError("another worker has ended, or cannot be reached any more") from error


class StopSignals:
    """While it watches, the first signal requests a stop and the second ends the process.

    Python runs a signal handler only between two of its own instructions, hence not during a call
    to TensorFlow, which may take many steps. Instead the signal's number is written to a pipe, and
    a thread that reads the pipe sets a variable. The inner loop checks it at every step.

    Does nothing outside the main thread, where Python allows no signal handlers.
    """

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self.asked = tf.Variable(False, trainable=False, name="stop_asked")
        self.signal: signal.Signals | None = None

    @contextlib.contextmanager
    def watch(self) -> Iterator[Self]:
        """Watches for signals while the block runs."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        handlers = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._read, args=[reading], daemon=True)
        thread.start()
        try:
            yield self
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(writing)
            thread.join()
            os.close(reading)

    def _read(self, pipe: int) -> None:
        while number := os.read(pipe, 1):
            if number[0] not in SIGNALS:
                continue
            if self.signal:
                os._exit(128 + number[0])
            self.signal = signal.Signals(number[0])
            self.asked.assign(True)


@dataclasses.dataclass
class Hook:
    """Base class of what a run does between its steps.

    A run calls `begin` once. It then repeats: `at_boundary` of the hooks whose boundary has come,
    the steps up to the next boundary of any hook, `after_steps` of all. At last it calls `end`.
    """

    # Steps between two boundaries, counted from the start of the run, which is one, as is its end;
    # 0 for no boundaries.
    every: int

    def begin(self, step: int, resumed: bool) -> None:
        """Called when the run starts at `step`; `resumed` if it starts from a checkpoint."""

    def at_boundary(self, step: int) -> None:
        """Called at the hook's boundaries."""

    def after_steps(self, step: int, steps: int, seconds: float, metrics: Scores) -> None:
        """Called after each series of `steps` without an interruption, the last of which is `step`
        of the run, unless that diverged; the metrics are what `Trainer.train` returned.
        """

    def end(self, step: int) -> None:
        """Called after the last step."""


@dataclasses.dataclass
class Controller:
    """Drives a trainer through a run that may be interrupted at any time.

    A checkpoint holds the model, the optimizer with its step, and the step that was evaluated last.
    Data and dropout are functions of the step. So a resumed run continues as if it had not stopped.
    """

    trainer: Trainer
    start_at: Callable[[int], Iterator[Any]]  # makes the iterator over the batches from a step on
    checkpoints: "CheckpointStore"  # after the hooks, so that it saves what they changed
    hooks: Sequence[Hook]
    steps: int  # the last step
    signals: StopSignals  # which the trainer sees too
    several: bool = False  # whether other workers take the same steps, which all must end at

    @property
    def step(self) -> int:
        return int(self.trainer.optimizer.iterations.numpy())

    def run(self) -> None:
        """Trains to the last step, from the newest intact checkpoint if there is one."""
        with self.signals.watch():
            hooks = [*self.hooks, self.checkpoints]
            resumed = self.checkpoints.restore() is not None
            self._meet("resume from different steps: expected a `run_dir` that all of them see")
            for hook in hooks:
                hook.begin(self.step, resumed)
            iterator, stopped = self.start_at(self.step), False

            while not stopped:
                step = self.step
                for hook in hooks:
                    if hook.every and (step >= self.steps or step % hook.every == 0):
                        hook.at_boundary(step)
                if step >= self.steps:
                    break
                nearest = min((step // h.every + 1) * h.every for h in hooks if h.every)
                stopped = self._train(iterator, min(nearest, self.steps) - step)

            if not stopped:
                for hook in hooks:
                    hook.end(self.step)
                self._meet("ended at different steps")
            if stopped or self.signals.signal:  # after the last step, too
                self.checkpoints.at_boundary(self.step)
                by = self.signals.signal.name if self.signals.signal else "another worker"
                when = f"stopped by {by} at step {self.step} of {self.steps}"
                raise Stopped(f"{when}, which is saved; the same command resumes it")

    def _train(self, iterator: Iterator[Any], count: int) -> bool:
        """Takes so many steps, or fewer if a stop is requested, and returns whether it is."""
        before, begun = self.step, time.monotonic()
        metrics = self.trainer.train(iterator, count)
        seconds, steps = time.monotonic() - begun, round(metrics.pop("steps"))
        diverged, stopped = metrics.pop("diverged"), metrics.pop("stopped")
        if diverged:
            last = self.checkpoints.last
            kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
            when = f"the loss diverged at the step after {before + steps - 1}"
            raise TrainingError(f"{when}; {kept}; try a lower `learning_rate` in another `run_dir`")
        for hook in self.hooks if steps else ():
            hook.after_steps(before + steps, steps, seconds, dict(metrics))
        return bool(stopped)

    def _meet(self, otherwise: str) -> None:
        """Waits for the other workers; raises an error unless all are at the same step."""
        if self.several and not self.trainer.all_have(self.step):
            raise TrainingError(f"the workers {otherwise}")
