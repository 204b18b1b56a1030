"""Functions that several tasks share: layouts, batches of dialogues, sums over a batch's rows.

Unlike the tasks' own modules, which commands import for their options, this one needs TensorFlow.
"""

import collections
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.bert import bert, checkpoints, masked_lm
from dcse_tf.bert.layout import Layout, count_cells
from dcse_tf.bert.tokenizer import number_as_written
from dcse_tf.bert.vectors import compute_token_embeddings, fold_case, read_word_vectors
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.bert.weights import SPEAKER_TABLE
from dcse_tf.data.masking import MaskingRule
from dcse_tf.data.rehearsal import RehearsalForm
from dcse_tf.data.stream import BatchForm, Stream, make_contrastive_dataset
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.matching.head_files import list_head_maps, write_heads
from dcse_tf.matching.matching_files import write_matching
from dcse_tf.reading.cross_encoder import Reading, build_speaker_embedding, read_with_bert
from dcse_tf.reading.reranker_files import RerankerSettings, write_reranker_settings
from dcse_tf.tasks.options import (
    BatchOptions,
    MaskingOptions,
    TrainOptions,
)
from dcse_tf.tasks.sequence_options import SequenceOptions
from dcse_tf.tasks.spec import Scores, Setup, Tensors, average


def make_layout(options: TrainOptions) -> Layout:
    """The layout of the tables."""
    return Layout(options.layout, row_length=options.row_length)


def make_stream(setup: Setup[TrainOptions], first_step: int, replicas: int) -> Stream:
    """How training reads its corpus."""
    options = setup.options
    return Stream(
        options.global_batch_size,
        options.seed,
        first_step,
        replicas,
        make_layout(options),
        own=setup.own_replicas,
    )


def make_dialogue_dataset(
    setup: Setup[BatchOptions],
    first_step: int,
    replicas: int,
    context_tokens: int = 0,
    rehearsal: RehearsalForm | None = None,
) -> tf.data.Dataset:
    """Batches of responses, contexts and negatives.

    Args:
        setup: the training's setup.
        first_step: the step, counted from 0, whose batch comes first.
        replicas: number of batches in a step.
        context_tokens: the largest number of tokens of a context joined to one sequence; 0 to keep
            its turns apart.
        rehearsal: see `make_contrastive_dataset`.
    """
    options = setup.options
    form = BatchForm(
        options.batch_form,
        options.negatives,
        options.session_turns,
        context_tokens=context_tokens,
    )
    stream = make_stream(setup, first_step, replicas)
    return make_contrastive_dataset(setup.corpus, form, options.context, stream, rehearsal)


def make_rehearsal_form(vocabulary: Vocabulary, texts: int) -> RehearsalForm:
    """What a step rehearses: whole words, not pieces, take the place of ordinary tokens.

    Args:
        vocabulary: the encoder's vocabulary.
        texts: number of texts in a step.
    """
    special = vocabulary.special_ids
    words = (
        i
        for i, token in enumerate(vocabulary.tokens)
        if i not in special and vocabulary.begins_word(token)
    )
    prefix_tokens = vocabulary.count_prefix()
    return RehearsalForm(texts, special, tuple(words), prefix_tokens)


def make_masking_rule(setup: Setup[MaskingOptions], prefix_tokens: int = 0) -> MaskingRule:
    """How tokens are masked; those of a prefix and special tokens never are."""
    return MaskingRule(
        mask_rate=setup.options.mask_rate,
        max_predictions=setup.options.max_predictions,
        mask_id=setup.vocabulary.mask_id,
        special_ids=setup.vocabulary.special_ids,
        vocabulary_size=len(setup.vocabulary.tokens),
        prefix_tokens=prefix_tokens,
    )


def start_masked_lm_head(setup: Setup[TrainOptions], head: keras_hub.layers.MaskedLMHead) -> None:
    """Initialises BERT's prediction head from the checkpoint, or at random if it has none."""
    source = setup.options.encoder or setup.options.encoder_size
    if not masked_lm.load_head(head, setup.tensors, source):
        bert.initialize_weights(masked_lm.own_variables(head), setup.options.seed + 1)


def read_sequences(setup: Setup[SequenceOptions]) -> Reading:
    """BERT as the reader of sequences, with speaker embeddings if the options ask for them."""
    options, speakers = setup.options, None
    if options.speaker_embeddings:
        seed = options.seed + 10
        speakers = build_speaker_embedding(setup.backbone.hidden_dim, seed, setup.tensors)
    elif SPEAKER_TABLE in setup.tensors:
        logging.warning(
            "the encoder has speaker embeddings, which are left out; "
            "`speaker_embeddings` keeps them"
        )
    return read_with_bert(setup.backbone, make_layout(options), speakers)


def take_dev_sessions(
    setup: Setup[TrainOptions], make_dataset: Callable[[Stream], tf.data.Dataset]
) -> tf.data.Dataset | None:
    """The batches of dev sessions for an evaluation, drawn the same way every time.

    Args:
        setup: the training's setup.
        make_dataset: makes endless batches of the dev split.

    Returns:
        The batches, the last of which may be smaller; None for fewer than two sessions, which have
        no negatives for each other.
    """
    options = setup.options
    sessions = min(options.dev_samples, setup.manifest.splits["dev"].sessions)
    batch_size = min(options.global_batch_size, sessions)
    if sessions < 2:
        return None
    if sessions % batch_size == 1:  # a batch of one session has no negatives
        sessions -= 1
    return make_dataset(
        Stream(batch_size, options.seed, layout=make_layout(options), most=sessions)
    )


def score_best_rules(dataset: tf.data.Dataset, tasks: Sequence[str]) -> Scores:
    """How far examples can be told apart without reading them.

    Args:
        dataset: batches with TASK_labels, 0 or 1, TASK_weights and TASK_hints.
        tasks: names of tasks with two classes.

    Returns:
        TASK_chance in percent: the accuracy of the rule that answers by the more frequent label
        among the examples with the same hint. Each half of the examples is answered by the rule
        made from the other half, so that a rule does not gain from what is chance. A task without
        any example is left out.
    """
    batches = list(dataset.as_numpy_iterator())
    chances = {}
    for task in tasks:
        labels, weights, hints = (
            np.concatenate([batch[f"{task}_{name}"] for batch in batches])
            for name in ("labels", "weights", "hints")
        )
        votes = (2.0 * labels - 1.0) * weights
        first, right = np.arange(len(hints)) < len(hints) // 2, 0.0
        for own in (first, ~first):
            table = np.bincount(hints[~own], votes[~own], minlength=hints.max() + 1)
            right += weights[own] @ ((table[hints[own]] > 0.0) == (labels[own] > 0.5))
        if weights.any():
            chances[f"{task}_chance"] = 100.0 * float(right / weights.sum())
    return chances


def average_sums(
    dataset: tf.data.Dataset,
    compute: Callable[[Tensors], Tensors],
    names: Sequence[str],
    unit: float = 1.0,
) -> Scores:
    """Means over the rows of several batches.

    Args:
        dataset: the batches.
        compute: maps a batch to its sums, by name, see `average`.
        names: names of the sums to average; those of a task without any example are left out.
        unit: what a mean of 1 is; 100 for percentages.
    """
    totals = collections.Counter[str]()
    for batch in dataset:
        totals.update({name: float(value) for name, value in compute(batch).items()})
    means = average(totals)
    return {name: unit * means[name] for name in names if name in means}


def read_base_config(setup: Setup[TrainOptions]) -> dict[str, Any]:
    """The content of config.json for the BERT that is trained."""
    backbone = setup.backbone
    if not setup.source:
        sizes = backbone.num_layers, backbone.hidden_dim, backbone.vocabulary_size
        return bert.make_bert_config(*sizes)
    return {**checkpoints.read_config(setup.source), "vocab_size": backbone.vocabulary_size}


def write_sentence_encoder(setup: Setup[TrainOptions], folder: pathlib.Path) -> None:
    """Writes the encoder as an ordinary checkpoint folder, for the options `encoder` and `model`.

    Args:
        setup: the run's setup.
        folder: an empty folder.
    """
    parts = setup.parts
    mean = parts.centering.mean().numpy() if parts.centering else None
    bert.save_backbone(folder, setup.backbone, read_base_config(setup), mean)
    if parts.matching:
        write_matching(folder, parts.matching)
    if parts.heads:
        write_heads(folder, list_head_maps(parts.heads))
    write_tokenization(setup, folder)


def write_tokenization(setup: Setup[TrainOptions], folder: pathlib.Path) -> None:
    """Writes the encoder's vocabulary and the length to which it truncates sentences."""
    number_as_written(setup.vocabulary, read_base_config(setup)).write(folder)
    checkpoints.write_max_sequence_length(folder, setup.manifest.max_sequence_length)


def write_bert_files(setup: Setup[TrainOptions], folder: pathlib.Path, architecture: str) -> None:
    """Writes the files of a BERT's folder other than its weights.

    Args:
        setup: the run's setup.
        folder: an existing folder.
        architecture: the HuggingFace class that the weights are for.
    """
    config = {**read_base_config(setup), "architectures": [architecture]}
    write_json(folder / "config.json", config, sort_keys=True)
    write_tokenization(setup, folder)


def write_reranker_files(
    setup: Setup[TrainOptions], folder: pathlib.Path, settings: RerankerSettings
) -> None:
    """Writes the files of a re-ranker's folder other than its weights.

    Args:
        setup: the run's setup.
        folder: an existing folder.
        settings: the re-ranker's settings.
    """
    if setup.backbone:
        config = {
            **read_base_config(setup),
            "architectures": ["BertForSequenceClassification"],
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "num_labels": 1,
        }
    else:
        # Code that looks for a checkpoint reads config.json: this one says that it is no BERT.
        config = {"model_type": settings.architecture, "vocab_size": len(setup.vocabulary.tokens)}
    write_json(folder / "config.json", config, sort_keys=True)
    setup.vocabulary.write(folder)
    write_reranker_settings(folder, settings)


def count_batch(
    batch: Tensors, samples: tf.Tensor, without_negatives: tf.Tensor | float
) -> Tensors:
    """The counts of a batch, which the trainer adds up without weighting.

    Args:
        batch: the batch with its laid-out table, for the counts of its real `tokens` and of all
            `cells` that the encoder computes.
        samples: float `[]`, number of samples in the batch.
        without_negatives: float `[]`, number of samples without any negative.
    """
    return {
        "samples": samples,
        "tokens": tf.reduce_sum(tf.cast(batch["padding_mask"], tf.float32)),
        "cells": count_cells(batch),
        "without_negatives": tf.convert_to_tensor(without_negatives, tf.float32),
    }


def sum_rows(outputs: Tensors, name: str, batch: Tensors) -> Tensors:
    """Sums over the rows of a batch: the loss of equation 8 and metrics of training.

    Args:
        outputs: the training model's outputs: loss `[rows]` and, under `name`, the values that the
            loss contrasts, float `[rows, 1 + negatives]`.
        name: name of the contrasted values.
        batch: a batch of `make_batches`.

    Returns:
        loss, weight (the number of rows summed) and the counts; accuracy: the positive is strictly
        above every negative; positive_NAME, and negative_NAME, the mean over a row's negatives. A
        row without any negative is counted but left out of the sums.
    """
    values, negative_mask = outputs[name], batch["candidate_mask"][:, 1:]
    real = tf.cast(batch["candidate_mask"][:, 0], tf.float32)
    count = tf.reduce_sum(tf.cast(negative_mask, tf.float32), axis=1)
    rows = _weigh_rows(batch)

    negatives = tf.where(negative_mask, values[:, 1:], 0.0)
    mean_negative = tf.reduce_sum(negatives, axis=1) / tf.maximum(count, 1.0)
    hardest = tf.reduce_max(tf.where(negative_mask, values[:, 1:], tf.float32.min), axis=1)
    above = tf.cast(values[:, 0] > hardest, tf.float32)

    samples, weight = tf.reduce_sum(real), tf.reduce_sum(rows)
    return {
        "loss": tf.reduce_sum(outputs["loss"] * rows),
        "weight": weight,
        "accuracy": tf.reduce_sum(above * rows),
        f"positive_{name}": tf.reduce_sum(values[:, 0] * rows),
        f"negative_{name}": tf.reduce_sum(mean_negative * rows),
        **count_batch(batch, samples, without_negatives=samples - weight),
    }


def start_from_vectors(
    weights: keras.Variable, vocabulary: Vocabulary, options: TrainOptions
) -> None:
    """Initialises token embeddings from a file of word or character vectors."""
    path = pathlib.Path(options.token_vectors)
    vectors = read_word_vectors(path, None)
    if vocabulary.lowercase:
        vectors = fold_case(vectors)
    try:
        embeddings, count = compute_token_embeddings(vectors, vocabulary, weights.numpy())
    except InputError as error:
        raise InputError(f"`token_vectors`={path}: {error}") from error
    weights.assign(embeddings)
    total = len(vocabulary.tokens)
    logging.info(
        "%d of %d entries of the vocabulary (%.1f%%) start from a vector of %s (%d wide, the "
        "encoder %d)",
        count,
        total,
        100.0 * count / total,
        path,
        vectors.matrix.shape[1],
        embeddings.shape[1],
    )


def _weigh_rows(batch: Tensors) -> tf.Tensor:
    """float32 `[rows]`: 1 for rows with a positive and a negative, 0 for others."""
    mask = batch["candidate_mask"]
    # A row without a positive is padding of the batch.
    return tf.cast(mask[:, 0] & tf.reduce_any(mask[:, 1:], axis=1), tf.float32)


def sum_start_rows(outputs: Tensors, batch: Tensors) -> Tensors:
    """The sum of the prediction's losses over the rows that count."""
    rows = _weigh_rows(batch)
    return {
        name: tf.reduce_sum(outputs[name] * rows)
        for name in ("prediction_loss",)
        if name in outputs
    }


def add_further_losses(outputs: Tensors, sums: Tensors) -> Tensors:
    """Adds the loss of rehearsed texts to the sums of a batch.

    Args:
        outputs: the training model's outputs, with those of `rehearse` if it has them.
        sums: the sums over the batch's dialogues.
    """
    if "rehearsal_share" not in outputs:
        return sums
    loss = sums["loss"] + tf.reduce_sum(outputs["rehearsal_share"])
    return {**sums, "loss": loss, "rehearsal_loss": tf.reduce_sum(outputs["rehearsal_loss"])}
