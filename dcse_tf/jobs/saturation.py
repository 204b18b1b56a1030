"""Words for a run that cannot learn."""

_HIGH, _APART = 0.98, 0.005
_MANY = 0.5


def describe_trouble(metrics: dict[str, float]) -> str | None:
    """What to say of a stretch of training that teaches nothing; None where all is well.

    Args:
        metrics: means of the stretch; `without_negatives` is a share of the samples.
    """
    share = metrics.get("without_negatives", 0.0)
    if share >= _MANY:
        return (
            f"{share:.0%} of the samples had no negative and taught nothing: every other response "
            "of their batches is of their own session or has a text of it. Remedies: a larger "
            "--global_batch_size; a corpus in which fewer sessions repeat each other."
        )
    return _describe_saturation(metrics)


def _describe_saturation(metrics: dict[str, float]) -> str | None:
    """What to say where all similarities are alike; None where they differ.

    Where the token embeddings point almost one way, R^T R is nearly of rank one, so every
    candidate's context-aware embedding is parallel to its context-free one: all similarities are
    1 and the objective cannot move, whatever the context.
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
