"""Settings of every job that uses a trained encoder."""

import dataclasses

from dcse_tf.config.base import Options, option


@dataclasses.dataclass(frozen=True)
class EncoderOptions(Options):
    """How sentences become embeddings."""

    pooling: str = option(
        "mean",
        "Sentence embedding: mean of the last layer over real tokens, or its [CLS] token.",
        choices=("mean", "cls"),
    )
    max_sequence_length: int = option(
        0,
        "Longest sentence, in tokens. 0: what the encoder was trained with, or else 128.",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class ModelOptions(EncoderOptions):
    """Which encoder, and how it is run."""

    model: str = option(
        "",
        "Encoder: a folder, a hub name, package:NAME, a run directory or an export.",
        required=True,
    )
    batch_size: int = option(64, "Sentences encoded at a time.", minimum=1)
