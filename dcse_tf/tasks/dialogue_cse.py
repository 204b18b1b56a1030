"""The paper's contrastive objective as a task.

Command lines read the options to answer --help at once, so TensorFlow, and all that needs it, is
imported inside the functions.
"""

import dataclasses
from typing import TYPE_CHECKING

from dcse_tf.options import option, redefault
from dcse_tf.tasks.options import BatchOptions, ContextOptions, ContrastOptions, TrainOptions
from dcse_tf.tasks.registry import register_task
from dcse_tf.tasks.spec import EncoderParts, Setup, TaskSpec, Tensors

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class DialogueCseOptions(ContextOptions, ContrastOptions, BatchOptions):
    """The paper's figures (section 5.3) where it gives one.

    Epochs are ours: a visit to a session trains on one of its turns.
    """

    task: str = redefault(TrainOptions, "task", "dialogue_cse")
    epochs: float = redefault(TrainOptions, "epochs", 10.0)
    global_batch_size: int = redefault(TrainOptions, "global_batch_size", 20)
    learning_rate: float = redefault(TrainOptions, "learning_rate", 5e-5)
    freeze_layers: int = redefault(TrainOptions, "freeze_layers", -1)
    freeze_embeddings: bool = redefault(TrainOptions, "freeze_embeddings", True)
    best_metric: str = redefault(TrainOptions, "best_metric", "dev/matching_r1")

    aggregation: str = option(
        "mean",
        "How turns are put together. mean: every turn counts the same (the paper's I2); "
        "attention: by a two-layer network and a softmax (I1, equations 5 and 6); "
        "additive_attention: I1 as the authors' released code has it.",
        choices=("mean", "attention", "additive_attention"),
    )
    cosine_weight: float = option(
        0.0,
        "Share of the loss that contrasts the plain cosine of a response and the mean of its "
        "context's embeddings. 0: the paper's objective; 1: without any matching.",
        minimum=0.0,
        maximum=1.0,
    )

    def check(self) -> None:
        super().check()
        if self.aggregation != "mean" and self.cosine_weight == 1.0:
            self.refuse("aggregation", "with `cosine_weight`=1 there is no matching")


def _build_parts(options: DialogueCseOptions, dim: int) -> EncoderParts:
    from dcse_tf.model.dialogue_cse import build_turn_attention
    from dcse_tf.tasks.shared import build_centering

    parts = build_centering(options, dim)
    if options.aggregation == "mean":
        return parts
    attention = build_turn_attention(options.aggregation, dim, options.seed + 2)
    return dataclasses.replace(parts, attention=attention)


def _build_model(setup: Setup[DialogueCseOptions]) -> "keras.Model":
    from dcse_tf.model.dialogue_cse import Objective, build_dialogue_cse
    from dcse_tf.tasks.shared import make_layout

    options, parts = setup.options, setup.parts
    objective = Objective(options.temperature, parts.attention, options.cosine_weight)
    return build_dialogue_cse(setup.backbone, make_layout(options), objective, parts.centering)


def _make_dataset(
    setup: Setup[DialogueCseOptions], first_step: int, replicas: int
) -> "tf.data.Dataset":
    from dcse_tf.tasks.shared import make_dialogue_dataset

    return make_dialogue_dataset(setup, first_step, replicas)


def compute_contrastive_loss(model: "keras.Model", batch: Tensors) -> Tensors:
    """Sums over the rows of a batch: the loss of equation 8, and what tells how it goes.

    accuracy: the positive is above every negative; equal is not above. positive_similarity, and
    negative_similarity as the mean over a row's negatives.
    """
    from dcse_tf.tasks.shared import sum_rows

    return sum_rows(model(batch, training=True), "similarity", batch)


register_task(
    TaskSpec(
        DialogueCseOptions,
        "the paper's contrastive objective",
        build_model=_build_model,
        make_dataset=_make_dataset,
        compute_loss=compute_contrastive_loss,
        metrics=("accuracy", "positive_similarity", "negative_similarity"),
        similarities=("matching", "cosine"),
        build_parts=_build_parts,
    )
)
