"""Objectives that use the starting encoder, the one that training started from.

A frozen copy of it reads the same table as the encoder that is trained. It detects false negatives
(Solatorio 2024, "GISTEmbed") and keeps the similarities of sentences close to their initial values.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import keras
from keras import ops

from dcse_tf.bert.bert import TokenCentering
from dcse_tf.bert.layout import Layout, build_table_encoder
from dcse_tf.matching.context_prediction import ContextPrediction
from dcse_tf.matching.losses import Distillation
from dcse_tf.matching.matching import masked_mean, unit

if TYPE_CHECKING:
    import keras_hub


# The name of its layer in the training model.
START_ENCODER = "start_encoder"


@dataclasses.dataclass(frozen=True)
class StartObjective:
    """The objectives that use the starting encoder.

    Attributes:
        backbone: the initial BERT without dropout; it gets frozen.
        most_similar: negatives whose cosine with the true response is above this are left out.
        anchor_weight: weight of the loss that keeps similarities close to their initial values; 0
            for none.
        prediction: predicts its embeddings of the turns around a response; None for none.
        prediction_weight: share of the prediction in the dialogues' loss, from 0 to 1.
        rehearsal_weight: weight of the loss on garbled texts, see `RehearsalLoss`; 0 for none.
    """

    backbone: keras_hub.models.BertBackbone
    most_similar: float = 1.0
    anchor_weight: float = 0.0
    prediction: ContextPrediction | None = None
    prediction_weight: float = 0.0
    rehearsal_weight: float = 0.0


@keras.saving.register_keras_serializable(package="dcse_tf")
class CandidateSimilarity(keras.layers.Layer):
    """Cosine of the mean embeddings of a row's candidates with that of its true response."""

    def call(self, token_embeddings, padding_mask, candidate_index):
        """Compares the candidates.

        Args:
            token_embeddings: float `[utterances, tokens, dim]`, the encoded table.
            padding_mask: bool `[utterances, tokens]`, True = real token.
            candidate_index: int32 `[batch, candidates]`, row indices into the table; column 0 is
                the true response.

        Returns:
            float `[batch, candidates]`.
        """
        means = masked_mean(token_embeddings, padding_mask)
        directions = unit(means)
        responses = ops.take(directions, candidate_index[:, 0], axis=0)
        similarity = ops.matmul(responses, ops.transpose(directions))
        return ops.take_along_axis(similarity, candidate_index, axis=1)

    def compute_output_shape(
        self, token_embeddings_shape, padding_mask_shape, candidate_index_shape
    ):
        return tuple(candidate_index_shape)


@keras.saving.register_keras_serializable(package="dcse_tf")
class FalseNegativeMask(keras.layers.Layer):
    """Leaves out negatives that probably mean the same as the true response.

    Args:
        most_similar: the largest cosine with the true response of a negative that is kept.
    """

    def __init__(self, most_similar=1.0, **kwargs):
        super().__init__(**kwargs)
        self.most_similar = most_similar

    def call(self, similarity, candidate_mask):
        """Masks the candidates to keep.

        Args:
            similarity: float `[batch, candidates]`, cosines with the true response; column 0 is
                the response itself.
            candidate_mask: bool `[batch, candidates]`, True = a candidate.

        Returns:
            bool `[batch, candidates]`, True = a candidate that is kept.
        """
        if self.most_similar >= 1.0:
            return candidate_mask
        stay = ops.less_equal(similarity, self.most_similar)
        is_response = ops.equal(ops.arange(ops.shape(stay)[1]), 0)
        return ops.logical_and(candidate_mask, ops.logical_or(stay, is_response))

    def compute_output_shape(self, similarity_shape, candidate_mask_shape):
        return tuple(candidate_mask_shape)

    def get_config(self):
        return {**super().get_config(), "most_similar": self.most_similar}


def encode_as_started(
    objective: StartObjective,
    layout: Layout,
    inputs: dict[str, keras.KerasTensor],
    centered: bool = False,
) -> keras.KerasTensor:
    """A training model's table encoded by the starting encoder.

    Args:
        objective: the objectives that use it.
        layout, inputs: the table.
        centered: whether the trained encoder's token embeddings are centred. Then these are, too,
            by their own mean over the batch: otherwise an encoder that has not changed would seem
            to have moved.

    Returns:
        float `[utterances, tokens, dim]`.
    """
    objective.backbone.trainable = False
    centering = TokenCentering(dtype="float32") if centered else None
    encoder = build_table_encoder(objective.backbone, layout, centering)
    return keras.Model(encoder.input, encoder.output, name=START_ENCODER)(dict(inputs))


def compare_with_start(
    objective: StartObjective,
    temperature: float,
    table: keras.KerasTensor,
    before: keras.KerasTensor,
    inputs: dict[str, keras.KerasTensor],
    index: dict[str, keras.KerasTensor],
) -> tuple[keras.KerasTensor, dict[str, keras.KerasTensor]]:
    """Uses the starting encoder on the candidates of a training model.

    Args:
        objective: the objectives that use it.
        temperature: temperature of the similarities in the anchor loss.
        table, before: float `[utterances, tokens, dim]`, encoded by the trained encoder and by the
            initial one.
        inputs, index: the training model's inputs, see `build_dialogue_cse`.

    Returns:
        candidate_mask: bool `[batch, candidates]`, without probable false negatives.
        A dict with float32 `[batch]` tensors: if negatives may be left out, "left_out", the share
        of the row's that are; with an anchor weight "anchor_loss", the cross entropy between the
        softmax of the negatives' cosines with the true response and that by the starting encoder;
        with a prediction "prediction_loss", see `ContextPrediction`.
    """
    compare = CandidateSimilarity(dtype="float32", name="candidate_similarity")
    used = (inputs["padding_mask"], index["candidate_index"])
    similarity = compare(before, *used)
    mask = index["candidate_mask"]
    kept, outputs = FalseNegativeMask(objective.most_similar)(similarity, mask), {}
    if objective.most_similar < 1.0:
        left_out = 1.0 - _count_negatives(kept) / ops.maximum(_count_negatives(mask), 1.0)
        outputs["left_out"] = ops.where(ops.any(mask[:, 1:], axis=1), left_out, 0.0)
    if objective.anchor_weight:
        # All negatives, including those that the contrast leaves out, which are the nearest.
        hold = Distillation(temperature, temperature, dtype="float32", name="anchor")
        now = compare(table, *used)
        outputs["anchor_loss"] = hold(now[:, 1:], similarity[:, 1:], mask[:, 1:])
    if objective.prediction:
        around = [index["context_index"], index["turn_mask"]]
        if "candidate_context" in index:  # Then the index has contexts of other rows too.
            around = [ops.take(each, index["candidate_context"][:, 0], axis=0) for each in around]
        response = index["candidate_index"][:, 0]
        outputs["prediction_loss"] = objective.prediction(table, before, used[0], response, *around)
    return kept, outputs


def mask_neighbours(
    objective: StartObjective,
    before: keras.KerasTensor,
    inputs: dict[str, keras.KerasTensor],
    pairs: dict[str, keras.KerasTensor],
) -> keras.KerasTensor:
    """The mask of the negatives of pairs of neighbours, without probable false negatives.

    Args:
        objective, before, inputs: see `compare_with_start`.
        pairs: the pairs' inputs, see `neighbour_inputs`.

    Returns:
        bool `[rows, texts]`, True = a negative.
    """
    index, mask = pairs["neighbour_index"], pairs["neighbour_mask"]
    own = ops.take(index, pairs["neighbour_pairs"][:, 0], axis=0)
    candidates = ops.concatenate([own, ops.zeros_like(own) + ops.transpose(index)], axis=1)
    candidate_mask = ops.concatenate([ops.ones_like(own, dtype="bool"), mask], axis=1)
    compare = CandidateSimilarity(dtype="float32", name="neighbour_similarity")
    similarity = compare(before, inputs["padding_mask"], candidates)
    return FalseNegativeMask(objective.most_similar)(similarity, candidate_mask)[:, 1:]


def _count_negatives(mask: keras.KerasTensor) -> keras.KerasTensor:
    return ops.sum(ops.cast(mask[:, 1:], "float32"), axis=1)
