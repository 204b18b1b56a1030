"""The embedding job."""

import pathlib

import numpy as np

from dcse_tf.atomic import atomic_file
from dcse_tf.config import EmbedConfig
from dcse_tf.errors import InputError
from dcse_tf.export.load import load_encoder
from dcse_tf.input_files import read_bare_lines
from dcse_tf.progress import Progress


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
    progress = Progress("distinct sentences")
    embeddings = encoder.encode(sentences, progress.update)
    with atomic_file(pathlib.Path(config.output)) as partial, partial.open("wb") as file:
        np.save(file, embeddings)
    return embeddings.shape
