"""Options shared by all jobs that use a trained encoder: how sentences become embeddings."""

from dcse_tf.options import Options, option

# The sides of a dialogue that training can give a projection head, see `projection_dim`.
SIDES = ("context", "response")


class EncoderOptions(Options):
    """How sentences become embeddings."""

    pooling: str = option(
        "",
        "Sentence embedding: the mean over real tokens, or [CLS]. Default: the model's own.",
        choices=("", "mean", "cls"),
    )
    projection: str = option(
        "",
        "Embed behind the projection head of contexts or of responses. Default: no head.",
        choices=("", *SIDES),
    )
    prefix: str = option(
        "", 'Text put before every sentence, such as "query: " for E5. Default: the model\'s own.'
    )
    max_sequence_length: int = option(
        0,
        "Longest sentence in tokens. 0: as the encoder was trained, or else 128.",
        minimum=3,
        or_zero=True,
    )


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
