"""Centering: embeddings minus the mean over the utterances of a corpus."""

import dataclasses

import numpy as np

from dcse_tf.baselines.registry import BaselineSpec, Fitted, FittedToEmbeddings
from dcse_tf.baselines.whitening import make_affine_layer
from dcse_tf.errors import InputError


@dataclasses.dataclass(frozen=True)
class CenteringOptions(FittedToEmbeddings):
    """Settings of `kind`=centering."""

    # The standard error of a coordinate's mean is then a hundredth of its standard deviation.
    max_sentences: int = 10_000


def fit_centering(embeddings: np.ndarray) -> Fitted:
    """The mean of embeddings, float32 `[dim]`.

    Raises:
        InputError: a value is not finite.
    """
    mean = embeddings.mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():
        raise InputError("an embedding is not a finite number: the encoder has diverged")
    lengths = np.linalg.norm(embeddings, axis=1).mean(dtype=np.float64)
    share = float(np.linalg.norm(mean) / lengths) if lengths else 0.0
    count = len(embeddings)
    return Fitted(
        tensors={"mean": mean.astype(np.float32)},
        facts={"sentences": count, "mean_length": share},
        summary=f"the mean of {count} sentences is subtracted; its length is {share:.2f} of theirs",
    )


CENTERING = BaselineSpec(
    name="centering",
    help="embeddings less the mean of the corpus' utterances",
    options=CenteringOptions,
    fit=lambda options, corpus: fit_centering(corpus.embeddings()),
    make_layer=make_affine_layer,
)
