import numpy as np
import pytest
import reference
import tensorflow as tf

from dcse_tf.matching.pair_similarity import PairScore

DIM, BATCH, SENTENCES = 6, 4, 7
rng = np.random.default_rng(0)
CONTEXT, TABLE = rng.normal(size=(BATCH, DIM)), rng.normal(size=(SENTENCES, DIM))
# Kernel [3 d, h], bias, output kernel, bias: as the reference has them.
WEIGHTS = [rng.normal(size=shape) for shape in ((3 * DIM, DIM), (DIM,), (DIM, 1), (1,))]
INDEX = rng.integers(0, SENTENCES, size=(BATCH, 3))

ways = pytest.mark.parametrize("by_row", [False, True])


def build(by_row=False, dtype="float32", weights=WEIGHTS):
    kernel, bias, output_kernel, output_bias = weights
    layer = PairScore(by_row, dtype=dtype)
    layer.build((None, DIM), (None, DIM), (None, None))
    parts = dict(zip(("context", "candidate", "difference"), np.split(kernel, 3), strict=True))
    named = {f"{name}_kernel": part for name, part in parts.items()}
    named |= {"bias": bias, "output_kernel": output_kernel, "output_bias": output_bias}
    assert {variable.name for variable in layer.weights} == set(named)
    for variable in layer.weights:
        variable.assign(named[variable.name])
    return layer


def inputs(dtype="float32"):
    return tf.constant(CONTEXT, dtype), tf.constant(TABLE, dtype), tf.constant(INDEX, tf.int32)


@ways
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5)])
def test_equals_the_reference(by_row, dtype, bound):
    score = build(by_row, dtype)(*inputs(dtype))
    assert score.dtype == dtype
    expected = [
        [reference.pair_score(u, TABLE[j], WEIGHTS) for j in row]
        for u, row in zip(CONTEXT, INDEX, strict=True)
    ]
    np.testing.assert_allclose(score, expected, rtol=bound, atol=bound)


def test_a_score_worked_out_by_hand():
    # u = [1, 2], v = [3, 1]: features [1, 2, 3, 1, 2, 1]. Unit 1 adds them all and 1: 11; unit 2
    # takes twice |u - v| from a bias of 2: 2 - 2 x (2 + 1) = -4, cut to 0. Score: 3 x 11 - 7.
    kernel = np.array([[1, 0]] * 4 + [[1, -2]] * 2, np.float64)
    layer = PairScore()
    layer.build((None, 2), (None, 2), (None, None))
    weights = (*np.split(kernel, 3), [1, 2], [[3], [100]], [-7])
    layer.set_weights([np.array(weight, np.float32) for weight in weights])
    table = tf.constant([[9.0, 9.0], [3.0, 1.0]])
    score = layer(tf.constant([[1.0, 2.0]]), table, tf.constant([[1]]))
    np.testing.assert_allclose(score, [[26.0]])


@ways
def test_gradients_are_those_of_the_reference(by_row):
    """Along a random direction of the weights and inputs, by a central difference."""
    layer = build(by_row, "float64")
    draw = np.random.default_rng(1)
    moves = [draw.normal(size=w.shape) for w in (*WEIGHTS, CONTEXT, TABLE)]
    factors = draw.normal(size=INDEX.shape)

    @tf.function
    def differentiate(context, table, index):
        with tf.GradientTape() as tape:
            tape.watch([context, table])
            total = tf.reduce_sum(layer(context, table, index) * factors)
        return tape.gradient(total, [*(v.value for v in layer.trainable_variables), context, table])

    found = [tf.convert_to_tensor(g).numpy() for g in differentiate(*inputs("float64"))]
    named = dict(zip((v.name for v in layer.trainable_variables), found[:-2], strict=True))
    kernels = [named[f"{part}_kernel"] for part in ("context", "candidate", "difference")]
    gradients = [np.concatenate(kernels), *(named[n] for n in ("bias", "output_kernel",
                 "output_bias")), *found[-2:]]  # fmt: skip

    def total_at(step):
        *weights, context, table = (
            value + step * move
            for value, move in zip((*WEIGHTS, CONTEXT, TABLE), moves, strict=True)
        )
        return sum(
            factor * reference.pair_score(u, table[j], weights)
            for u, row, factors_of_row in zip(context, INDEX, factors, strict=True)
            for j, factor in zip(row, factors_of_row, strict=True)
        )

    slope = sum(np.sum(g * move) for g, move in zip(gradients, moves, strict=True))
    assert slope == pytest.approx((total_at(1e-6) - total_at(-1e-6)) / 2e-6, rel=1e-5)


@ways
def test_bfloat16_inputs_are_computed_in_float32(by_row):
    rounded = [tf.cast(x, tf.bfloat16) for x in inputs()[:2]]
    score = build(by_row)(*rounded, inputs()[2])
    again = build(by_row)(*(tf.cast(x, tf.float32) for x in rounded), inputs()[2])
    assert score.dtype == tf.float32
    np.testing.assert_array_equal(score, again)
