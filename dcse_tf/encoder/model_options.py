"""Settings of all jobs that run a trained encoder."""

from dcse_tf.bert.encoder_options import EncoderOptions
from dcse_tf.options import option


class ModelOptions(EncoderOptions):
    """Which encoder, and how it is run."""

    model: str = option(
        "",
        "Encoder: a folder, a hub name, package:NAME, a run directory or an export.",
        required=True,
        path="reads",
    )
    batch_tokens: int = option(
        2048,
        "Tokens encoded at a time, including padding; in a SavedModel, four bytes are a token.",
        minimum=1,
    )
    compute_dtype: str = option(
        "float32",
        "Type that a checkpoint computes in; embeddings are float32. bfloat16 is faster on "
        "processors that have it (avx512_bf16 or amx_bf16 in /proc/cpuinfo), to a cosine of 0.999.",
        choices=("float32", "bfloat16"),
    )
    truncate_dim: int = option(
        0,
        "Keep the first dimensions of embeddings alone, as Matryoshka losses train. 0: all.",
        minimum=1,
        or_zero=True,
    )
