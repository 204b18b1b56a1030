"""The training tasks. A task is data: adding one adds an entry here and touches no loop."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import keras_hub
import tensorflow as tf

from dcse_tf.config import TrainConfig
from dcse_tf.data.layouts import Layout, count_cells
from dcse_tf.data.manifest import Manifest, Split
from dcse_tf.data.masking import MaskingRule
from dcse_tf.data.pipeline import make_contrastive_dataset, make_masked_lm_dataset
from dcse_tf.data.tokenization import SPECIAL_TOKENS, Vocabulary
from dcse_tf.models.bert_encoder import initialize_weights
from dcse_tf.models.dialogue_cse import build_dialogue_cse
from dcse_tf.models.masked_lm import build_masked_lm, load_head
from dcse_tf.training.trainer import ComputeLoss

Tensors = dict[str, tf.Tensor]
Scores = dict[str, float]
# Compiled, the rows of a packed table come in multiples of this: a program for each.
_COMPILED_ROWS = 8


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a run has at hand before its model is built.

    Attributes:
        config: the settings, all filled in.
        data_dir: the prepared corpus.
        manifest: its manifest.
        vocabulary: of the encoder and the corpus.
        backbone: the BERT.
        encoder: the functional encoder on it, for evaluation.
        tensors: the checkpoint's tensors, for heads; empty from random weights.
    """

    config: TrainConfig
    data_dir: pathlib.Path
    manifest: Manifest
    vocabulary: Vocabulary
    backbone: keras_hub.models.BertBackbone
    encoder: keras.Model
    tensors: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """What a task is to the loops.

    Attributes:
        build_model: the training model, under the strategy's scope.
        make_dataset: (setup, first step, replicas) to batches, `replicas` of them a step.
        compute_loss: (model, batch) to sums over rows, see `Trainer`.
        metric_names: the sums besides loss, weight and counts.
        epoch_size: samples of a split.
        best_metric: the dev score by which the best encoder is kept.
        make_evaluation: makes what gives dev scores of the task's own, besides the encoder's.
        scores_responses: whether response selection on dev sessions means something for it.
    """

    build_model: Callable[[Setup], keras.Model]
    make_dataset: Callable[[Setup, int, int], tf.data.Dataset]
    compute_loss: ComputeLoss
    metric_names: tuple[str, ...]
    epoch_size: Callable[[Split], int]
    best_metric: str
    make_evaluation: Callable[[Setup, keras.Model], Callable[[], Scores]]
    scores_responses: bool


def make_layout(config: TrainConfig) -> Layout:
    """The layout of the tables; compiled steps want few different shapes."""
    rows = _COMPILED_ROWS if config.jit_compile else 1
    return Layout(config.layout, row_length=config.row_length or 0, row_multiple=rows)


def _build_contrastive(setup: Setup) -> keras.Model:
    return build_dialogue_cse(setup.backbone, make_layout(setup.config), setup.config.temperature)


def _make_contrastive_dataset(setup: Setup, first_step: int, replicas: int) -> tf.data.Dataset:
    config = setup.config
    return make_contrastive_dataset(
        setup.data_dir,
        setup.manifest,
        batch_form=config.batch_form,
        batch_size=config.global_batch_size or 0,
        session_turns=config.session_turns,
        negatives=config.negatives,
        context_turns=config.context_turns,
        context_side=config.context_side,
        seed=config.seed,
        layout=make_layout(config),
        fixed_shapes=config.jit_compile,
        first_step=first_step,
        replicas=replicas,
    )


def compute_contrastive_loss(model: keras.Model, batch: Tensors) -> Tensors:
    """Sums over the rows of a batch: the loss of equation 8, and what tells how it goes.

    accuracy: the positive is above every negative; equal is not above. positive_similarity, and
    negative_similarity as the mean over a row's negatives.
    """
    outputs = model(batch, training=True)
    similarity = outputs["similarity"]
    negative_mask = batch["candidate_mask"][:, 1:]
    # A row without a positive fills the batch up and counts for nothing.
    rows = tf.cast(batch["candidate_mask"][:, 0], tf.float32)
    negatives = tf.where(negative_mask, similarity[:, 1:], 0.0)
    count = tf.reduce_sum(tf.cast(negative_mask, tf.float32), axis=1)
    hardest = tf.reduce_max(tf.where(negative_mask, similarity[:, 1:], -2.0), axis=1)
    above = tf.cast(similarity[:, 0] > hardest, tf.float32)
    return {
        "loss": tf.reduce_sum(outputs["loss"] * rows),
        "weight": tf.reduce_sum(rows),
        "accuracy": tf.reduce_sum(above * rows),
        "positive_similarity": tf.reduce_sum(similarity[:, 0] * rows),
        "negative_similarity": tf.reduce_sum(tf.reduce_sum(negatives, 1) / tf.maximum(count, 1.0)),
        "samples": tf.reduce_sum(rows),
        **_count_tokens(batch),
    }


def _count_tokens(batch: Tensors) -> Tensors:
    """Real tokens of the table, and those that the encoder computed for them."""
    return {
        "tokens": tf.reduce_sum(tf.cast(batch["padding_mask"], tf.float32)),
        "cells": count_cells(batch),
    }


def _build_masked_lm(setup: Setup) -> keras.Model:
    model, head = build_masked_lm(setup.backbone, make_layout(setup.config))
    source = setup.config.encoder or setup.config.encoder_size
    if not load_head(head, setup.tensors, source):
        initialize_weights(head.trainable_variables, setup.config.seed + 1)
    return model


def _make_masked_lm_dataset(setup: Setup, first_step: int, replicas: int) -> tf.data.Dataset:
    return make_masked_lm_dataset(
        setup.data_dir,
        setup.manifest,
        split="train",
        batch_size=setup.config.global_batch_size or 0,
        rule=_masking_rule(setup),
        seed=setup.config.seed,
        layout=make_layout(setup.config),
        fixed_shapes=setup.config.jit_compile,
        first_step=first_step,
        replicas=replicas,
    )


def _masking_rule(setup: Setup) -> MaskingRule:
    index = setup.vocabulary.index
    return MaskingRule(
        mask_rate=setup.config.mask_rate,
        max_predictions=setup.config.max_predictions,
        mask_id=index("[MASK]"),
        special_ids=tuple(index(token) for token in SPECIAL_TOKENS),
        vocabulary_size=len(setup.vocabulary.tokens),
    )


def compute_masked_lm_loss(model: keras.Model, batch: Tensors, training: bool = True) -> Tensors:
    """Sums over the predictions of a batch: cross entropy, and whether the best guess is right."""
    # Keras matches a dict with other keys by order, not by name.
    inputs = {k: v for k, v in batch.items() if k not in ("mask_ids", "mask_weights")}
    logits = tf.cast(model(inputs, training=training), tf.float32)
    weights = batch["mask_weights"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["mask_ids"], logits)
    right = tf.cast(
        tf.argmax(logits, axis=-1, output_type=tf.int32) == batch["mask_ids"], tf.float32
    )
    return {
        "loss": tf.reduce_sum(losses * weights),
        "weight": tf.reduce_sum(weights),
        "accuracy": tf.reduce_sum(right * weights),
        "samples": tf.cast(tf.shape(batch["padding_mask"])[0], tf.float32),
        **_count_tokens(batch),
    }


def _no_scores(setup: Setup, model: keras.Model) -> Callable[[], Scores]:
    return lambda: {}


def _make_masked_lm_evaluation(setup: Setup, model: keras.Model) -> Callable[[], Scores]:
    """Loss and accuracy on dev utterances under masks that are the same every time."""
    split = setup.manifest.splits["dev"]
    utterances = min(20 * setup.config.dev_samples, split.utterances)
    if not utterances:
        return lambda: {}
    batch_size = min(64, utterances)
    dataset = make_masked_lm_dataset(
        setup.data_dir,
        setup.manifest,
        split="dev",
        batch_size=batch_size,
        rule=_masking_rule(setup),
        seed=setup.config.seed,
        layout=make_layout(setup.config),
    ).take(utterances // batch_size)
    compute = tf.function(
        lambda batch: compute_masked_lm_loss(model, batch, training=False), reduce_retracing=True
    )

    def evaluate() -> Scores:
        totals = {"loss": 0.0, "accuracy": 0.0, "weight": 0.0}
        for batch in dataset:
            sums = compute(batch)
            totals = {name: total + float(sums[name]) for name, total in totals.items()}
        weight = totals.pop("weight")
        return {f"dev/{name}": total / max(weight, 1.0) for name, total in totals.items()}

    return evaluate


TASKS: dict[str, Task] = {
    "dialogue_cse": Task(
        build_model=_build_contrastive,
        make_dataset=_make_contrastive_dataset,
        compute_loss=compute_contrastive_loss,
        metric_names=("accuracy", "positive_similarity", "negative_similarity"),
        epoch_size=lambda split: split.sessions,
        best_metric="dev/response_r1",
        make_evaluation=_no_scores,
        scores_responses=True,
    ),
    "mlm": Task(
        build_model=_build_masked_lm,
        make_dataset=_make_masked_lm_dataset,
        compute_loss=compute_masked_lm_loss,
        metric_names=("accuracy",),
        epoch_size=lambda split: split.utterances,
        best_metric="dev/accuracy",
        make_evaluation=_make_masked_lm_evaluation,
        scores_responses=False,
    ),
}
