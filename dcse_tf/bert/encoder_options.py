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
        "",
        'Text put before every sentence, such as "query: " for E5. Default: the model\'s own.',
    )
    max_sequence_length: int = option(
        0,
        "Longest sentence in tokens. 0: as the encoder was trained, or else 128.",
        minimum=3,
        or_zero=True,
    )
