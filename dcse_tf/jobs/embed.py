"""The embedding job."""

import pathlib
import time

import numpy as np
from absl import logging

from dcse_tf.config import EmbedConfig
from dcse_tf.errors import InputError
from dcse_tf.export.load import load_encoder
from dcse_tf.input_files import read_bare_lines

_REPORT_SECONDS = 10.0


def embed(config: EmbedConfig) -> tuple[int, ...]:
    """Embeds every line of a file, blank ones too, so that row and line numbers agree.

    Returns:
        The shape of the array written, (lines, dim).

    Raises:
        InputError: the model or the input cannot be used.
    """
    sentences = read_bare_lines(pathlib.Path(config.input))
    if not sentences:
        raise InputError(f"--input={config.input}: no lines")
    encoder = load_encoder(
        config.model, "model", config.max_sequence_length, config.pooling, config.batch_size
    )
    started = reported = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal reported
        now = time.monotonic()
        if now - reported > _REPORT_SECONDS or done == total:
            reported = now
            rate = done / (now - started)
            logging.info("%d of %d distinct sentences, %.0f a second", done, total, rate)

    embeddings = encoder.encode(sentences, progress)
    output = pathlib.Path(config.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(output.name + ".partial")
    with partial.open("wb") as file:
        np.save(file, embeddings)
    partial.replace(output)
    return embeddings.shape
