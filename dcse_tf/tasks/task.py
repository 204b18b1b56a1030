"""What a training task is to the loops."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import keras_hub
import tensorflow as tf

from dcse_tf.data.manifest import Corpus, Manifest, Split
from dcse_tf.data.stream import Stream
from dcse_tf.model.bert import TokenCentering
from dcse_tf.model.layout import Layout, count_cells
from dcse_tf.model.matching import TurnAttention
from dcse_tf.model.tokenizer import Vocabulary
from dcse_tf.training.options import TrainOptions
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
        centering: of the token embeddings, in the encoder already; None without.
        attention: weights of the turns; None where each counts the same.
    """

    config: TrainOptions
    data_dir: pathlib.Path
    manifest: Manifest
    vocabulary: Vocabulary
    backbone: keras_hub.models.BertBackbone
    encoder: keras.Model
    tensors: dict[str, Any]
    centering: TokenCentering | None = None
    attention: TurnAttention | None = None

    @property
    def corpus(self) -> Corpus:
        return Corpus(self.data_dir, self.manifest)


@dataclasses.dataclass(frozen=True)
class Task:
    """What a task is to the loops.

    Attributes:
        build_model: the training model, under the strategy's scope.
        make_dataset: (setup, first step, replicas) to batches, `replicas` of them a step.
        compute_loss: (model, batch) to sums over rows, see `Trainer`.
        metric_names: the sums besides loss, weight and counts.
        samples: what a batch is of, and an epoch: "sessions" or "utterances".
        make_evaluation: makes what gives dev scores of the task's own, besides the encoder's.
        scores_responses: the similarities by which response selection on dev sessions means
            something for it: "matching", "cosine", both or none.
    """

    build_model: Callable[[Setup], keras.Model]
    make_dataset: Callable[[Setup, int, int], tf.data.Dataset]
    compute_loss: ComputeLoss
    metric_names: tuple[str, ...]
    samples: str
    make_evaluation: Callable[[Setup, keras.Model], Callable[[], Scores]]
    scores_responses: tuple[str, ...]

    def epoch_size(self, split: Split) -> int:
        """Samples of a split."""
        return {"sessions": split.sessions, "utterances": split.utterances}[self.samples]


def make_stream(setup: Setup, first_step: int, replicas: int) -> Stream:
    """How a run reads its corpus."""
    config = setup.config
    return Stream(
        config.global_batch_size or 0,
        config.seed,
        first_step,
        replicas,
        make_layout(config),
        fixed_shapes=config.jit_compile,
    )


def make_layout(config: TrainOptions) -> Layout:
    """The layout of the tables; compiled steps want few different shapes."""
    rows = _COMPILED_ROWS if config.jit_compile else 1
    return Layout(config.layout, row_length=config.row_length or 0, row_multiple=rows)


def count_batch(
    batch: Tensors, samples: tf.Tensor, without_negatives: tf.Tensor | float
) -> Tensors:
    """The counts of a batch, see `Trainer`.

    Args:
        batch: has the table: `tokens` are its real ones, `cells` all that the encoder computes.
        samples: float `[]`, how many rows the batch has.
        without_negatives: float `[]`, how many of them have nothing to be told apart from.
    """
    return {
        "samples": samples,
        "tokens": tf.reduce_sum(tf.cast(batch["padding_mask"], tf.float32)),
        "cells": count_cells(batch),
        "without_negatives": tf.convert_to_tensor(without_negatives, tf.float32),
    }


def no_scores(setup: Setup, model: keras.Model) -> Callable[[], Scores]:
    return lambda: {}
