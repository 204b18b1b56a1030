"""Unsupervised SimCSE (Gao et al. 2021) as a task: utterances against themselves."""

import keras
import tensorflow as tf

from dcse_tf.data.stream import make_view_dataset
from dcse_tf.model.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.tasks.dialogue_cse import compute_contrastive_loss
from dcse_tf.tasks.task import Setup, Task, make_layout, no_scores


def _build_simcse(setup: Setup) -> keras.Model:
    config = setup.config
    assert config.temperature is not None
    # The cosine of a row's two views, and of the first with the others' second ones.
    objective = Objective(config.temperature, cosine_weight=1.0)
    return build_dialogue_cse(setup.backbone, make_layout(config), objective, setup.centering)


def _make_simcse_dataset(setup: Setup, first_step: int, replicas: int) -> tf.data.Dataset:
    return make_view_dataset(
        setup.data_dir,
        setup.manifest,
        batch_size=setup.config.global_batch_size or 0,
        seed=setup.config.seed,
        layout=make_layout(setup.config),
        fixed_shapes=setup.config.jit_compile,
        first_step=first_step,
        replicas=replicas,
    )


SIMCSE = Task(
    build_model=_build_simcse,
    make_dataset=_make_simcse_dataset,
    compute_loss=compute_contrastive_loss,
    metric_names=("accuracy", "positive_similarity", "negative_similarity"),
    samples="utterances",
    make_evaluation=no_scores,
    scores_responses=("cosine",),
)
