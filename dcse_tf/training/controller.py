"""The outer loop: restore, train, do what is due between the steps, save, stop."""

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
from dcse_tf.progress import can_move
from dcse_tf.tasks.spec import Scores
from dcse_tf.training.checkpoint_store import CheckpointStore, step_of
from dcse_tf.training.trainer import Trainer

SIGNALS = (signal.SIGTERM, signal.SIGINT)


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


class TrainingError(RuntimeError):
    """The training cannot go on."""


SKIPPED_FILE = "skipped_batches.json"
DIVERGED_FILE = "diverged_batch.json"
_SHOWN = 5


class Divergence:
    """What a loss that diverges leads to, and the batches that are left out because of it.

    They are listed in the run's folder, so that a run that is resumed leaves out the same.

    Args:
        run_dir: the run's folder.
        list_sessions: the ids of the sessions of a step's batch.
        loss_limit: a step's loss above it counts as diverged, as does one that is no number.
        skip: whether to go back to the last checkpoint and leave the batch out; else stop.
        most: batches left out at most in the whole run.
        write: whether this process is the one that writes the lists.

    Raises:
        InputError: the file is not such a list.
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
        """Steps, from 0, that are not taken."""
        return [int(batch["step"]) for batch in self._batches]

    def leave_out(self, step: int, last: pathlib.Path | None) -> str:
        """Leaves out the batch of a step whose loss diverged; returns what to log.

        Args:
            step: the step, from 0.
            last: the last good checkpoint.

        Raises:
            TrainingError: it may not be left out.
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
    """Steps that were taken without a stop between them.

    Attributes:
        step: the step after them, from the start of the run.
        taken: how many they are.
        seconds: how long they took, their input included.
        metrics: what `Trainer.train` returns of them.
    """

    step: int
    taken: int
    seconds: float
    metrics: Scores


class Hook:
    """Something done between stretches of steps. A subclass says what of it, and when.

    A run calls `begin`; then, over and over, `at_boundary`, the steps up to the next boundary of
    any hook, and `after_stretch`; and `end` when the last step is taken. Of several hooks each is
    called in the order in which they were given.

    Attributes:
        every: steps between two boundaries, counted from the start of the run; 0 for none.
    """

    every = 0

    def begin(self, step: int, resumed: bool) -> None:
        """Called as the run starts at a step, by a checkpoint if it is resumed."""

    def next_boundary(self, step: int) -> int | None:
        """The next step at which the steps must be interrupted; None if that does not matter."""
        return (step // self.every + 1) * self.every if self.every else None

    def at_boundary(self, step: int, last: bool) -> None:
        """Called before each stretch, and once more after the last one."""

    def after_stretch(self, stretch: Stretch) -> None:
        """Called after each stretch in which a step was taken, unless it diverged."""

    def within_stretch(self, stretch: Stretch) -> None:
        """Called every few seconds with a stretch's steps so far, where a line can move."""

    def end(self, step: int) -> None:
        """Called when the last step is taken."""

    def is_due(self, step: int, last: bool) -> bool:
        """Whether a boundary is one of this hook's own; the last step is everyone's."""
        return last or step % self.every == 0


class Boundaries(Hook):
    """Interrupts the steps and does nothing.

    Args:
        every: steps between two boundaries.
    """

    def __init__(self, every: int):
        self.every = every


class Checkpoints(Hook):
    """Saves where the run is, and goes back to it.

    Args:
        store: writes and restores.
        every: steps between two checkpoints.
        keep_start: whether the start is saved too, for a run that may have to go back to it.
    """

    def __init__(self, store: CheckpointStore, every: int, keep_start: bool = False):
        self.every = every
        self.last: pathlib.Path | None = None
        self._store = store
        self._saved = -1
        self._keep_start = keep_start

    def clear_left_overs(self) -> None:
        """Deletes what writing left behind when it was cut off."""
        self._store.clear_left_overs()

    def restore(self) -> bool:
        """Restores the newest whole checkpoint, if there is any."""
        self.last = self._store.restore()
        if self.last:
            self._saved = step_of(self.last)
            logging.info("resumed from %s, step %d", self.last, self._saved)
        return self.last is not None

    def at_boundary(self, step: int, last: bool) -> None:
        if self.is_due(step, last):
            self.save(step)

    def save(self, step: int) -> None:
        """Saves a step, unless it is saved already."""
        if self._saved < step and (step > 0 or self._keep_start):
            self.last = self._store.save(step)
            self._saved = step
            logging.info("saved %s", self.last)


class ReadCheckpoints(Checkpoints):
    """The checkpoints of a run that another worker saves."""

    def clear_left_overs(self) -> None:
        """Leaves them to that worker."""

    def save(self, step: int) -> None:
        """Takes a step as saved: without that worker there is no next one."""


class Controller:
    """Drives a trainer through a run that may be cut off at any time.

    A checkpoint has the model, the optimizer with its step, and which step was evaluated last.
    Data and dropout come from the step, so a run that is resumed continues as if it had not
    stopped, and one that goes back to a checkpoint takes the same steps again.

    Args:
        trainer: the inner loop.
        start_at: makes the iterator over batches from a step on.
        checkpoints: saves; after the hooks, so that what they did is saved with the step.
        hooks: what else is done between the steps.
        steps: the last step.
        divergence: what to do about a loss that diverges.
        signals: what a stop is asked by, also of the trainer.
        several: whether other workers take the same steps. All then call the trainer alike, so
            nothing is shown within a stretch, and wait for each other at the end.
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
        """Trains to the last step, from the last checkpoint if there is one.

        Raises:
            TrainingError: the loss diverged.
            Stopped: a signal stopped it; where it is has been saved.
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
        """Waits for the other workers, who must be at the same step."""
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
        """Trains to the next boundary of a hook; returns the iterator over what comes next."""
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
        """After the step from `bad` to the next diverged: to the last checkpoint, without it."""
        message = self._divergence.leave_out(bad, self._checkpoints.last)
        self._checkpoints.restore()
        logging.warning("%s", message)
        return self._start_at(self.step)
