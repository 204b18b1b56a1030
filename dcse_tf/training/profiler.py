"""A trace of some steps, for the Profile page of TensorBoard."""

import pathlib

import tensorflow as tf
from absl import logging

# Steps before the trace: the first ones build graphs and fill buffers.
_WARM_UP = 10


class StepProfiler:
    """Traces steps of a run; driven by the outer loop.

    Args:
        folder: of the summaries, under which the trace goes.
        first_step: where this start of the run begins.
        num_steps: how many steps to trace; 0 for none.
    """

    def __init__(self, folder: pathlib.Path, first_step: int, num_steps: int):
        self._folder = folder
        self._begin = first_step + _WARM_UP
        self._end = self._begin + num_steps
        self._running = False

    def boundaries(self, step: int) -> list[int]:
        """The steps after `step` before which the trace begins or ends."""
        if self._begin == self._end:
            return []
        return [boundary for boundary in (self._begin, self._end) if boundary > step]

    def before(self, step: int) -> None:
        """Begins or ends the trace if it is time; `step` steps are done."""
        if step == self._begin < self._end:
            tf.profiler.experimental.start(str(self._folder))
            self._running = True
        elif step >= self._end:
            self.stop()

    def stop(self) -> None:
        """Ends a trace that has begun, and says where it lies."""
        if self._running:
            tf.profiler.experimental.stop()
            self._running = False
            logging.info("trace of the steps: %s", self._folder / "plugins" / "profile")
