"""Unsupervised SimCSE (Gao et al. 2021) as a task: utterances against themselves."""

import keras
import tensorflow as tf

from dcse_tf.data.stream import make_simcse_dataset
from dcse_tf.model.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.tasks.dialogue_cse import compute_contrastive_loss
from dcse_tf.tasks.task import Setup, Task, make_layout, make_stream, no_scores


def _build_simcse(setup: Setup) -> keras.Model:
    config = setup.config
    assert config.temperature is not None
    # The cosine of a row's two views, and of the first with the others' second ones.
    objective = Objective(config.temperature, cosine_weight=1.0)
    return build_dialogue_cse(setup.backbone, make_layout(config), objective, setup.centering)


def _make_simcse_dataset(setup: Setup, first_step: int, replicas: int) -> tf.data.Dataset:
    return make_simcse_dataset(setup.corpus, make_stream(setup, first_step, replicas))


SIMCSE = Task(
    build_model=_build_simcse,
    make_dataset=_make_simcse_dataset,
    compute_loss=compute_contrastive_loss,
    metric_names=("accuracy", "positive_similarity", "negative_similarity"),
    samples="utterances",
    make_evaluation=no_scores,
    scores_responses=("cosine",),
)
