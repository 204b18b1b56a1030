"""Supervised contrast as a task: two sentences with one label against sentences with other labels.

It is a stage before or after training on dialogues, with labelled sentences of any domain (compare
Zhang et al. 2022, "MTP-CLNN", whose encoder learns public intents first). Not in the paper.

Commands import this module for its options and must answer --help at once, so TensorFlow and
everything that needs it is imported inside the functions.
"""

import dataclasses
from typing import TYPE_CHECKING

from dcse_tf.data.dialogue import Context
from dcse_tf.options import redefault
from dcse_tf.tasks.dialogue_cse import compute_contrastive_loss
from dcse_tf.tasks.options import ContrastOptions, TrainOptions
from dcse_tf.tasks.registry import register_task
from dcse_tf.tasks.spec import Setup, TaskSpec, centering_parts

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class LabelledOptions(ContrastOptions, TrainOptions):
    """Options for a corpus prepared from the format "labelled", in which a session is a label.

    An epoch is short, since it draws one pair for each label. The defaults are this project's.
    """

    task: str = redefault(TrainOptions, "task", "labelled")
    epochs: float = redefault(TrainOptions, "epochs", 50.0)
    global_batch_size: int = redefault(TrainOptions, "global_batch_size", 32)
    learning_rate: float = redefault(TrainOptions, "learning_rate", 2e-5)
    temperature: float = redefault(ContrastOptions, "temperature", 0.05)

    @property
    def context(self) -> Context:
        """One turn: a sentence is paired with another one of the same label."""
        return Context(1, "before")


def _build_model(setup: Setup[LabelledOptions]) -> "keras.Model":
    from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse
    from dcse_tf.tasks.shared import make_layout

    objective = Objective(setup.options.temperature, cosine_weight=1.0, both_directions=True)
    layout = make_layout(setup.options)
    return build_dialogue_cse(setup.backbone, layout, objective, setup.parts.centering)


def _make_dataset(
    setup: Setup[LabelledOptions], first_step: int, replicas: int
) -> "tf.data.Dataset":
    from dcse_tf.data.stream import BatchForm, make_contrastive_dataset
    from dcse_tf.tasks.shared import make_stream

    form = BatchForm("unique", negatives=0, negative_contexts=True, unordered=True)
    stream = make_stream(setup, first_step, replicas)
    return make_contrastive_dataset(setup.corpus, form, setup.options.context, stream)


register_task(
    TaskSpec(
        LabelledOptions,
        "two sentences of a label against those of others, from labelled sentences",
        build_model=_build_model,
        make_dataset=_make_dataset,
        compute_loss=compute_contrastive_loss,
        metrics=("accuracy", "positive_similarity", "negative_similarity"),
        build_parts=centering_parts,
    )
)
