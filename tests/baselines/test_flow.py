import math

import numpy as np
import pytest
import tensorflow as tf

from dcse_tf.baselines.flow_fitting import fit_flow
from dcse_tf.baselines.flow_layers import ActNorm, AffineCoupling, Flow, Permutation
from dcse_tf.errors import InputError

# Depth, width, steps, batch size, learning rate.
SETTINGS = (2, 16, 60, 64, 3e-3)


def draw(count, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def shake(variables, seed=1):
    """Random values, so that no part of a layer is the identity."""
    rng = np.random.default_rng(seed)
    for variable in variables:
        variable.assign(rng.normal(scale=0.4, size=variable.shape))


def make_layer(kind, dim):
    layer = {
        "act_norm": lambda: ActNorm(),
        "permutation": lambda: Permutation(),
        "coupling": lambda: AffineCoupling(8),
    }[kind]()
    layer.build((None, dim))
    if kind == "permutation":
        layer.order.assign(np.random.default_rng(3).permutation(dim).astype(np.int32))
    shake(layer.trainable_variables)
    return layer


def make_flow(dim=6, depth=2):
    flow = Flow(dim, depth, 16)
    flow.build((None, dim))
    flow.coordinates.assign(np.arange(dim))
    flow.initialize(tf.constant(draw(50, dim)), seed=2)
    shake(flow.trainable_variables)
    return flow


def jacobian_log_determinants(function, x):
    """log |det| of the Jacobian of every row by itself."""
    points = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(points)
        y = function(points)
    jacobians = tape.jacobian(y, points).numpy()  # [rows, dim, rows, dim]
    for row, other in np.argwhere(~np.eye(len(x), dtype=bool)):
        assert not jacobians[row, :, other].any()  # a row is mapped by itself
    return np.array([np.linalg.slogdet(jacobians[row, :, row])[1] for row in range(len(x))])


def two_moons(count, seed=0):
    """Six coordinates, a curve with noise: far from a Gaussian whatever the scale."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, math.pi, count)
    curve = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    rows = curve @ rng.normal(size=(2, 6)) + 0.2 * rng.normal(size=(count, 6))
    return (3 + rows).astype(np.float32)


@pytest.mark.parametrize("dim", [2, 5, 6])
@pytest.mark.parametrize("kind", ["act_norm", "permutation", "coupling"])
def test_a_layer_inverts_and_knows_its_determinant(kind, dim):
    layer, x = make_layer(kind, dim), draw(4, dim)
    y, log_determinant = layer(x)
    np.testing.assert_allclose(layer.inverse(y), x, atol=1e-5)
    assert np.abs(y - x).max() > 0.01
    expected = jacobian_log_determinants(lambda point: layer(point)[0], x)
    np.testing.assert_allclose(log_determinant, expected, atol=1e-5)


def test_a_flow_inverts_and_knows_its_determinant():
    flow, x = make_flow(), draw(4, 6)
    z, log_determinant = flow.transform(tf.constant(x))
    np.testing.assert_allclose(flow.inverse(z), x, atol=1e-4)
    expected = jacobian_log_determinants(lambda point: flow.transform(point)[0], x)
    np.testing.assert_allclose(log_determinant, expected, atol=1e-4)
    assert np.ptp(expected) > 0.1


def test_a_deep_flow_inverts():
    flow, x = make_flow(dim=32, depth=16), draw(20, 32)
    flow.initialize(tf.constant(x), seed=4)
    np.testing.assert_allclose(flow.inverse(flow.transform(tf.constant(x))[0]), x, atol=1e-4)


def test_a_coupling_stretches_by_e_at_most():
    layer = make_layer("coupling", 6)
    shake(layer.trainable_variables, seed=8)
    layer.biases[-1].assign(1e3 * np.ones(6))
    _, log_determinant = layer(draw(4, 6))
    np.testing.assert_allclose(log_determinant, 3, atol=1e-5)


def test_act_norm_makes_its_first_batch_standard():
    layer, x = make_layer("act_norm", 4), 3 + 2 * draw(80, 4)
    layer.initialize(tf.constant(x))
    y = np.asarray(layer(x)[0])
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(y.std(axis=0), 1, atol=1e-4)


def test_likelihood_by_hand():
    """Before any fitting a flow is its ActNorms: a change of scale and place."""
    flow = Flow(2, 1, 4)
    flow.build((None, 2))
    flow.initialize(tf.constant([[0.0, 10.0], [2.0, 14.0]]), seed=0)  # means 1, 12; std 1, 2
    found = np.asarray(flow.log_likelihood(tf.constant([[2.0, 10.0], [1.0, 12.0]])))
    # z = (1, -1) and (0, 0); the determinant is 1 / (1 x 2).
    expected = -math.log(2) - math.log(2 * math.pi) - np.array([1.0, 0.0])
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_likelihood_rises_while_a_flow_is_fitted():
    fitted = fit_flow(two_moons(600), *SETTINGS, seed=5)
    assert fitted.after > fitted.before + 0.05
    assert fitted.held_out == 60
    assert fitted.best_step > 0
    # What is returned is the state that was measured.
    others = two_moons(600)[-60:]
    mean = float(np.mean(fitted.flow.log_likelihood(tf.constant(others)))) / 6
    assert mean == pytest.approx(fitted.after, abs=1e-5)


def test_what_is_held_out_is_not_fitted_to():
    """Other embeddings in the last tenth change what is measured, and no weight of the flow."""
    rows, settings = two_moons(1100), (2, 16, 40, 64, 3e-3)
    first = fit_flow(rows[:1000], *settings, seed=5)
    second = fit_flow(np.concatenate([rows[:900], rows[1000:]]), *settings, seed=5)
    assert first.held_out == second.held_out == 100
    assert first.after != second.after
    assert first.best_step == second.best_step == 40
    for one, other in zip(first.flow.weights, second.flow.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_flow_is_decided_by_its_seed():
    rows, settings = two_moons(200), (1, 8, 3, 32, 1e-2)
    tf.random.set_seed(1)
    first = fit_flow(rows, *settings, seed=1).flow(rows[:5])
    tf.random.set_seed(2)
    np.testing.assert_array_equal(fit_flow(rows, *settings, seed=1).flow(rows[:5]), first)
    assert np.abs(fit_flow(rows, *settings, seed=2).flow(rows[:5]) - first).max() > 1e-2


def test_a_memorized_corpus_does_not_decide_the_flow():
    """Forty embeddings and a large learning rate: the last state is worse than an earlier one."""
    settings = (2, 64, 60, 40, 2e-2)
    fitted = fit_flow(draw(44, 12), *settings, seed=0)
    assert fitted.best_step < 60
    assert fitted.after >= fitted.before


def test_coordinates_that_follow_from_others_are_left_out():
    rows = two_moons(100)
    rows = np.concatenate([rows, np.full([100, 1], 7), rows[:, :1] - rows[:, 1:2]], axis=1)
    fitted = fit_flow(rows, 1, 8, 2, 32, 1e-3, seed=0)
    assert fitted.flow.dimensions == 6
    assert fitted.flow(rows).shape == (100, 6)
    assert np.isfinite(fitted.after)
    x = fitted.flow.select(rows)
    np.testing.assert_allclose(fitted.flow.inverse(fitted.flow(rows)), x, atol=1e-4)


def test_what_has_no_density_is_one_error():
    with pytest.raises(InputError, match="two distinct sentences"):
        fit_flow(draw(1, 6), *SETTINGS, seed=0)
    with pytest.raises(InputError, match="vary in one direction"):
        fit_flow(draw(30, 1) * np.ones([1, 4], np.float32), *SETTINGS, seed=0)
    with pytest.raises(InputError, match="diverged"):
        fit_flow(two_moons(100), 1, 16, 9, 64, 1e6, seed=0)
