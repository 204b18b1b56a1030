"""The contrast of neighbours: utterances that mean the same by themselves, whatever stood around.

Their pairs were found with their contexts; the encoder that puts them together without learns what
the context told (see `dcse_tf.search.mutual`).
"""

import keras
from keras import ops

from dcse_tf.model.losses import NTXent
from dcse_tf.model.matching import masked_mean, unit


def neighbour_inputs() -> dict[str, keras.KerasTensor]:
    """Symbolic inputs for the pairs of a batch, see `dcse_tf.data.batch`."""
    kinds = {"neighbour_index": "int32", "neighbour_pairs": "int32", "neighbour_mask": "bool"}
    inputs = {name: keras.Input((None,), dtype=kind, name=name) for name, kind in kinds.items()}
    return {**inputs, "neighbour_weights": keras.Input((), name="neighbour_weights")}


@keras.saving.register_keras_serializable(package="dcse_tf")
class NeighbourContrast(keras.layers.Layer):
    """InfoNCE of neighbours by the cosine of their mean embeddings (compare MTP-CLNN).

    Give it dtype="float32" under mixed precision.

    Args:
        temperature: what cosines are divided by.
    """

    def __init__(self, temperature=0.1, **kwargs):
        super().__init__(**kwargs)
        self.contrast = NTXent(temperature, dtype=self.dtype_policy)

    def call(self, token_embeddings, padding_mask, index, pairs, negative_mask, weights):
        """Computes what the rows of a batch add to the sums over it.

        Args:
            token_embeddings: float `[utterances, tokens, dim]`, the encoded table.
            padding_mask: bool `[utterances, tokens]`, True = real token.
            index: int32 `[texts, 1]` into the table: the texts of all pairs.
            pairs: int32 `[rows, 2]`, a text and its partner among those.
            negative_mask: bool `[rows, texts]`, True = a negative.
            weights: float `[rows]`, what each row counts.

        Returns:
            loss, and accuracy: the partner is above every negative, equal is not above; float
            `[rows]` each, weighted.
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
        # Below every cosine.
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
    """What a training model says of its pairs of neighbours.

    Args:
        table: float `[utterances, tokens, dim]`, encoded.
        padding_mask: bool `[utterances, tokens]`, True = real token.
        pairs: `neighbour_inputs`.
        temperature: of the loss.
        weight: share of it in the whole.

    Returns:
        neighbour_loss and neighbour_accuracy, float32 `[rows]`, see `NeighbourContrast`; and
        neighbour_share, the weight times the first.
    """
    layer = NeighbourContrast(temperature, dtype="float32", name="neighbour_contrast")
    loss, accuracy = layer(table, padding_mask, *pairs.values())
    share = weight * loss
    return {"neighbour_loss": loss, "neighbour_accuracy": accuracy, "neighbour_share": share}
