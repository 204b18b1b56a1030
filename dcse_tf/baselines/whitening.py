"""Whitening (Su et al. 2021) and how it is fitted."""

import dataclasses

import numpy as np
import scipy.linalg

from dcse_tf.errors import InputError
from dcse_tf.model.affine import AffineMap

_ROWS = 8192  # held as float64 at a time
# A direction in which embeddings vary by less than this part of their length is rounding of
# float32. Every BERT has one at least, for a layer norm's output adds up to a constant before it is
# scaled; all-MiniLM-L6-v2 has three coordinates that are constant.
_NOISE = 16 * float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class Directions:
    """The covariance of embeddings, taken apart.

    Attributes:
        mean: float64 `[dim]`.
        vectors: float64 `[dim, dim]`, a direction a column, the largest variance first.
        variances: float64 `[dim]`.
        rank: directions that vary, the first ones.
    """

    mean: np.ndarray
    vectors: np.ndarray
    variances: np.ndarray
    rank: int

    def independent_coordinates(self) -> np.ndarray:
        """As many coordinates as directions vary, ascending; the others are affine in them."""
        dim = len(self.mean)
        if self.rank == dim:
            return np.arange(dim)
        _, order = scipy.linalg.qr(self.vectors[:, self.rank :].T, mode="r", pivoting=True)
        return np.sort(order[dim - self.rank :])


def measure_directions(embeddings: np.ndarray) -> Directions:
    """Singular value decomposition of the covariance (divisor n - 1).

    Args:
        embeddings: float `[sentences, dim]`; of n sentences at most n - 1 directions vary.

    Raises:
        InputError: there are fewer than two sentences, all have one embedding, or a value is not
            finite.
    """
    count, dim = embeddings.shape
    if count < 2:
        raise InputError(f"expected two distinct sentences or more, found {count}")
    blocks = [slice(start, start + _ROWS) for start in range(0, count, _ROWS)]
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
class FittedWhitening:
    """A whitening, and how it was found.

    Attributes:
        map: in float64, from `[dim]` to `[k]`, the directions of largest variance first.
        rank: directions in which the embeddings vary; `k` is at most that.
        explained: share of the variance that the k directions have, 0 to 1.
    """

    map: AffineMap
    rank: int
    explained: float


def fit_whitening(embeddings: np.ndarray, dimensions: int = 0) -> FittedWhitening:
    """Fits W = U diag(1 / sqrt(s)) to the covariance U diag(s) U^T, in float64.

    Directions in which the embeddings do not vary have no inverse; they are left out.

    Args:
        embeddings: float `[sentences, dim]`.
        dimensions: of the result, the directions of largest variance; 0 for all that vary.

    Raises:
        InputError: see `measure_directions`; or fewer directions vary than are asked for.
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
    return FittedWhitening(make_whitening(found.mean, matrix), found.rank, explained)


def make_whitening(mean: np.ndarray, matrix: np.ndarray) -> AffineMap:
    """The map x to (x - mean) @ matrix."""
    return AffineMap(mean, matrix, np.zeros(matrix.shape[1], matrix.dtype))
