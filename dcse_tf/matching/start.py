"""Objectives that use the starting encoder, the one that training started from.

A frozen copy of it reads the same table as the encoder that is trained.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import keras

from dcse_tf.bert.bert import TokenCentering
from dcse_tf.bert.layout import Layout, build_table_encoder
from dcse_tf.matching.context_prediction import ContextPrediction

if TYPE_CHECKING:
    import keras_hub


# The name of its layer in the training model.
START_ENCODER = "start_encoder"


@dataclasses.dataclass(frozen=True)
class StartObjective:
    """The objectives that use the starting encoder.

    Attributes:
        backbone: the initial BERT without dropout; it gets frozen.
        prediction: predicts its embeddings of the turns around a response; None for none.
        prediction_weight: share of the prediction in the dialogues' loss, from 0 to 1.
        rehearsal_weight: weight of the loss on garbled texts, see `RehearsalLoss`; 0 for none.
    """

    backbone: keras_hub.models.BertBackbone
    prediction: ContextPrediction | None = None
    prediction_weight: float = 0.0
    rehearsal_weight: float = 0.0


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
