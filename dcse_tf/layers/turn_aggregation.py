"""Turn aggregation I2: the context-aware embedding as a mean over the turns."""

import keras
from keras import ops

from dcse_tf.layers.masked_mean_pooling import masked_mean


@keras.saving.register_keras_serializable(package="dcse_tf")
class TurnAggregation(keras.layers.Layer):
    """Averages refined embeddings over their tokens, then over the real turns (equation 7, I2).

    The paper averages matrices over turns and pools the result; with utterances of different
    lengths every turn is pooled over its own real tokens first, so that each counts the same.
    """

    def call(self, refined, context_padding_mask, turn_mask):
        """Computes the pooled R_tilde.

        Args:
            refined: float `[batch, candidates, turns, context_tokens, dim]`, R_hat.
            context_padding_mask: bool `[batch, turns, context_tokens]`, True = real token.
            turn_mask: bool `[batch, turns]`, True = real turn.

        Returns:
            float `[batch, candidates, dim]`.
        """
        # Masks get the axes of the candidates, over which they do not differ.
        turns = masked_mean(refined, ops.expand_dims(context_padding_mask, 1))
        return masked_mean(turns, ops.expand_dims(turn_mask, 1))

    def compute_output_shape(self, refined_shape, context_padding_mask_shape, turn_mask_shape):
        batch, candidates, _, _, dim = refined_shape
        return (batch, candidates, dim)
