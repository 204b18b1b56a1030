"""One suite over all layers; the cases are in layer_cases.py."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_cases import CASES, DIM, Case, Padding, make_batch

from dcse_tf.errors import InputError
from dcse_tf.matching import equations

EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
PADDED_CASES = pytest.mark.parametrize(
    "case", [case for case in CASES if case.has_padding], ids=lambda case: case.name
)


def _tensors(arrays, dtype="float32"):
    return [tf.constant(a if a.dtype == bool else a.astype(dtype)) for a in arrays]


def _call(case: Case, padding: Padding, dtype="float32") -> np.ndarray:
    return case.build(dtype=dtype)(*_tensors(case.inputs(make_batch(), padding), dtype)).numpy()


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-9), ("float32", 1e-5)])
@EVERY_CASE
def test_equals_the_reference(case, dtype, bound):
    output = _call(case, Padding(), dtype)
    assert output.dtype == dtype
    np.testing.assert_allclose(output, case.expected(make_batch()), rtol=bound, atol=bound)


@PADDED_CASES
def test_padding_values_never_change_a_result(case):
    first, second = (_call(case, Padding(extra=1, fill_seed=seed)) for seed in (5, 6))
    np.testing.assert_array_equal(first, second)


@PADDED_CASES
def test_extra_padding_never_changes_a_result(case):
    expected = case.expected(make_batch())
    output = _call(case, Padding(extra=3, fill_seed=5))
    if case.name == "matching":  # the one layer whose output is padded too, with zeros
        assert output.shape == (2, 3, 6, 7, DIM)
        rest = output.copy()
        rest[:, :, :3, :4] = 0.0
        assert not rest.any()
        output = output[:, :, :3, :4]
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


@EVERY_CASE
def test_works_in_a_functional_model_in_a_graph_and_saved(case, tmp_path):
    arrays = _tensors(case.inputs(make_batch(), Padding()))
    # Only the width is fixed; batch, turns and tokens are not known when the model is built.
    keep = {DIM: DIM}
    inputs = [keras.Input([keep.get(n) for n in a.shape[1:]], dtype=a.dtype.name) for a in arrays]
    model = keras.Model(inputs, case.build(name="layer")(*inputs))
    output = tf.function(model)(arrays)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(arrays), model(arrays))
    np.testing.assert_allclose(output, case.expected(make_batch()), rtol=1e-5, atol=1e-5)
    fixed = [keras.Input(batch_shape=a.shape, dtype=a.dtype.name) for a in arrays]
    assert tuple(case.build()(*fixed).shape) == tuple(output.shape)


@EVERY_CASE
def test_bfloat16_inputs_are_computed_in_float32(case):
    """The inputs lose digits; the layer, told float32, loses no more."""
    batch = make_batch(rounded=True)
    output = case.build(dtype="float32")(*_tensors(case.inputs(batch, Padding()), "bfloat16"))
    assert output.dtype == tf.float32
    np.testing.assert_allclose(output, case.expected(batch), rtol=1e-5, atol=1e-5)


@EVERY_CASE
def test_gradients_are_finite_at_zero(case):
    arrays = [
        tf.constant(a) if a.dtype == bool else tf.zeros(a.shape)
        for a in case.inputs(make_batch(), Padding())
    ]
    floats = [a for a in arrays if a.dtype != tf.bool]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        output = case.build()(*arrays)
    assert np.isfinite(output).all()
    assert all(np.isfinite(gradient).all() for gradient in tape.gradient(output, floats))


def test_nothing_real_pools_to_zero():
    pooled = equations.MaskedMeanPooling()(tf.ones([1, 2, 3]), tf.zeros([1, 2], tf.bool))
    np.testing.assert_array_equal(pooled, [[0, 0, 0]])


def test_cosine_of_a_zero_vector_is_zero_and_length_does_not_matter():
    layer = equations.CosineSimilarity()
    vector = tf.constant([[3.0, 4.0]])
    np.testing.assert_array_equal(layer(tf.zeros([1, 2]), vector), [0])
    # [3, 4] and [4, 3]: 24 / 25
    for scale in (1e-5, 1.0, 1e6):
        np.testing.assert_allclose(layer(scale * vector, vector[:, ::-1]), [0.96], rtol=1e-6)
    # Both short: the product of the squared lengths, 5e-24, is still above the floor.
    np.testing.assert_allclose(layer(3e-7 * vector, 3e-7 * vector[:, ::-1]), [0.96], rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0])
def test_loss_of_equal_similarities_is_the_logarithm_of_their_number(temperature):
    # -1 is the lowest cosine there is: masked places must stay below it at any temperature.
    mask = tf.constant([[True, True, True, False, False]])
    loss = equations.NTXent(temperature)(-tf.ones([1, 5]), mask)
    np.testing.assert_allclose(loss, [math.log(3)], rtol=1e-5)


def test_an_encoder_with_a_matching_that_was_removed_is_refused(tmp_path):
    equations.write_matching(tmp_path, None)
    assert equations.read_attention(tmp_path) is None
    (tmp_path / "matching.json").write_text('{"kind": "residual"}')
    with pytest.raises(InputError, match=r"matching\.json: .*'residual', which was removed"):
        equations.read_attention(tmp_path)


@pytest.mark.parametrize("kind", ["attention", "additive_attention"])
def test_an_attention_that_was_written_is_read_back(tmp_path, kind):
    own = equations.build_turn_attention(kind, 6, seed=3)
    equations.write_matching(tmp_path, own)
    found = equations.read_attention(tmp_path)
    assert found.kind == kind
    for variable, expected in zip(found.variables, own.variables, strict=True):
        np.testing.assert_array_equal(variable, expected)
