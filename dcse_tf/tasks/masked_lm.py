"""Masked language modelling as a task: continued pre-training (paper, section 5.3)."""

from collections.abc import Callable

import keras
import tensorflow as tf

from dcse_tf.data.masking import MaskingRule
from dcse_tf.data.stream import Stream, make_masked_lm_dataset
from dcse_tf.model.bert import initialize_weights
from dcse_tf.model.masked_lm import build_masked_lm, load_head, own_variables
from dcse_tf.model.tokenizer import SPECIAL_TOKENS
from dcse_tf.tasks.task import Scores, Setup, Task, Tensors, count_batch, make_layout, make_stream


def _build_masked_lm(setup: Setup) -> keras.Model:
    model, head = build_masked_lm(setup.backbone, make_layout(setup.config))
    source = setup.config.encoder or setup.config.encoder_size
    if not load_head(head, setup.tensors, source):
        initialize_weights(own_variables(head), setup.config.seed + 1)
    return model


def _make_masked_lm_dataset(setup: Setup, first_step: int, replicas: int) -> tf.data.Dataset:
    stream = make_stream(setup, first_step, replicas)
    return make_masked_lm_dataset(setup.corpus, _masking_rule(setup), stream)


def _masking_rule(setup: Setup) -> MaskingRule:
    index = setup.vocabulary.index
    return MaskingRule(
        mask_rate=setup.config.mask_rate,
        max_predictions=setup.config.max_predictions,
        mask_id=index("[MASK]"),
        special_ids=tuple(index(token) for token in SPECIAL_TOKENS),
        vocabulary_size=len(setup.vocabulary.tokens),
    )


def compute_masked_lm_loss(model: keras.Model, batch: Tensors, training: bool = True) -> Tensors:
    """Sums over the predictions of a batch: cross entropy, and whether the best guess is right."""
    # Keras matches a dict with other keys by order, not by name.
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


def _make_masked_lm_evaluation(setup: Setup, model: keras.Model) -> Callable[[], Scores]:
    """Loss and accuracy on dev utterances under masks that are the same every time."""
    split = setup.manifest.splits["dev"]
    utterances = min(20 * setup.config.dev_samples, split.utterances)
    if not utterances:
        return lambda: {}
    batch_size = min(64, utterances)
    stream = Stream(batch_size, setup.config.seed, layout=make_layout(setup.config))
    dataset = make_masked_lm_dataset(setup.corpus, _masking_rule(setup), stream, "dev").take(
        utterances // batch_size
    )
    compute = tf.function(
        lambda batch: compute_masked_lm_loss(model, batch, training=False), reduce_retracing=True
    )

    def evaluate() -> Scores:
        totals = {"loss": 0.0, "accuracy": 0.0, "weight": 0.0}
        for batch in dataset:
            sums = compute(batch)
            totals = {name: total + float(sums[name]) for name, total in totals.items()}
        weight = totals.pop("weight")
        return {f"dev/{name}": total / max(weight, 1.0) for name, total in totals.items()}

    return evaluate


MASKED_LM = Task(
    build_model=_build_masked_lm,
    make_dataset=_make_masked_lm_dataset,
    compute_loss=compute_masked_lm_loss,
    metric_names=("accuracy",),
    samples="utterances",
    make_evaluation=_make_masked_lm_evaluation,
    scores_responses=(),
)
