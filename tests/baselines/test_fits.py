"""What each baseline fits to embeddings, by hand or from the definition."""

import math

import numpy as np
import pytest
import tensorflow as tf
from tiny_bert import VOCABULARY, build_backbone

from dcse_tf.baselines import FlowOptions, affine
from dcse_tf.baselines.flow_model import Flow, FlowStep, fit_flow, make_flow
from dcse_tf.baselines.registry import Fitted
from dcse_tf.baselines.word_vectors import make_encode
from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError


def draw(count, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def correlated(count=200, dim=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, dim)) @ rng.normal(size=(dim, dim)) + 5 * rng.normal(size=dim)


def two_moons(count, seed=0):
    """Six coordinates, a curve with noise: far from a Gaussian whatever the scale."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, math.pi, count)
    curve = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    rows = curve @ rng.normal(size=(2, 6)) + 0.2 * rng.normal(size=(count, 6))
    return (3 + rows).astype(np.float32)


def whiten(fitted, rows):
    return (np.asarray(rows, np.float64) - fitted.tensors["mean"]) @ fitted.tensors["matrix"]


def test_centering_subtracts_the_mean():
    layer = affine.make_affine_layer(affine.fit_centering(np.float32([[3, 4], [3, -4], [0, 3]])), 2)
    np.testing.assert_array_equal(layer(np.float32([[3, 4], [0, 0]])), [[1, 3], [-2, -1]])
    # A mean in float32 would be wrong by a thousandth here.
    rows = np.random.default_rng(0).normal(1000.0, 1.0, size=(3000, 5)).astype(np.float32)
    centred = np.asarray(affine.make_affine_layer(affine.fit_centering(rows), 5)(rows), np.float64)
    np.testing.assert_allclose(centred.mean(axis=0), 0, atol=1e-4)
    rows = correlated()  # all-but-the-top: what is left lies in the directions of least variance
    kept = np.linalg.eigh(np.cov(rows.T))[1][:, :5]
    layer = affine.make_affine_layer(affine.fit_centering(rows, components=2), 7)
    np.testing.assert_allclose(layer(rows), (rows - rows.mean(0)) @ kept @ kept.T, atol=1e-4)


# Four sentences vary in three directions.
@pytest.mark.parametrize(("count", "dimensions", "kept"), [(200, 0, 7), (200, 3, 3), (4, 0, 3)])
def test_whitening_is_an_eigendecomposition_up_to_sign(count, dimensions, kept):
    rows = correlated(count)
    centred = rows - rows.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / (count - 1))
    order = np.argsort(-values)[:kept]
    expected = centred @ vectors[:, order] / np.sqrt(values[order])
    fitted = affine.fit_whitening(rows, dimensions)
    found = whiten(fitted, rows)
    np.testing.assert_allclose(found, expected * np.sign((found * expected).sum(0)), atol=1e-8)
    assert fitted.facts["explained"] == pytest.approx(values[order].sum() / values.sum())
    layer = affine.make_affine_layer(fitted, 7)  # computes in float64
    np.testing.assert_allclose(layer(rows), found, atol=1e-10)


def test_whitening_leaves_out_the_direction_that_a_layer_norm_fixes():
    """(x - beta) / gamma adds up to 0 over the coordinates: 63 of 64 directions vary."""
    words = [token for token in VOCABULARY.tokens[5:] if not token.startswith("[")]
    rng = np.random.default_rng(0)
    sentences = sorted({" ".join(rng.choice(words, 1 + n % 9)) for n in range(400)})
    backbone = build_backbone()
    graph = EncoderGraph(build_bert_encoder(backbone), VOCABULARY, 32, "mean")
    rows = SentenceEncoder(graph).encode(sentences)
    fitted = affine.fit_whitening(rows)
    assert fitted.facts["rank"] == 63
    gamma = np.array(backbone.transformer_layers[-1]._feedforward_layer_norm.gamma, np.float64)
    kept = fitted.tensors["matrix"] / np.linalg.norm(fitted.tensors["matrix"], axis=0)
    np.testing.assert_allclose(kept.T @ (1 / gamma / np.linalg.norm(1 / gamma)), 0, atol=1e-5)
    np.testing.assert_allclose(np.cov(whiten(fitted, rows).T), np.eye(63), atol=1e-6)


@pytest.mark.parametrize("dim", [2, 5])
def test_a_step_of_a_flow_knows_its_determinant(dim):
    step, x = FlowStep(8), tf.constant(draw(4, dim))
    step.build((None, dim))
    step.initialize(x, np.random.default_rng(3), seed=3)
    rng = np.random.default_rng(1)
    for variable in step.trainable_variables:  # so that no part of it is the identity
        variable.assign(rng.normal(scale=0.4, size=variable.shape))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, log_determinant = step(x)
    signs, expected = np.linalg.slogdet(tape.batch_jacobian(y, x))
    assert signs.all()  # it can be inverted
    assert np.abs(y - x).max() > 0.01
    np.testing.assert_allclose(log_determinant, expected, atol=1e-5)


def test_the_likelihood_of_a_flow_by_hand():
    """Before any fitting, a flow standardises: a change of scale and place."""
    flow = Flow(2, 1, 4)
    flow.build((None, 2))
    flow.initialize(tf.constant([[0.0, 10.0], [2.0, 14.0]]), seed=0)  # means 1, 12; std 1, 2
    found = np.asarray(flow.log_likelihood(tf.constant([[2.0, 10.0], [1.0, 12.0]])))
    # z = (1, -1) and (0, 0); the determinant is 1 / (1 x 2).
    expected = -math.log(2) - math.log(2 * math.pi) - np.array([1.0, 0.0])
    np.testing.assert_allclose(found, expected, atol=1e-4)


def fit(rows, seed=5, **changes):
    settings = {"depth": 2, "hidden_dim": 16, "steps": 40, "batch_size": 64, "learning_rate": 3e-3}
    options = FlowOptions(output_dir="o", data_dir="d", encoder="e", seed=seed)
    return fit_flow(rows, options.replace(**{**settings, **changes}))


@pytest.mark.slow
def test_a_flow_is_fitted_to_all_but_the_last_tenth():
    """Other embeddings in the last tenth change what is measured, and no weight of the flow."""
    rows = two_moons(1100)
    first, second = fit(rows[:1000]), fit(np.concatenate([rows[:900], rows[1000:]]))
    assert first.facts["held_out"] == second.facts["held_out"] == 100
    before, after = first.facts["log_likelihood"].values()
    assert after > before + 0.05
    assert after != second.facts["log_likelihood"]["after"]
    for name, tensor in first.tensors.items():
        np.testing.assert_array_equal(tensor, second.tensors[name])
    # What is returned is the state that was measured.
    likelihood = make_flow(first, 6).log_likelihood(tf.constant(rows[900:1000]))
    assert np.mean(likelihood) / 6 == pytest.approx(after, abs=1e-5)


@pytest.mark.slow
def test_a_memorized_corpus_does_not_decide_the_flow():
    """Forty embeddings and a large learning rate: the last state is worse than an earlier one."""
    rows = draw(44, 12)
    fitted = fit(rows, 0, hidden_dim=64, steps=60, learning_rate=2e-2)
    told = fitted.facts["log_likelihood"]
    assert fitted.facts["best_step"] < 60
    assert told["after"] >= told["before"]
    flow = make_flow(fitted, 12)
    held_out = tf.gather(rows[-4:], fitted.tensors["coordinates"], axis=1)
    likelihood = np.mean(flow.log_likelihood(held_out)) / flow.dimensions
    assert likelihood == pytest.approx(told["after"], abs=1e-4)


def test_a_flow_leaves_out_coordinates_that_follow_from_others():
    rows = two_moons(100)
    rows = np.concatenate([rows, np.full([100, 1], 7), rows[:, :1] - rows[:, 1:2]], axis=1)
    fitted = fit(rows, steps=2, depth=1)
    assert "10 others: " in fitted.summary
    assert "per dimension of these: " in fit(rows[:9], steps=1).summary  # none are held out
    assert fitted.facts["shape"] == [6, 1, 16]
    assert make_flow(fitted, 8)(rows).shape == (100, 6)


@pytest.mark.parametrize(
    ("unit", "sentence", "expected"),
    [
        ("words", "Parcel, PARCEL!", [4, 0]),
        ("words", "don't know", [0, 9]),
        ("words", "parcel parcel don't", [8 / 3, 3]),  # a word counts as often as it occurs
        ("words", "我的包裹", [3, 5]),  # jieba: 我 的 包裹
        ("characters", "我的包裹", [0.5, 1.5]),  # 我 and 包
        ("words", "nothing known", [0, 0]),
        ("words", "", [0, 0]),
    ],
)
def test_a_sentence_is_the_mean_of_its_known_words(unit, sentence, expected):
    facts = {"words": ["parcel", "我", "包裹", "包", "don't"], "word_unit": unit}
    matrix = np.array([[4, 0], [0, 2], [6, 8], [1, 1], [0, 9]], np.float32)
    encode = make_encode(Fitted({"matrix": matrix}, facts))
    np.testing.assert_allclose(encode([sentence, "parcel"]), [expected, [4, 0]], rtol=1e-6)
    assert encode([]).shape == (0, 2)


@pytest.mark.parametrize(
    ("fit", "rows", "message"),
    [
        (affine.fit_centering, [[1, np.nan], [1, 2]], "not a finite number"),
        (affine.fit_whitening, [[1, np.nan], [1, 2]], "not a finite number"),
        (lambda rows: affine.fit_centering(rows, 7), correlated(), "`components`=7: .* at most 6"),
        (affine.fit_whitening, [[1.0, 2.0]], "two distinct sentences or more, found 1"),
        (affine.fit_whitening, np.full((50, 4), 0.1), "are the same"),
        (lambda rows: affine.fit_whitening(rows, 8), correlated(), "`dimensions`=8: "),
        (fit, draw(30, 1) * np.ones([1, 4]), "vary in one direction"),
        (lambda rows: fit(rows, learning_rate=1e30), two_moons(100), "diverged"),
        (lambda x: affine.make_affine_layer(Fitted({"mean": x}, {}), 3), [1, 2], "expected 3 rows"),
    ],
)
def test_what_cannot_be_fitted_is_one_error(fit, rows, message):
    with pytest.raises(InputError, match=message):
        fit(np.array(rows, np.float32))


def test_directions_are_of_all_rows_however_many():
    rows = draw(2500, 3)
    rows[1024:, 0] *= 3
    rows[2048:, 1] *= 5
    expected = np.linalg.eigvalsh(np.cov(rows.astype(np.float64), rowvar=False))[::-1]
    np.testing.assert_allclose(affine.measure_directions(rows).variances, expected, rtol=1e-6)


def test_what_varies_by_rounding_alone_is_no_direction():
    """Beside a length of 1,000, float32 has steps of 6e-5."""
    rows = np.c_[draw(50, 3), 1000 + 1e-4 * draw(50, 1, seed=1)].astype(np.float32)
    assert affine.measure_directions(rows).rank == 3
