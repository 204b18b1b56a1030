"""Settings of `embed` and `export`."""

import dataclasses

from dcse_tf.config.base import option
from dcse_tf.config.encoder import EncoderOptions, ModelOptions


@dataclasses.dataclass(frozen=True)
class EmbedConfig(ModelOptions):
    """Embeds a file of sentences."""

    input: str = option("", "Text file, one sentence a line, UTF-8; plain or .gz.", required=True)
    output: str = option(
        "", "NumPy file to write: float32 [lines, dim], in the order of the lines.", required=True
    )


@dataclasses.dataclass(frozen=True)
class ExportConfig(EncoderOptions):
    """Writes a trained encoder in a form that can be served."""

    run_dir: str = option(
        "",
        "What to export: a run directory, or any checkpoint (a folder, a hub name, package:NAME).",
        required=True,
    )
    output_dir: str = option(
        "", "Folder to write; it appears only when it is complete.", required=True
    )
    format: str = option(
        "saved_model",
        "saved_model: a TensorFlow SavedModel whose serving signature takes strings.",
        choices=("saved_model",),
    )
    overwrite: bool = option(False, "Replace --output_dir if it exists.")
