"""Warnings about trainings that learn nothing."""

import math

_HIGH, _APART = 0.98, 0.005
_MANY = 0.5


def advise(metrics: dict[str, float]) -> str | None:
    """A warning if the model learns nothing from some steps; None if all is well.

    If all token embeddings point in almost the same direction, R^T R has nearly rank one. Every
    candidate's context-aware embedding is then parallel to its context-free one: all similarities
    are 1, whatever the context, and the objective has almost no gradient.

    Args:
        metrics: means over the steps; `without_negatives` is a share of the samples.
    """
    share = metrics.get("without_negatives", 0.0)
    if share >= _MANY:
        return (
            f"{share:.0%} of the samples had no negative and taught nothing: every other response "
            "in their batches is from their own session or repeats one of its texts. Remedies: a "
            "larger `global_batch_size`; a corpus in which fewer sessions repeat each other."
        )
    positive = metrics.get("positive_similarity", math.inf)
    negative = metrics.get("negative_similarity", 0.0)
    if negative < _HIGH or positive - negative > _APART:
        return None
    return (
        f"saturated: the mean similarity is {positive:.4f} for true responses and {negative:.4f} "
        "for negatives, so the objective has nothing to tell apart. The token embeddings all point "
        "in almost the same direction, as with random weights or in some sentence encoders, such "
        "as E5. Remedies: start from a pre-trained `encoder`, adapt it longer first (`task`=mlm), "
        "`center_tokens`, contrast the plain cosine (`cosine_weight`), or lower `learning_rate`."
    )
