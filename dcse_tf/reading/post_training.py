"""The model of post-training: BERT's two pre-training tasks on two segments of dialogue."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import keras

from dcse_tf.bert import weights
from dcse_tf.matching.losses import PreTrainingLoss
from dcse_tf.reading.cross_encoder import PairHead, Reading, name_tensors, predict_tokens

if TYPE_CHECKING:
    import keras_hub

_TARGETS = {
    "pairs_labels": "int32",
    "pairs_weights": "float32",
    "masked_lm_ids": "int32",
    "masked_lm_weights": "float32",
}


def build_post_training_model(
    reading: Reading, pairs: PairHead, masked_lm: keras_hub.layers.MaskedLMHead
) -> keras.Model:
    """The training model: maps a batch of `make_post_training_batches` to sums of its losses.

    Args:
        reading: the reader's inputs and outputs for the batch's table.
        pairs: head that classifies the two segments.
        masked_lm: BERT's prediction head, see `masked_lm.build_head`.
    """
    places = {
        name: keras.Input((), dtype="int32", name=f"{name}_places")
        for name in ("pairs", "masked_lm")
    }
    targets = {name: keras.Input((), dtype=kind, name=name) for name, kind in _TARGETS.items()}
    logits = {
        "pairs": pairs(reading.pairs(places["pairs"])),
        "masked_lm": predict_tokens(masked_lm, reading, places["masked_lm"]),
    }
    sums = PreTrainingLoss(name="pre_training_loss")(logits, targets)
    inputs = {**reading.inputs, **targets, **{value.name: value for value in places.values()}}
    return keras.Model(inputs, sums, name="post_training")


def write_post_trained(
    folder: pathlib.Path,
    backbone: keras_hub.models.BertBackbone,
    pairs: PairHead,
    masked_lm: keras_hub.layers.MaskedLMHead,
    speakers: keras.layers.Embedding | None,
) -> None:
    """Writes `model.safetensors` with the names of HuggingFace's BertForMaskedLM, and a pooler.

    The output layer that classifies two segments is left out: its classes are specific to this
    task.

    Args:
        folder: an existing folder.
        backbone: the BERT.
        pairs: the segments' head; its hidden layer is written as BERT's pooler.
        masked_lm: the prediction head, written as `cls.predictions`.
        speakers: written as `bert.embeddings.speaker_embeddings.weight`, a tensor which that class
            lacks.
    """
    tensors = name_tensors(backbone, pairs, speakers)
    tensors |= weights.to_tensors(weights.masked_lm_head_weights(masked_lm))
    weights.write_tensors(folder, tensors)
