"""Words for a run that cannot learn."""

_HIGH, _APART = 0.98, 0.005


def describe_saturation(metrics: dict[str, float]) -> str | None:
    """What to say of a stretch of training whose similarities are all alike; None if they differ.

    Where the token embeddings point almost one way, R^T R is nearly of rank one, so every
    candidate's context-aware embedding is parallel to its context-free one: all similarities are
    1 and the objective cannot move, whatever the context.

    Args:
        metrics: means of the stretch; without similarities there is nothing to say.
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
        "zero. The token embeddings point almost one way, as they do from random weights or a "
        "collapsed pre-training. Remedies: start from a pre-trained --encoder; adapt it longer "
        "first (--task=mlm, with warm-up); lower --learning_rate."
    )
