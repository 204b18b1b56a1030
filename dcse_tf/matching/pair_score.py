"""The network of the Siamese baselines, which scores pairs of embeddings."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="dcse_tf")
class PairScore(keras.layers.Layer):
    """Scores pairs with a two-layer network on [u, v, |u - v|] (paper, SiameseBERT).

    The first layer, as wide as the embeddings and with a ReLU, is linear in its three inputs before
    the ReLU. So W_u u and W_v v are computed once for each sentence, and only |u - v| for each
    pair.

    Args:
        by_row: whether to compute the pairs of one context at a time, and again for the gradient:
            memory then grows as candidates x dim instead of batch x candidates x dim.
    """

    def __init__(self, by_row=False, **kwargs):
        super().__init__(**kwargs)
        self.by_row = by_row

    def build(self, context_shape, sentences_shape, candidate_index_shape):
        dim = context_shape[-1]
        kernel = {"shape": (dim, dim), "initializer": keras.initializers.TruncatedNormal(0.0, 0.02)}
        self.context_kernel = self.add_weight(name="context_kernel", **kernel)
        self.candidate_kernel = self.add_weight(name="candidate_kernel", **kernel)
        self.difference_kernel = self.add_weight(name="difference_kernel", **kernel)
        self.bias = self.add_weight(name="bias", shape=(dim,), initializer="zeros")
        self.output_kernel = self.add_weight(name="output_kernel", **{**kernel, "shape": (dim, 1)})
        self.output_bias = self.add_weight(name="output_bias", shape=(1,), initializer="zeros")

    def call(self, context, sentences, candidate_index):
        """Scores the candidates of every row, and no other pairs.

        Args:
            context: float `[batch, dim]`, the u of every row.
            sentences: float `[sentences, dim]`, the embeddings of all sentences.
            candidate_index: int32 `[batch, candidates]`, indices of each row's v in `sentences`.

        Returns:
            float `[batch, candidates]`.
        """
        from_context = ops.matmul(context, self.context_kernel) + self.bias
        from_sentence = ops.matmul(sentences, self.candidate_kernel)
        # Passed as arguments, because `remat` does not track what a function closes over.
        kernels = (ops.convert_to_tensor(self.difference_kernel),
                   ops.convert_to_tensor(self.output_kernel))  # fmt: skip
        table = (sentences, from_sentence, *kernels)
        if not self.by_row:
            return _score(candidate_index, context, from_context, *table) + self.output_bias

        def score_row(row):
            index, *own = row
            # The index is in the closure, because `remat` differentiates all its arguments.
            return keras.remat(lambda *tensors: _score(index, *tensors))(*own, *table)

        return ops.map(score_row, (candidate_index, context, from_context)) + self.output_bias

    def compute_output_shape(self, context_shape, sentences_shape, candidate_index_shape):
        return tuple(candidate_index_shape)

    def get_config(self):
        return {**super().get_config(), "by_row": self.by_row}


def _score(index, context, from_context, sentences, from_sentence, kernel, output_kernel):
    """Scores contexts `[..., dim]` with their candidates, int32 `[..., candidates]`."""
    pairs = ops.abs(ops.expand_dims(context, -2) - ops.take(sentences, index, axis=0))
    linear = ops.expand_dims(from_context, -2) + ops.take(from_sentence, index, axis=0)
    hidden = ops.relu(linear + ops.matmul(pairs, kernel))
    return ops.squeeze(ops.matmul(hidden, output_kernel), -1)
