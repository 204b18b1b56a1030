"""Affine maps of sentence embeddings as a Keras layer, with a ReLU behind some of them."""

from collections.abc import Sequence

import keras
from keras import ops

from dcse_tf.bert.sentence_modules import AffineMap


class AffineMaps(keras.layers.Layer):
    """Applies affine maps to embeddings `[n, dim]`, one after another.

    Used for sentence-transformers' Dense modules, projection heads and whitening. Each map is
    computed in the dtype of its matrix.

    Args:
        maps: the maps in order, at least one.
    """

    def __init__(self, maps: Sequence[AffineMap], **kwargs):
        super().__init__(trainable=False, autocast=False, **kwargs)
        self.maps = tuple(maps)

    def call(self, embeddings):
        for step in self.maps:
            embeddings = ops.cast(embeddings, step.matrix.dtype.name)
            embeddings = ops.matmul(embeddings - step.shift, step.matrix) + step.bias
            embeddings = ops.relu(embeddings) if step.relu else embeddings
        return embeddings
