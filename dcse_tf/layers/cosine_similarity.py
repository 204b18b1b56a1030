"""Cosine similarity of paired embeddings."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="dcse_tf")
class CosineSimilarity(keras.layers.Layer):
    """Cosine along the last axis; a zero vector has cosine 0 with everything.

    Give it dtype="float32" under mixed precision: in bfloat16 a cosine has two or three digits.
    """

    def call(self, first, second):
        """Args: first, second: float `[..., dim]`. Returns: float `[...]`."""
        product = ops.sum(first * second, axis=-1)
        squares = ops.sum(first * first, axis=-1) * ops.sum(second * second, axis=-1)
        # The floor keeps the gradient finite at zero; R_tilde is cubic in the embeddings, so
        # honest squares are far above it.
        return product * ops.rsqrt(ops.maximum(squares, ops.full((), 1e-24, squares.dtype)))

    def compute_output_shape(self, first_shape, second_shape):
        return first_shape[:-1]
