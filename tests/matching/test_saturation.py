import pytest

from dcse_tf.training.hooks import advise


def _describe(positive: float, negative: float) -> str | None:
    return advise({"loss": 2.303, "positive_similarity": positive, "negative_similarity": negative})


@pytest.mark.parametrize(
    ("positive", "negative"), [(1.0, 1.0), (0.9999, 0.9998), (0.984, 0.983), (0.990, 0.999)]
)
def test_similarities_that_are_all_one_are_reported_with_a_remedy(positive, negative):
    message = _describe(positive, negative)
    assert "saturated" in message
    assert f"{positive:.4f} for true responses and {negative:.4f} for negatives" in message
    remedies = "pre-trained `encoder`", "`task`=mlm", "`center_tokens`", "`cosine_weight`"
    for remedy in (*remedies, "`learning_rate`"):
        assert remedy in message


@pytest.mark.parametrize(
    ("positive", "negative"),
    [
        (0.99, 0.90),  # told apart
        (0.60, 0.60),  # alike, but not saturated: the gradient is alive
        (0.50, 0.10),
        (0.995, 0.985),  # both high, and still apart
        (-1.0, -1.0),
    ],
)
def test_similarities_that_differ_or_are_low_are_not_reported(positive, negative):
    assert _describe(positive, negative) is None


@pytest.mark.parametrize("name", ["positive_similarity", "negative_similarity"])
def test_without_similarities_there_is_nothing_to_say(name):
    assert advise({"loss": 2.3, "accuracy": 0.1}) is None
    assert advise({"loss": 2.3, name: 1.0}) is None


def test_samples_without_negatives_are_reported_and_are_no_saturation():
    metrics = {"positive_similarity": 0.0, "negative_similarity": 0.0, "without_negatives": 1.0}
    assert "100% of the samples had no negative" in advise(metrics)
    assert advise({**metrics, "without_negatives": 0.1}) is None
