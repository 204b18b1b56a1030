"""The paper's contrastive objective as a task."""

import keras

from dcse_tf.model.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.tasks.contrast import make_dialogue_dataset, sum_rows
from dcse_tf.tasks.task import Setup, Task, Tensors, make_layout, no_scores


def _build_contrastive(setup: Setup) -> keras.Model:
    config = setup.config
    assert config.temperature is not None
    objective = Objective(config.temperature, setup.attention, config.cosine_weight)
    layout = make_layout(config)
    return build_dialogue_cse(setup.backbone, layout, objective, setup.centering)


def compute_contrastive_loss(model: keras.Model, batch: Tensors) -> Tensors:
    """Sums over the rows of a batch: the loss of equation 8, and what tells how it goes.

    accuracy: the positive is above every negative; equal is not above. positive_similarity, and
    negative_similarity as the mean over a row's negatives.
    """
    return sum_rows(model(batch, training=True), "similarity", batch)


DIALOGUE_CSE = Task(
    build_model=_build_contrastive,
    make_dataset=make_dialogue_dataset,
    compute_loss=compute_contrastive_loss,
    metric_names=("accuracy", "positive_similarity", "negative_similarity"),
    samples="sessions",
    make_evaluation=no_scores,
    scores_responses=("matching", "cosine"),
)
