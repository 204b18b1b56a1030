"""The paper's trained baselines: a network scores pairs of embeddings (SiameseBERT_S and _M)."""

import keras

from dcse_tf.model.siamese import build_siamese
from dcse_tf.tasks.contrast import make_dialogue_dataset, sum_rows
from dcse_tf.tasks.task import Setup, Task, Tensors, make_layout, no_scores


def _build_siamese(setup: Setup) -> keras.Model:
    config = setup.config
    assert config.temperature is not None
    return build_siamese(
        setup.backbone,
        make_layout(config),
        config.temperature,
        config.seed + 3,
        by_row=config.negatives == 0,
        centering=setup.centering,
    )


def compute_siamese_loss(model: keras.Model, batch: Tensors) -> Tensors:
    """Sums over the rows of a batch, see `sum_rows`."""
    return sum_rows(model(batch, training=True), "score", batch)


# What tells the two tasks apart is their settings: the turns of a context, and whether they are
# one sequence.
SIAMESE = Task(
    build_model=_build_siamese,
    make_dataset=make_dialogue_dataset,
    compute_loss=compute_siamese_loss,
    metric_names=("accuracy", "positive_score", "negative_score"),
    samples="sessions",
    make_evaluation=no_scores,
    scores_responses=("cosine",),
)
