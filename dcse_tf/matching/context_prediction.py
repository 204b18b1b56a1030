"""Predicts the turns around an utterance from the utterance alone.

For each position around the utterance, a separate head predicts the starting encoder's embedding of
the turn there. The utterance's embedding must contain what the heads predict: which question it
answers, and what follows from it (compare Kiros et al. 2015, "Skip-Thought Vectors"). Unlike a
contrast of an utterance with its context, this does not make the two similar. The heads are
discarded after training.
"""

from collections.abc import Sequence

import keras
from keras import ops

from dcse_tf.matching.matching import masked_mean, unit


@keras.saving.register_keras_serializable(package="dcse_tf")
class ContextPrediction(keras.layers.Layer):
    """1 - cosine of the predicted and the actual embeddings of the turns around an utterance.

    Under mixed precision, give it dtype="float32".

    Args:
        slots: the slots of a context to predict, counted from 0; each has a head of its own.
        rate: the heads' learning rate as a multiple of the optimizer's, see `ProjectionHead`.
    """

    def __init__(self, slots: Sequence[int], rate=1.0, **kwargs):
        super().__init__(**kwargs)
        self.slots = list(slots)
        self.rate = rate

    def build(self, table_shape):
        dim = table_shape[-1]

        def identities(shape, dtype=None):
            # Initially, each turn is predicted to have the utterance's own embedding.
            return ops.broadcast_to(ops.eye(dim, dtype=dtype) / self.rate, shape)

        self.kernel = self.add_weight(
            shape=(len(self.slots), dim, dim), initializer=identities, name="kernel"
        )
        self.bias = self.add_weight(shape=(len(self.slots), dim), initializer="zeros", name="bias")

    def call(self, table, table_before, padding_mask, response, context_index, turn_mask):
        """Computes the loss of every utterance.

        Args:
            table, table_before: float `[utterances, tokens, dim]`, encoded by the trained encoder
                and by the initial one.
            padding_mask: bool `[utterances, tokens]`, True = real token.
            response: int32 `[batch]`, places of the utterances in the table.
            context_index: int32 `[batch, turns]`, places of the turns around each in the table.
            turn_mask: bool `[batch, turns]`, True = real turn.

        Returns:
            float `[batch]`, the mean over the real turns among `slots`, from 0 to 2; 0 without any.
        """
        predicted = unit(ops.take(masked_mean(table, padding_mask), response, axis=0))
        predicted = ops.einsum("bd,sde->bse", predicted, self.rate * self.kernel)
        predicted = unit(predicted + self.rate * self.bias)
        there = unit(masked_mean(table_before, padding_mask))
        turns = ops.take(context_index, self.slots, axis=1)
        cosine = ops.sum(predicted * ops.take(there, turns, axis=0), axis=-1)
        real = ops.cast(ops.take(turn_mask, self.slots, axis=1), cosine.dtype)
        # A row may have none of these turns.
        return ops.sum((1.0 - cosine) * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1.0)

    def compute_output_shape(
        self,
        table_shape,
        table_before_shape,
        padding_mask_shape,
        response_shape,
        context_index_shape,
        turn_mask_shape,
    ):
        return response_shape

    def get_config(self):
        return {**super().get_config(), "slots": self.slots, "rate": self.rate}
