"""Unsupervised SimCSE (Gao et al. 2021) as a task: an utterance is its own positive.

Commands import this module for its options and must answer --help at once, so TensorFlow and
everything that needs it is imported inside the functions.
"""

import dataclasses
from typing import TYPE_CHECKING

from dcse_tf.tasks.dialogue_cse import compute_contrastive_loss
from dcse_tf.tasks.options import ContextOptions, ContrastOptions, TrainOptions
from dcse_tf.tasks.registry import register_task
from dcse_tf.tasks.spec import Setup, TaskSpec, centering_parts

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class SimcseOptions(ContextOptions, ContrastOptions, TrainOptions):
    """Options with Gao et al.'s values for unsupervised BERT-base: one epoch, nothing frozen."""

    task: str = "simcse"
    epochs: float = 1.0
    global_batch_size: int = 64
    learning_rate: float = 3e-5
    temperature: float = 0.05


def _build_model(setup: Setup[SimcseOptions]) -> "keras.Model":
    from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse
    from dcse_tf.tasks.shared import make_layout

    # The cosine of a row's two views is contrasted with that of its first view and the second view
    # of each other row.
    objective = Objective(setup.options.temperature, cosine_weight=1.0)
    layout = make_layout(setup.options)
    return build_dialogue_cse(setup.backbone, layout, objective, setup.parts.centering)


def _make_dataset(setup: Setup[SimcseOptions], first_step: int, replicas: int) -> "tf.data.Dataset":
    from dcse_tf.data.stream import make_simcse_dataset
    from dcse_tf.tasks.shared import make_stream

    return make_simcse_dataset(setup.corpus, make_stream(setup, first_step, replicas))


register_task(
    TaskSpec(
        SimcseOptions,
        "each utterance against itself under another dropout",
        build_model=_build_model,
        make_dataset=_make_dataset,
        compute_loss=compute_contrastive_loss,
        metrics=("accuracy", "positive_similarity", "negative_similarity"),
        samples="utterances",
        build_parts=centering_parts,
    )
)
