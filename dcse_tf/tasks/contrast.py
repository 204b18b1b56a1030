"""What tasks share that tell a row's positive from its negatives."""

import tensorflow as tf

from dcse_tf.data.stream import BatchForm, make_contrastive_dataset
from dcse_tf.tasks.task import Setup, Tensors, count_batch, make_stream


def make_dialogue_dataset(setup: Setup, first_step: int, replicas: int) -> tf.data.Dataset:
    """Batches of responses, contexts and negatives as the run's settings have them."""
    config = setup.config
    form = BatchForm(
        config.batch_form,
        config.negatives,
        config.session_turns,
        config.longest_context(setup.manifest.max_sequence_length),
    )
    stream = make_stream(setup, first_step, replicas)
    return make_contrastive_dataset(setup.corpus, form, config.context, stream)


def sum_rows(outputs: Tensors, name: str, batch: Tensors) -> Tensors:
    """Sums over the rows of a batch: the loss of equation 8, and what tells how it goes.

    Args:
        outputs: of the training model: loss `[rows]` and, by its name, what the loss contrasts,
            float `[rows, 1 + negatives]`.
        name: its name.
        batch: as `make_batches` gives it.

    Returns:
        loss, weight and the counts; accuracy: the positive is above every negative, equal is not
        above; positive_NAME, and negative_NAME as the mean over a row's negatives. A row without
        any negative has nothing to tell apart: it is counted, and has no part in the sums.
    """
    values, negative_mask = outputs[name], batch["candidate_mask"][:, 1:]
    # A row without a positive only fills the batch up.
    real = tf.cast(batch["candidate_mask"][:, 0], tf.float32)
    count = tf.reduce_sum(tf.cast(negative_mask, tf.float32), axis=1)
    rows = real * tf.cast(count > 0.0, tf.float32)

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
