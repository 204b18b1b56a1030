"""The contrastive head: NT-Xent over one positive and its negatives."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="dcse_tf")
class NTXent(keras.layers.Layer):
    """-log softmax of the positive's similarity among the candidates' (paper, equation 8).

    Args:
        temperature: what similarities are divided by.
    """

    def __init__(self, temperature=0.1, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature

    def call(self, similarity, candidate_mask):
        """Computes the loss of every row.

        Args:
            similarity: float `[batch, candidates]`, column 0 the positive.
            candidate_mask: bool `[batch, candidates]`, True = a candidate.

        Returns:
            float `[batch]`.
        """
        # Below every real logit, a cosine over the temperature, by more than exp can hold.
        masked = ops.full((), -1e9, similarity.dtype)
        logits = ops.where(candidate_mask, similarity / self.temperature, masked)
        return ops.logsumexp(logits, axis=-1) - logits[:, 0]

    def compute_output_shape(self, similarity_shape, candidate_mask_shape):
        return similarity_shape[:1]

    def get_config(self):
        return {**super().get_config(), "temperature": self.temperature}
