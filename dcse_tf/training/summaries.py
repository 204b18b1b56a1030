"""What TensorBoard shows of a run."""

import pathlib

import tensorflow as tf


class SummaryWriter:
    """Writes scalars and texts, each at a step, flushed at once so that a page shows them."""

    def __init__(self, folder: pathlib.Path):
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
