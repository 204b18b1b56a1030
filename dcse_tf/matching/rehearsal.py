"""Rehearsal: keeps the embeddings of garbled texts close to those of the starting encoder.

Learning one domain then costs less in others. The texts are utterances with random replacements,
see `dcse_tf.data.rehearsal`.
"""

import keras
from keras import ops

from dcse_tf.matching.matching import masked_mean, unit


def rehearsal_inputs() -> dict[str, keras.KerasTensor]:
    """Symbolic inputs for the rehearsed texts of a batch, see `dcse_tf.data.batch`."""
    return {
        "rehearsal_index": keras.Input((None,), dtype="int32", name="rehearsal_index"),
        "rehearsal_weights": keras.Input((), name="rehearsal_weights"),
    }


@keras.saving.register_keras_serializable(package="dcse_tf")
class RehearsalLoss(keras.layers.Layer):
    """1 - cosine of a text's mean embedding and that by the starting encoder.

    Under mixed precision, give it dtype="float32".
    """

    def call(self, table, table_before, padding_mask, index, weights):
        """Computes the weighted loss of every text.

        Args:
            table, table_before: float `[utterances, tokens, dim]`, encoded by the trained encoder
                and by the initial one.
            padding_mask: bool `[utterances, tokens]`, True = real token.
            index: int32 `[texts, 1]`, places of the texts in the table.
            weights: float `[texts]`, the weight of each text.

        Returns:
            float `[texts]`, from 0 to twice the weight.
        """
        now, before = (
            unit(ops.take(masked_mean(each, padding_mask), index[:, 0], axis=0))
            for each in (table, table_before)
        )
        return (1.0 - ops.sum(now * before, axis=-1)) * weights

    def compute_output_shape(
        self, table_shape, table_before_shape, padding_mask_shape, index_shape, weights_shape
    ):
        return weights_shape


def rehearse(
    table: keras.KerasTensor,
    table_before: keras.KerasTensor,
    padding_mask: keras.KerasTensor,
    texts: dict[str, keras.KerasTensor],
    weight: float,
) -> dict[str, keras.KerasTensor]:
    """A training model's outputs for its garbled texts.

    Args:
        table, table_before, padding_mask: see `RehearsalLoss`.
        texts: the inputs from `rehearsal_inputs`.
        weight: weight of the loss.

    Returns:
        rehearsal_loss, float32 `[texts]`, and rehearsal_share, the weight times it.
    """
    layer = RehearsalLoss(dtype="float32", name="rehearsal")
    loss = layer(table, table_before, padding_mask, *texts.values())
    return {"rehearsal_loss": loss, "rehearsal_share": weight * loss}
