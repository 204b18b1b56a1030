"""The export job."""

import pathlib

from dcse_tf.atomic import atomic_directory
from dcse_tf.config import ExportConfig
from dcse_tf.export.load import load_sentence_encoder
from dcse_tf.export.saved_model import write_saved_model


def export(config: ExportConfig) -> None:
    """Writes a trained encoder in the format asked for.

    Raises:
        InputError: there is nothing to export.
        FileExistsError: the output exists and may not be replaced.
    """
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        encoder = load_sentence_encoder(
            config.run_dir, "run_dir", config.max_sequence_length, config.pooling
        )
        settings = {**config.to_dict(), "max_sequence_length": encoder.max_sequence_length}
        write_saved_model(folder, encoder, settings)
