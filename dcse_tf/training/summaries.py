"""Writes a run's scalars, texts and hyperparameters for TensorBoard."""

import contextlib
import pathlib
from collections.abc import Iterator

import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams_api
from tensorboard.plugins.hparams import api_pb2, summary

from dcse_tf.errors import OutputError, first_line


class SummaryWriter:
    """Writes summaries, flushing each one so that TensorBoard can show it immediately.

    Every method raises OutputError if its summary cannot be written.

    Args:
        folder: where the event files are written.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self._writer = tf.summary.create_file_writer(str(folder))

    @contextlib.contextmanager
    def _writing(self, step: int) -> Iterator[None]:
        try:
            with self._writer.as_default(step=step):
                yield
            self._writer.flush()
        except tf.errors.OpError as error:
            raise OutputError(
                f"{self.folder}: summaries cannot be written: {first_line(error)}"
            ) from error

    def scalars(self, prefix: str, values: dict[str, float], step: int) -> None:
        with self._writing(step):
            for name, value in values.items():
                tf.summary.scalar(f"{prefix}/{name}", value)

    def text(self, name: str, content: str, step: int) -> None:
        with self._writing(step):
            tf.summary.text(name, content)

    def begin_session(self, settings: dict[str, bool | int | float | str], name: str) -> None:
        """Writes the run's settings for the table of hyperparameters.

        Args:
            settings: the settings; each is a column.
            name: names the run's row; runs with the same name share one row.
        """
        with self._writing(0):
            hparams_api.hparams(settings, trial_id=name)

    def end_session(self) -> None:
        """Marks the run as finished in the table of hyperparameters."""
        ended = summary.session_end_pb(api_pb2.STATUS_SUCCESS)
        with self._writing(0):
            tf.summary.experimental.write_raw_pb(ended.SerializeToString(), step=0)
