"""Centering embeddings, also less their first components, and whitening them (Su et al. 2021)."""

import dataclasses

import numpy as np

from dcse_tf.baselines.registry import Fitted
from dcse_tf.errors import InputError

# If embeddings vary in a direction by less than this share of their length, the variation is
# float32 rounding error. Every BERT has at least one such direction, because the outputs of a layer
# norm sum to a constant before scaling; all-MiniLM-L6-v2 has three constant coordinates.
_NOISE = 16 * float(np.finfo(np.float32).eps)
_BLOCK_ROWS = 1024  # converted to float64 at a time: all at once would triple the memory


def fit_centering(embeddings: np.ndarray, components: int = 0) -> Fitted:
    """The mean of embeddings, and with `components` I - V V^T of as many first principal ones, both
    float32 (all-but-the-top, Mu and Viswanath 2018). InputError: too many, or as in whitening.
    """
    mean, count = _mean(embeddings), len(embeddings)
    tensors = {"mean": mean.astype(np.float32)}
    summary = f"the mean of {count} sentences is subtracted"
    if components:
        found = measure_directions(embeddings)
        if components >= found.rank:
            raise InputError(f"`components`={components}: expected at most {found.rank - 1}")
        top, share = found.vectors[:, :components], found.variances / found.variances.sum()
        tensors["matrix"] = (np.eye(len(mean)) - top @ top.T).astype(np.float32)
        summary += f", and {100 * share[:components].sum():.1f}% of their variance is removed"
    return Fitted(tensors, {"sentences": count}, summary)


def _mean(embeddings: np.ndarray) -> np.ndarray:
    mean = embeddings.mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():
        raise InputError("an embedding is not a finite number: the encoder has diverged")
    return mean


@dataclasses.dataclass(frozen=True)
class Directions:
    """The principal directions of embeddings, by descending variance."""

    mean: np.ndarray  # float64 [dim]
    vectors: np.ndarray  # float64 [dim, dim], one direction per column
    variances: np.ndarray  # float64 [dim], the variance in each direction
    rank: int  # the number of directions in which the embeddings vary

    def independent_coordinates(self) -> np.ndarray:
        """A set of `rank` coordinates, ascending; all others are affine functions of them."""
        import scipy.linalg  # takes a fifth of a second

        scaled = self.vectors * np.sqrt(self.variances)
        _, order = scipy.linalg.qr(scaled[:, : self.rank].T, mode="r", pivoting=True)
        return np.sort(order[: self.rank])


def measure_directions(embeddings: np.ndarray) -> Directions:
    """Singular value decomposition of the covariance (divisor n - 1) of embeddings, float
    `[sentences, dim]`, in float64; n sentences vary in at most n - 1 directions. Raises InputError
    if there are fewer than two sentences, all have one embedding, or a value is not finite.
    """
    count = len(embeddings)
    if count < 2:
        raise InputError(f"expected two distinct sentences or more, found {count}")
    mean = _mean(embeddings)
    blocks = (embeddings[i : i + _BLOCK_ROWS] - mean for i in range(0, count, _BLOCK_ROWS))
    covariance = sum(block.T @ block for block in blocks) / (count - 1)
    vectors, variances, _ = np.linalg.svd(covariance, hermitian=True)
    noise = _NOISE**2 * (np.trace(covariance) + mean @ mean)
    rank = min(int(np.sum(variances > noise)), count - 1)
    if rank == 0:
        raise InputError("the embeddings of all sentences are the same: the encoder has collapsed")
    return Directions(mean, vectors, variances, rank)


def fit_whitening(embeddings: np.ndarray, dimensions: int = 0) -> Fitted:
    """Fits x -> (x - mean) W, W = U diag(1 / sqrt(s)), to the covariance U diag(s) U^T, without
    directions in which the embeddings do not vary. W is float64 `[dim, k]`, because it magnifies
    small differences most. For errors see `measure_directions`.
    """
    found = measure_directions(embeddings)
    count, dim = embeddings.shape
    kept = dimensions or found.rank
    if kept > found.rank:
        raise InputError(f"`dimensions`={kept}: {count} embeddings vary in {found.rank} directions")
    matrix = found.vectors[:, :kept] / np.sqrt(found.variances[:kept])
    explained = float(found.variances[:kept].sum() / found.variances.sum())
    return Fitted(
        tensors={"mean": found.mean, "matrix": np.ascontiguousarray(matrix)},
        facts={"sentences": count, "rank": found.rank, "explained": explained},
        summary=f"whitening fitted to {count} sentences: {dim} to {kept} dimensions, of "
        f"{found.rank} that vary, with {100 * explained:.2f}% of the variance",
    )


def make_affine_layer(fitted: Fitted, dim: int):
    """A Keras layer that maps x, float `[n, dim]`, to (x - mean) @ matrix, in their type; without a
    matrix to x - mean. Raises InputError if it was fitted to embeddings of another dimension.
    """
    from dcse_tf.bert.sentence_modules import AffineMap
    from dcse_tf.matching.heads import AffineMaps

    mean = fitted.tensors["mean"]
    matrix = fitted.tensors.get("matrix", np.eye(len(mean), dtype=mean.dtype))
    if mean.shape != (dim,) or matrix.ndim != 2 or len(matrix) != dim:
        found = f"mean {list(mean.shape)} and matrix {list(matrix.shape)}"
        raise InputError(f"{found}, expected {dim} rows for an encoder of {dim} dimensions")
    return AffineMaps([AffineMap(mean, matrix, np.zeros(matrix.shape[1], matrix.dtype))])
