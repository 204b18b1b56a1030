"""What the loop writes for TensorBoard: scalars, texts, profiles."""

import pathlib
from typing import Protocol

import tensorflow as tf
from absl import logging
from tensorboard.plugins.hparams import api as hparams_api
from tensorboard.plugins.hparams import api_pb2, summary

# What the table of hyperparameters can show.
Setting = bool | int | float | str


class SummaryWriter:
    """Writes scalars, texts and so on, each at a step, flushed at once so that a page shows them.

    Args:
        folder: where the events go.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self._writer = tf.summary.create_file_writer(str(folder))

    def scalars(self, prefix: str, values: dict[str, float], step: int) -> None:
        with self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(f"{prefix}/{name}", value)
        self._writer.flush()

    def text(self, name: str, content: str, step: int) -> None:
        with self._writer.as_default(step=step):
            tf.summary.text(name, content)
        self._writer.flush()

    def image(self, name: str, png: bytes, step: int) -> None:
        """Writes one image, a PNG file as it is."""
        with self._writer.as_default(step=step):
            pixels = tf.io.decode_png(png, channels=3)
            tf.summary.image(name, pixels[tf.newaxis])
        self._writer.flush()

    def begin_session(self, settings: dict[str, Setting], name: str) -> None:
        """Says for the table of hyperparameters what the run is made with.

        Args:
            settings: a column each.
            name: of the run's row; runs of one name become one row.
        """
        with self._writer.as_default(step=0):
            hparams_api.hparams(settings, trial_id=name)
        self._writer.flush()

    def end_session(self) -> None:
        """Says for the table of hyperparameters that the run is done."""
        ended = summary.session_end_pb(api_pb2.STATUS_SUCCESS)
        with self._writer.as_default(step=0):
            tf.summary.experimental.write_raw_pb(ended.SerializeToString(), step=0)
        self._writer.flush()


class Showcase(Protocol):
    """What a run shows besides its figures. Nothing that is learnt depends on it."""

    def begin(self, summaries: SummaryWriter) -> None:
        """Called as the run starts, also when it is started again."""

    def kept(self, summaries: SummaryWriter, scores: dict[str, float], step: int) -> None:
        """Called when the encoder as it is has been kept as the best; `scores` are its own."""

    def evaluated(self, summaries: SummaryWriter, step: int) -> None:
        """Called after each evaluation."""

    def end(self, summaries: SummaryWriter) -> None:
        """Called when the last step is taken and evaluated."""


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
