import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from tiny_batch import CANDIDATES, make_index
from tiny_bert import DIM, build_backbone, draw_utterances, encode_alone, make_table

from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.bert.layout import Layout, lay_out
from dcse_tf.matching.siamese import build_siamese
from dcse_tf.tasks.siamese import compute_siamese_loss

PADDED = Layout("padded")
CONTEXTS = [[1], [3], [5]]


@pytest.fixture(scope="module")
def backbone():
    return build_backbone()


def build(backbone, layout=PADDED, **settings):
    """The model, its network with weights under which scores differ."""
    model = build_siamese(backbone, layout, 0.5, 0, **settings)
    head = model.get_layer("pair_score")
    rng = np.random.default_rng(5)
    head.set_weights([rng.normal(scale=0.3, size=w.shape) for w in head.weights])
    return model


def make_batch(absent=0, extra=0, fill=0, layout=None):
    table = make_table(draw_utterances(8), extra, fill)
    if layout:
        table = lay_out(table["token_ids"], layout)
    return {**table, **make_index(CONTEXTS, CANDIDATES, absent)}


def reference_scores(backbone, model):
    encoder = build_bert_encoder(backbone)
    means = [reference.mean_of_rows(encode_alone(encoder, ids)) for ids in draw_utterances(8)]
    weights = {v.name: v.numpy().astype(np.float64) for v in model.get_layer("pair_score").weights}
    kernels = [weights[f"{part}_kernel"] for part in ("context", "candidate", "difference")]
    names = ("bias", "output_kernel", "output_bias")
    weights = [np.concatenate(kernels), *(weights[name] for name in names)]
    return [
        [reference.pair_score(means[turn], means[j], weights) for j in candidates]
        for (turn,), candidates in zip(CONTEXTS, CANDIDATES, strict=True)
    ]


@pytest.mark.parametrize("by_row", [False, True])
def test_score_and_loss_equal_the_reference(backbone, by_row):
    model = build(backbone, by_row=by_row)
    outputs, expected = model(make_batch()), reference_scores(backbone, model)
    for row, values in zip(outputs["score"].numpy(), expected, strict=True):
        np.testing.assert_allclose(row[: len(values)], values, atol=1e-5)
    losses = [reference.nt_xent(values, 0.5) for values in expected]
    np.testing.assert_allclose(outputs["loss"], losses, rtol=1e-4, atol=1e-5)
    # The figures differ enough to tell a wrong index from a right one.
    assert min(np.ptp(values) for values in expected) > 0.05


@pytest.mark.parametrize("padding", [{"absent": 7}, {"extra": 3}, {"extra": 2, "fill": 9}])
def test_padding_never_changes_the_result(backbone, padding):
    model, mask = build(backbone), make_batch()["candidate_mask"].numpy()
    plain, padded = model(make_batch()), model(make_batch(**padding))
    np.testing.assert_allclose(padded["loss"], plain["loss"], rtol=1e-4)
    found, expected = (outputs["score"].numpy()[mask] for outputs in (padded, plain))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_loss_and_gradients_are_the_same_in_every_layout(backbone):
    results = []
    for layout in (PADDED, Layout("packed", row_length=16)):
        model = build(backbone, layout)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(make_batch(layout=layout))["loss"])
        values = {v.path: v.value for v in model.trainable_variables}
        gradients = tape.gradient(loss, values)
        results.append((loss, {k: tf.convert_to_tensor(v) for k, v in gradients.items()}))
    (one, expected), (two, found) = results
    np.testing.assert_allclose(one, two, rtol=1e-5)
    assert {path.split("/")[-1] for path in expected} > {"difference_kernel", "output_bias"}
    for path, value in expected.items():
        tolerance = 1e-6 + 1e-4 * np.abs(value).max()
        np.testing.assert_allclose(found[path], value, atol=tolerance, rtol=0, err_msg=path)


def test_first_weights_are_decided_by_the_seed(backbone):
    def draw(seed):
        return build_siamese(backbone, PADDED, 1.0, seed).get_layer("pair_score").get_weights()

    keras.utils.set_random_seed(1)
    one = draw(4)
    keras.utils.set_random_seed(2)
    for first, second in zip(one, draw(4), strict=True):
        np.testing.assert_array_equal(first, second)
    kernels = [w for w in one if w.shape == (DIM, DIM)]
    assert len({w.tobytes() for w in kernels}) == 3
    assert not np.array_equal(one[0], draw(5)[0])


def test_sums_name_scores_and_no_similarity(backbone):
    """So a run is not told that its similarities are saturated: a score has no such bound."""
    model = build(backbone)
    sums = {k: float(v) for k, v in compute_siamese_loss(model, make_batch()).items()}
    scores = reference_scores(backbone, model)
    assert not any("similarity" in name for name in sums)
    assert sums["accuracy"] == sum(row[0] > max(row[1:]) for row in scores)
    assert sums["positive_score"] == pytest.approx(sum(row[0] for row in scores), abs=1e-4)
    negatives = sum(np.mean(row[1:]) for row in scores)
    assert sums["negative_score"] == pytest.approx(negatives, abs=1e-4)
    assert sums["weight"] == sums["samples"] == 3
