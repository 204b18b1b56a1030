"""Warnings about trainings that learn nothing."""

_HIGH, _APART = 0.98, 0.005
_MANY = 0.5


def advise(metrics: dict[str, float]) -> str | None:
    """A warning if the model learns nothing from a stretch of training; None if all is well.

    Args:
        metrics: means over the stretch; `without_negatives` is a share of the samples.
    """
    share = metrics.get("without_negatives", 0.0)
    if share >= _MANY:
        return (
            f"{share:.0%} of the samples had no negative and taught nothing: every other response "
            "in their batches is from their own session or repeats one of its texts. Remedies: a "
            "larger `global_batch_size`; a corpus in which fewer sessions repeat each other."
        )
    return _describe_saturation(metrics)


def _describe_saturation(metrics: dict[str, float]) -> str | None:
    """A warning if all similarities are nearly equal; None if they differ.

    If all token embeddings point in almost the same direction, R^T R has nearly rank one. Every
    candidate's context-aware embedding is then parallel to its context-free one: all similarities
    are 1, whatever the context, and the objective has almost no gradient.
    """
    positive = metrics.get("positive_similarity")
    negative = metrics.get("negative_similarity")
    if positive is None or negative is None:
        return None
    if negative < _HIGH or positive - negative > _APART:
        return None
    return (
        f"saturated: the mean similarity is {positive:.4f} for true responses and {negative:.4f} "
        "for negatives, so the objective has nothing to tell apart and its gradient is almost "
        "zero. The token embeddings all point in almost the same direction, as they do with random "
        "weights, after a collapsed pre-training, or in some sentence encoders, such as E5. "
        "Remedies: start from a pre-trained `encoder`; adapt one that is no sentence encoder "
        "longer first (`task`=mlm, with warm-up); `center_tokens`; contrast the plain cosine "
        "(`cosine_weight`); lower `learning_rate`."
    )
