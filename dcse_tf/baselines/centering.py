"""Centering: embeddings minus the mean over the utterances of a corpus."""

import dataclasses

import numpy as np

from dcse_tf.baselines.registry import BaselineSpec, Fitted, FittedToEmbeddings
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


def _make_layer(fitted: Fitted, dim: int):
    from dcse_tf.bert.sentence_modules import AffineMap
    from dcse_tf.matching.affine import AffineMaps

    mean = fitted.tensors["mean"]
    if mean.shape != (dim,):
        raise InputError(f"mean {list(mean.shape)}, expected [{dim}]")
    # An affine map, because every export format supports these.
    identity, nothing = np.eye(dim, dtype=mean.dtype), np.zeros(dim, mean.dtype)
    return AffineMaps([AffineMap(mean, identity, nothing)], name="centering")


CENTERING = BaselineSpec(
    name="centering",
    help="embeddings less the mean of the corpus' utterances",
    options=CenteringOptions,
    fit=lambda options, corpus: fit_centering(corpus.embeddings()),
    make_layer=_make_layer,
)
