"""Options shared by all jobs that use a trained encoder: how sentences become embeddings."""

import dataclasses

from dcse_tf.options import Options, option

# The sides of a dialogue that training can give a projection head, see `projection_dim`.
SIDES = ("context", "response")


@dataclasses.dataclass(frozen=True)
class EncoderOptions(Options):
    """How sentences become embeddings."""

    pooling: str = option(
        "",
        "Sentence embedding: the mean of the last layer over real tokens, or its [CLS] token. "
        "Default: the model's own, as a sentence-transformers model or a baseline was made, "
        "or else the mean.",
        choices=("", "mean", "cls"),
    )
    projection: str = option(
        "",
        "Embed behind a projection head of a training with `projection_dim`: context, for "
        "utterances to answer, or response, for responses. The cosine of the two says how well a "
        "response fits. Default: no head.",
        choices=("", *SIDES),
    )
    prefix: str = option(
        "",
        'Text put before every sentence, such as "query: " for E5. Default: the model\'s own, '
        "that is its default prompt (config_sentence_transformers.json) or the prefix of its "
        "corpus.",
    )
    max_sequence_length: int = option(
        0,
        "Longest sentence, in tokens including [CLS] and [SEP]. 0: as the encoder was "
        "trained, or else 128.",
        minimum=3,
        or_zero=True,
    )
