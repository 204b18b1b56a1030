"""Affine maps of sentence embeddings: whitening, and the Dense modules of sentence-transformers."""

import dataclasses

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class AffineMap:
    """x to (x - shift) @ matrix + bias, computed in the type of the matrix.

    Whitening needs float64: its matrix magnifies the smallest differences most.

    Attributes:
        shift: float `[dim]`.
        matrix: float `[dim, k]`.
        bias: float `[k]`.
    """

    shift: np.ndarray
    matrix: np.ndarray
    bias: np.ndarray

    def __call__(self, embeddings: tf.Tensor) -> tf.Tensor:
        """Maps float `[n, dim]` to `[n, k]`."""
        x = tf.cast(embeddings, self.matrix.dtype)
        return tf.matmul(x - self.shift.astype(self.matrix.dtype), self.matrix) + self.bias


@dataclasses.dataclass(frozen=True)
class AffineMaps:
    """Maps that are applied one after another, `[n, dim]` to `[n, k]` of the last.

    Attributes:
        name: what they are, for people to read.
        maps: at least one.
    """

    name: str
    maps: tuple[AffineMap, ...]

    def __call__(self, embeddings: tf.Tensor) -> tf.Tensor:
        for step in self.maps:
            embeddings = step(embeddings)
        return embeddings
