"""Settings of `embed` and `export`."""

import dataclasses

from dcse_tf.config.base import Options, option
from dcse_tf.config.evaluate import POOLING_HELP


@dataclasses.dataclass(frozen=True)
class EmbedConfig(Options):
    """Embeds a file of sentences."""

    model: str = option(
        "",
        "Encoder: a folder, a hub name, package:NAME, a run directory or an export.",
        required=True,
    )
    input: str = option("", "Text file, one sentence a line, UTF-8; plain or .gz.", required=True)
    output: str = option(
        "", "NumPy file to write: float32 [lines, dim], in the order of the lines.", required=True
    )
    pooling: str = option("mean", POOLING_HELP, choices=("mean", "cls"))
    max_sequence_length: int = option(
        0,
        "Longest sentence, in tokens. 0: what the encoder was trained with, or else 128.",
        minimum=0,
    )
    batch_size: int = option(64, "Sentences encoded at a time.", minimum=1)


@dataclasses.dataclass(frozen=True)
class ExportConfig(Options):
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
    pooling: str = option("mean", POOLING_HELP, choices=("mean", "cls"))
    max_sequence_length: int = option(
        0,
        "Longest sentence, in tokens. 0: what the encoder was trained with, or else 128.",
        minimum=0,
    )
    overwrite: bool = option(False, "Replace --output_dir if it exists.")
