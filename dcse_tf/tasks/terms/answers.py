"""Losses, hits and chance levels of terms whose rows have one right answer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import keras


def choose(
    logits: "keras.KerasTensor", answers: "keras.KerasTensor"
) -> "dict[str, keras.KerasTensor]":
    """The answer's cross entropy, and whether its logit is the largest.

    Args:
        logits: float `[rows, classes]`.
        answers: int32 `[rows]`, the right classes.

    Returns:
        loss and accuracy, float32 `[rows]`.
    """
    from keras import ops

    right = ops.take_along_axis(logits, ops.expand_dims(answers, -1), axis=-1)[:, 0]
    hits = ops.equal(ops.argmax(logits, axis=-1), ops.cast(answers, "int32"))
    return {"loss": ops.logsumexp(logits, axis=-1) - right, "accuracy": ops.cast(hits, "float32")}


def decide(
    logits: "keras.KerasTensor", labels: "keras.KerasTensor"
) -> "dict[str, keras.KerasTensor]":
    """The binary cross entropy, and whether the logit has the label's sign.

    Args:
        logits: float `[rows]`.
        labels: float `[rows]`, 0 or 1.

    Returns:
        loss and accuracy, float32 `[rows]`.
    """
    from keras import ops

    hits = ops.equal(logits > 0.0, labels > 0.5)
    return {"loss": ops.softplus(logits) - labels * logits, "accuracy": ops.cast(hits, "float32")}


def score_best_rule(arrays: Mapping[str, np.ndarray]) -> float | None:
    """How far examples of two classes can be told apart without reading them.

    Args:
        arrays: labels, 0 or 1, weights and hints of all examples.

    Returns:
        The accuracy of the rule that answers by the more frequent label among the examples with the
        same hint. Each half of the examples is answered by the rule made from the other half, so
        that a rule does not gain from what is chance. None without any example.
    """
    labels, weights, hints = (arrays[name] for name in ("labels", "weights", "hints"))
    if not weights.any():
        return None
    votes = (2.0 * labels - 1.0) * weights
    first, right = np.arange(len(hints)) < len(hints) // 2, 0.0
    for own in (first, ~first):
        table = np.bincount(hints[~own], votes[~own], minlength=hints.max() + 1)
        right += weights[own] @ ((table[hints[own]] > 0.0) == (labels[own] > 0.5))
    return float(right / weights.sum())


def share_of_most_frequent(answers: np.ndarray, weights: np.ndarray) -> float:
    """The accuracy of always giving the most frequent answer."""
    shares = np.bincount(answers, weights)
    return float(shares.max() / max(shares.sum(), 1e-9))
