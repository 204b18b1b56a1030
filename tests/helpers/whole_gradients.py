"""Loss and gradients of a step's whole batch, whatever number of replicas it is divided among."""

import numpy as np
import tensorflow as tf

from dcse_tf.tasks.dialogue_cse import compute_contrastive_loss


def differentiate(training, names, replicas=1):
    """Sums over the replicas' parts of the first step: those of these names, and the gradients."""
    variables = training.model.trainable_variables
    totals, sums = None, []
    for batch in training.spec.make_dataset(training.setup, 0, replicas).take(replicas):
        with tf.GradientTape() as tape:
            sums.append(compute_contrastive_loss(training.model, batch))
        found = tape.gradient(sums[-1]["loss"], [v.value for v in variables])
        found = [tf.convert_to_tensor(gradient).numpy() for gradient in found]
        totals = found if totals is None else [a + b for a, b in zip(totals, found, strict=True)]
    names = ("loss", "weight", "accuracy", *names)
    return [sum(float(each[name]) for each in sums) for name in names], totals


def assert_same(first, second):
    """Of two results of `differentiate`."""
    np.testing.assert_allclose(first[0], second[0], rtol=1e-4)
    for one, other in zip(first[1], second[1], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)
