"""Whitening: maps embeddings to zero mean and identity covariance (Su et al. 2021)."""

import dataclasses

import numpy as np
from absl import logging

from dcse_tf.baselines.registry import BaselineSpec, Corpus, Fitted, FittedToEmbeddings
from dcse_tf.errors import InputError
from dcse_tf.options import option


@dataclasses.dataclass(frozen=True)
class WhiteningOptions(FittedToEmbeddings):
    """Settings of `kind`=whitening."""

    dimensions: int = option(
        0,
        "Dimensions to keep, those of largest variance. 0: all in which the embeddings vary.",
        minimum=0,
    )


# If embeddings vary in a direction by less than this share of their length, the variation is
# float32 rounding error. Every BERT has at least one such direction, because the outputs of a layer
# norm sum to a constant before scaling; all-MiniLM-L6-v2 has three constant coordinates.
_NOISE = 16 * float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class Directions:
    """The principal directions of embeddings.

    Attributes:
        mean: float64 `[dim]`.
        vectors: float64 `[dim, dim]`, one direction per column, by descending variance.
        variances: the variance in each direction, float64 `[dim]`.
        rank: number of directions in which the embeddings vary, the first ones.
    """

    mean: np.ndarray
    vectors: np.ndarray
    variances: np.ndarray
    rank: int

    def independent_coordinates(self) -> np.ndarray:
        """A set of `rank` coordinates, ascending; all others are affine functions of them."""
        dim = len(self.mean)
        if self.rank == dim:
            return np.arange(dim)
        import scipy.linalg  # takes a fifth of a second

        _, order = scipy.linalg.qr(self.vectors[:, self.rank :].T, mode="r", pivoting=True)
        return np.sort(order[dim - self.rank :])


def measure_directions(embeddings: np.ndarray, block_rows: int = 8192) -> Directions:
    """Singular value decomposition of the covariance (divisor n - 1).

    Args:
        embeddings: float `[sentences, dim]`; n sentences vary in at most n - 1 directions.
        block_rows: rows that are converted to float64 at a time.

    Raises:
        InputError: there are fewer than two sentences, all have one embedding, or a value is not
            finite.
    """
    count, dim = embeddings.shape
    if count < 2:
        raise InputError(f"expected two distinct sentences or more, found {count}")

    # In blocks, because converting all embeddings to float64 at once would triple the memory.
    blocks = [slice(start, start + block_rows) for start in range(0, count, block_rows)]
    mean = np.zeros(dim)
    for block in blocks:
        mean += embeddings[block].sum(axis=0, dtype=np.float64) / count
    if not np.isfinite(mean).all():
        raise InputError("an embedding is not a finite number: the encoder has diverged")

    covariance = np.zeros([dim, dim])
    for block in blocks:
        centred = embeddings[block].astype(np.float64) - mean
        covariance += centred.T @ centred / (count - 1)

    vectors, variances, _ = np.linalg.svd(covariance, hermitian=True)
    length = np.sqrt(np.trace(covariance) + mean @ mean)
    rank = min(int(np.sum(np.sqrt(variances) > _NOISE * length)), count - 1)
    if rank == 0:
        raise InputError("the embeddings of all sentences are the same: the encoder has collapsed")
    return Directions(mean, vectors, variances, rank)


@dataclasses.dataclass(frozen=True)
class WhiteningMap:
    """A whitening transform, which maps a row x to (x - mean) @ matrix.

    Attributes:
        mean: float64 `[dim]`.
        matrix: float64 `[dim, k]`, directions by descending variance.
        rank: number of directions in which the embeddings vary; k is at most that.
        explained: share of the variance in the k directions, 0 to 1.
    """

    mean: np.ndarray
    matrix: np.ndarray
    rank: int
    explained: float


def fit_whitening(embeddings: np.ndarray, dimensions: int = 0) -> WhiteningMap:
    """Fits W = U diag(1 / sqrt(s)) to the covariance U diag(s) U^T, in float64.

    Directions in which the embeddings do not vary cannot be inverted and are left out.

    Args:
        embeddings: float `[sentences, dim]`.
        dimensions: number of directions to keep, those of largest variance; 0 for all in which the
            embeddings vary.

    Raises:
        InputError: see `measure_directions`; or the embeddings vary in fewer directions than asked
            for.
    """
    found = measure_directions(embeddings)
    if dimensions > found.rank:
        raise InputError(
            f"`dimensions`={dimensions}: the embeddings of {len(embeddings)} sentences vary in "
            f"only {found.rank} of {len(found.mean)} directions"
        )

    kept = dimensions or found.rank
    matrix = found.vectors[:, :kept] / np.sqrt(found.variances[:kept])
    explained = float(found.variances[:kept].sum() / found.variances.sum())
    return WhiteningMap(found.mean, matrix, found.rank, explained)


def _fit(options: WhiteningOptions, corpus: Corpus) -> Fitted:
    embeddings = corpus.embeddings()
    fitted = fit_whitening(embeddings, options.dimensions)
    count, (dim, kept) = len(embeddings), fitted.matrix.shape
    if fitted.rank < dim:
        logging.info(
            "the embeddings of %d sentences vary in only %d of %d directions; the others cannot be "
            "whitened and are left out",
            count,
            fitted.rank,
            dim,
        )
    return Fitted(
        tensors={"mean": fitted.mean, "matrix": np.ascontiguousarray(fitted.matrix)},
        facts={"sentences": count, "rank": fitted.rank, "explained": fitted.explained},
        summary=f"whitening fitted to {count} sentences: {dim} to {kept} dimensions, which have "
        f"{100 * fitted.explained:.2f}% of the variance",
    )


def _make_layer(fitted: Fitted, dim: int):
    from dcse_tf.bert.sentence_modules import AffineMap
    from dcse_tf.matching.affine import AffineMaps

    mean, matrix = fitted.tensors["mean"], fitted.tensors["matrix"]
    if mean.shape != (dim,) or matrix.ndim != 2 or len(matrix) != dim:
        raise InputError(
            f"mean {list(mean.shape)} and matrix {list(matrix.shape)}, expected {dim} rows for an "
            f"encoder of {dim} dimensions"
        )
    # In float64, because the matrix magnifies small differences most.
    bias = np.zeros(matrix.shape[1], matrix.dtype)
    return AffineMaps([AffineMap(mean, matrix, bias)], name="whitening")


WHITENING = BaselineSpec(
    name="whitening",
    help="embeddings to zero mean and identity covariance, Su et al. 2021",
    options=WhiteningOptions,
    fit=_fit,
    make_layer=_make_layer,
)
