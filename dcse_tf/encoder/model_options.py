"""Settings of all jobs that run a trained encoder."""

import dataclasses

from dcse_tf.bert.options import EncoderOptions
from dcse_tf.options import option


@dataclasses.dataclass(frozen=True)
class ModelOptions(EncoderOptions):
    """Which encoder, and how it is run."""

    model: str = option(
        "",
        "Encoder: a folder, a hub name, package:NAME, a run directory or an export.",
        required=True,
        path="reads",
        on_cluster=True,
    )
    batch_tokens: int = option(
        2048,
        "Tokens encoded at a time, including padding. Sentences of similar length are batched "
        "together. For a SavedModel export, which tokenises internally, four bytes of text "
        "count as a token. A static export takes more at once.",
        minimum=1,
    )
    compute_dtype: str = option(
        "float32",
        "Type that the encoder computes in; embeddings are float32 in either case. bfloat16 "
        "is faster on processors that support it (avx512_bf16 or amx_bf16 in /proc/cpuinfo); "
        "the mean cosine with float32's embeddings is above 0.999. An export computes in the "
        "type it was written in, int8 if it was quantised.",
        choices=("float32", "bfloat16"),
    )
    truncate_dim: int = option(
        0,
        "Keep only this many dimensions of each embedding, the first ones, which training "
        "with Matryoshka losses makes the best. Matching, which compares token embeddings, "
        "always uses all. 0: all.",
        minimum=1,
        or_zero=True,
    )
