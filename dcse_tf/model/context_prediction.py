"""What stands around an utterance, predicted from the utterance alone.

For each place around it a head of its own predicts the embedding, by the encoder as it was at the
start, of the turn that stands there. What the heads can predict, the utterance's embedding must
hold: which question it answers, and what follows from it (compare Kiros et al. 2015, "Skip-Thought
Vectors"). Unlike a contrast of an utterance with its context this does not give the two one vector.
The heads are thrown away after training.
"""

from collections.abc import Sequence

import keras
from keras import ops

from dcse_tf.model.matching import masked_mean, unit


@keras.saving.register_keras_serializable(package="dcse_tf")
class ContextPrediction(keras.layers.Layer):
    """1 - cosine of the turns around an utterance and what is predicted of them.

    Give it dtype="float32" under mixed precision.

    Args:
        slots: which slots of a context are predicted, counted from 0; each has a head of its own.
        rate: how many times the learning rate the heads learn at, see `ProjectionHead`.
    """

    def __init__(self, slots: Sequence[int], rate=1.0, **kwargs):
        super().__init__(**kwargs)
        self.slots = list(slots)
        self.rate = rate

    def build(self, table_shape):
        dim = table_shape[-1]

        def identities(shape, dtype=None):
            # At first each turn is predicted to be like the utterance itself.
            return ops.broadcast_to(ops.eye(dim, dtype=dtype) / self.rate, shape)

        self.kernel = self.add_weight(
            shape=(len(self.slots), dim, dim), initializer=identities, name="kernel"
        )
        self.bias = self.add_weight(shape=(len(self.slots), dim), initializer="zeros", name="bias")

    def call(self, table, table_before, padding_mask, response, context_index, turn_mask):
        """Compares what is predicted with what stands there.

        Args:
            table, table_before: float `[utterances, tokens, dim]`, by the encoder that is trained,
                and as it was.
            padding_mask: bool `[utterances, tokens]`, True = real token.
            response: int32 `[batch]` into the table.
            context_index: int32 `[batch, turns]` into the table, the turns around each.
            turn_mask: bool `[batch, turns]`, True = real turn.

        Returns:
            float `[batch]`, the mean over the real turns among those predicted; from 0 to 2.
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
