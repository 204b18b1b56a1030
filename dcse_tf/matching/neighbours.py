"""The contrast of neighbours: pairs of utterances that probably mean the same.

The pairs were found with the help of the utterances' contexts. The encoder learns to make the
utterances similar without seeing the contexts, and so learns what the contexts revealed (see
`dcse_tf.search.mutual`).
"""

import keras
from keras import ops

from dcse_tf.matching.losses import NTXent
from dcse_tf.matching.matching import masked_mean, unit


def neighbour_inputs() -> dict[str, keras.KerasTensor]:
    """Symbolic inputs for the pairs of a batch, see `dcse_tf.data.batch`."""
    kinds = {"neighbour_index": "int32", "neighbour_pairs": "int32", "neighbour_mask": "bool"}
    inputs = {name: keras.Input((None,), dtype=kind, name=name) for name, kind in kinds.items()}
    return {**inputs, "neighbour_weights": keras.Input((), name="neighbour_weights")}


@keras.saving.register_keras_serializable(package="dcse_tf")
class NeighbourContrast(keras.layers.Layer):
    """InfoNCE of neighbours on the cosine of their mean embeddings (compare MTP-CLNN).

    Under mixed precision, give it dtype="float32".

    Args:
        temperature: divisor of the cosines.
    """

    def __init__(self, temperature=0.1, **kwargs):
        super().__init__(**kwargs)
        self.contrast = NTXent(temperature, dtype=self.dtype_policy)

    def call(self, token_embeddings, padding_mask, index, pairs, negative_mask, weights):
        """Computes the weighted loss and accuracy of every row.

        Args:
            token_embeddings: float `[utterances, tokens, dim]`, the encoded table.
            padding_mask: bool `[utterances, tokens]`, True = real token.
            index: int32 `[texts, 1]`, the places of all pairs' texts in the table.
            pairs: int32 `[rows, 2]`, a text and its partner, as indices into `index`.
            negative_mask: bool `[rows, texts]`, True = a negative.
            weights: float `[rows]`, the weight of each row.

        Returns:
            loss and accuracy (1 if the partner is strictly above every negative), each float
            `[rows]` and multiplied by the weights.
        """
        texts = ops.take(token_embeddings, index[:, 0], axis=0)
        means = masked_mean(texts, ops.take(padding_mask, index[:, 0], axis=0))
        units = unit(means)
        cosines = ops.matmul(ops.take(units, pairs[:, 0], axis=0), ops.transpose(units))
        partner = ops.take_along_axis(cosines, pairs[:, 1:], axis=1)
        candidates = ops.concatenate([partner, cosines], axis=1)
        candidate_mask = ops.concatenate(
            [ops.ones_like(partner, dtype="bool"), negative_mask], axis=1
        )
        # -2 is less than every cosine.
        hardest = ops.max(
            ops.where(negative_mask, cosines, ops.full((), -2.0, cosines.dtype)), axis=1
        )
        hits = ops.cast(partner[:, 0] > hardest, cosines.dtype)
        return self.contrast(candidates, candidate_mask) * weights, hits * weights

    def compute_output_shape(
        self,
        token_embeddings_shape,
        padding_mask_shape,
        index_shape,
        pairs_shape,
        negative_mask_shape,
        weights_shape,
    ):
        return weights_shape, weights_shape

    def get_config(self):
        return {**super().get_config(), "temperature": self.contrast.temperature}


def contrast_neighbours(
    table: keras.KerasTensor,
    padding_mask: keras.KerasTensor,
    pairs: dict[str, keras.KerasTensor],
    temperature: float,
    weight: float,
) -> dict[str, keras.KerasTensor]:
    """A training model's outputs for its pairs of neighbours.

    Args:
        table: float `[utterances, tokens, dim]`, the encoded table.
        padding_mask: bool `[utterances, tokens]`, True = real token.
        pairs: the inputs from `neighbour_inputs`.
        temperature: temperature of the loss.
        weight: its share of the total loss, from 0 to 1.

    Returns:
        neighbour_loss and neighbour_accuracy, float32 `[rows]`, see `NeighbourContrast`; and
        neighbour_share, the weight times the first.
    """
    layer = NeighbourContrast(temperature, dtype="float32", name="neighbour_contrast")
    loss, accuracy = layer(table, padding_mask, *pairs.values())
    share = weight * loss
    return {"neighbour_loss": loss, "neighbour_accuracy": accuracy, "neighbour_share": share}
