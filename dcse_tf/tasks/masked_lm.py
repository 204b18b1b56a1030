"""Masked language modelling as a task: continued pre-training (paper, section 5.3).

Commands import this module for its options and must answer --help at once, so TensorFlow and
everything that needs it is imported inside the functions.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from dcse_tf.tasks.options import MaskingOptions
from dcse_tf.tasks.registry import register_task
from dcse_tf.tasks.spec import Scores, Setup, TaskSpec, Tensors

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from dcse_tf.data.masking import MaskingRule


@dataclasses.dataclass(frozen=True)
class MaskedLmOptions(MaskingOptions):
    """Options with the paper's values (section 5.3) as defaults; it gives no number of epochs."""

    task: str = "mlm"
    epochs: float = 0.5
    global_batch_size: int = 50
    learning_rate: float = 2e-5
    best_metric: str = "dev/accuracy"


def _build_model(setup: Setup[MaskedLmOptions]) -> "keras.Model":
    from dcse_tf.bert.masked_lm import build_masked_lm
    from dcse_tf.tasks.shared import make_layout, start_masked_lm_head

    model, head = build_masked_lm(setup.backbone, make_layout(setup.options))
    start_masked_lm_head(setup, head)
    return model


def _make_dataset(
    setup: Setup[MaskedLmOptions], first_step: int, replicas: int
) -> "tf.data.Dataset":
    from dcse_tf.data.stream import make_masked_lm_dataset
    from dcse_tf.tasks.shared import make_stream

    stream = make_stream(setup, first_step, replicas)
    return make_masked_lm_dataset(setup.corpus, _make_rule(setup), stream)


def _make_rule(setup: Setup[MaskedLmOptions]) -> "MaskingRule":
    """Each row is one text with the corpus' prefix, whose tokens are not predicted."""
    from dcse_tf.tasks.shared import make_masking_rule

    return make_masking_rule(setup, setup.vocabulary.count_prefix())


def compute_masked_lm_loss(model: "keras.Model", batch: Tensors, training: bool = True) -> Tensors:
    """Sums over the predictions of a batch: cross entropy, and correct predictions."""
    import tensorflow as tf

    from dcse_tf.tasks.shared import count_batch

    # If a dict has additional keys, Keras matches inputs by order instead of by name.
    inputs = {k: v for k, v in batch.items() if k not in ("mask_ids", "mask_weights")}
    logits = tf.cast(model(inputs, training=training), tf.float32)
    weights = batch["mask_weights"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["mask_ids"], logits)
    right = tf.cast(
        tf.argmax(logits, axis=-1, output_type=tf.int32) == batch["mask_ids"], tf.float32
    )
    samples = tf.cast(tf.shape(batch["padding_mask"])[0], tf.float32)
    return {
        "loss": tf.reduce_sum(losses * weights),
        "weight": tf.reduce_sum(weights),
        "accuracy": tf.reduce_sum(right * weights),
        **count_batch(batch, samples, without_negatives=0.0),
    }


def _make_evaluation(setup: Setup[MaskedLmOptions], model: "keras.Model") -> Callable[[], Scores]:
    """Makes the evaluation: loss and accuracy on dev utterances, with the same masks every time."""
    import tensorflow as tf

    from dcse_tf.data.stream import Stream, make_masked_lm_dataset
    from dcse_tf.tasks.shared import average_sums, make_layout

    split = setup.manifest.splits["dev"]
    utterances = min(20 * setup.options.dev_samples, split.utterances)
    if not utterances:
        return dict
    layout = make_layout(setup.options)
    stream = Stream(min(64, utterances), setup.options.seed, layout=layout, most=utterances)
    dataset = make_masked_lm_dataset(setup.corpus, _make_rule(setup), stream, "dev")
    compute = tf.function(
        lambda batch: compute_masked_lm_loss(model, batch, training=False), reduce_retracing=True
    )

    return functools.partial(average_sums, dataset, compute, ("loss", "accuracy"))


register_task(
    TaskSpec(
        MaskedLmOptions,
        "continued pre-training by masked language modelling",
        build_model=_build_model,
        make_dataset=_make_dataset,
        compute_loss=compute_masked_lm_loss,
        metrics=("accuracy",),
        samples="utterances",
        similarities=(),
        make_evaluation=_make_evaluation,
        scores=("accuracy", "loss"),
        lower_is_better=("loss",),
    )
)
