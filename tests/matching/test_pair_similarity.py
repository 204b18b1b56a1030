"""The short way to the similarity of all pairs, held against the equations."""

import numpy as np
import pytest
import reference
import tensorflow as tf
from layer_cases import attention_weights, build_attention

from dcse_tf.matching.equations import build_matching
from dcse_tf.matching.pair_similarity import GramSimilarity, MeanCosineSimilarity

DIM = 8
TOKENS = (3, 1, 4, 2, 5, 1, 3, 2)  # of eight utterances
CONTEXTS = ((0, 1, 2), (3,), (5, 0), (7, 6, 4))


def draw(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(tokens, DIM)) for tokens in TOKENS]


def make_inputs(utterances, dtype, extra=0, fill=0.0, absent=0):
    """Table, mask, index and turn mask; padded places hold `fill`, absent turns `absent`."""
    table = np.full((len(utterances), max(TOKENS) + extra, DIM), fill)
    for row, rows in zip(table, utterances, strict=True):
        row[: len(rows)] = rows
    index = tf.ragged.constant(CONTEXTS, tf.int32)
    return (
        tf.constant(table, dtype),
        tf.sequence_mask(TOKENS, max(TOKENS) + extra),
        index.to_tensor(absent, shape=[None, 3 + extra]),
        tf.sequence_mask(index.row_lengths(), 3 + extra),
    )


KINDS = ("mean", "attention", "additive_attention")


def build(name, dtype="float32"):
    if name == "cosine":
        return MeanCosineSimilarity(dtype=dtype)
    attention = None if name == "mean" else build_attention(name, dtype=dtype)
    return GramSimilarity(attention, dtype=dtype)


def reference_similarity(name, context, response):
    if name == "cosine":
        return reference.plain_cosine(context, response)
    if name == "mean":
        return reference.similarity(context, response)
    refined = [reference.refined_embedding(utterance, response) for utterance in context]
    weights, released = attention_weights(name), name == "additive_attention"
    turned = reference.weighted_turns(refined, weights, released)
    return reference.cosine(turned, reference.mean_of_rows(response))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
@pytest.mark.parametrize("name", [*KINDS, "cosine"])
def test_every_pair_equals_the_reference(name, dtype, tolerance):
    utterances = draw()
    similarity = build(name, dtype)(*make_inputs(utterances, dtype))
    expected = [
        [reference_similarity(name, [utterances[i] for i in turns], r) for r in utterances]
        for turns in CONTEXTS
    ]
    np.testing.assert_allclose(similarity, expected, atol=tolerance, rtol=0)
    assert np.ptp(expected) > 0.5


@pytest.mark.parametrize("padding", [{"extra": 3}, {"fill": 1e3}, {"absent": 6}])
@pytest.mark.parametrize("name", [*KINDS, "cosine"])
def test_padding_never_changes_the_result(name, padding):
    utterances, layer = draw(), build(name, "float64")
    plain = layer(*make_inputs(utterances, "float64"))
    padded = layer(*make_inputs(utterances, "float64", **padding))
    np.testing.assert_allclose(padded, plain, rtol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_equal_those_of_the_direct_layers(kind):
    table, mask, index, turn_mask = make_inputs(draw(1), "float32")
    every = tf.tile(tf.range(len(TOKENS))[None, :], [len(CONTEXTS), 1])
    attention = None if kind == "mean" else build_attention(kind)
    matching, layer = build_matching(DIM, attention), GramSimilarity(attention)
    names = ("padding_mask", "context_index", "turn_mask", "candidate_index")
    rest = dict(zip(names, (mask, index, turn_mask, every), strict=True))
    ways = (
        lambda: matching({"token_embeddings": table, **rest}),
        lambda: layer(table, mask, index, turn_mask),
    )
    weights = tf.constant(np.random.default_rng(2).normal(size=every.shape), tf.float32)
    variables = [v.value for v in attention.trainable_variables] if attention else []
    results = []
    for similarity in ways:
        with tf.GradientTape() as tape:
            tape.watch(table)
            values = similarity()
            total = tf.reduce_sum(values * weights)
        gradients = tape.gradient(total, [table, *variables])
        results.append((values, [tf.convert_to_tensor(gradient) for gradient in gradients]))
    np.testing.assert_allclose(results[1][0], results[0][0], atol=1e-5)
    for short, direct in zip(results[1][1], results[0][1], strict=True):
        np.testing.assert_allclose(short, direct, atol=2e-5 * max(1.0, np.abs(direct).max()))
    assert np.abs(results[0][1][:2][-1]).max() > 1e-3


@pytest.mark.parametrize("name", [*KINDS, "cosine"])
def test_an_utterance_of_zeros_has_similarity_zero_and_a_finite_gradient(name):
    utterances = [np.zeros_like(rows) if i == 4 else rows for i, rows in enumerate(draw())]
    table, *rest = make_inputs(utterances, "float32")
    with tf.GradientTape() as tape:
        tape.watch(table)
        similarity = build(name)(table, *rest)
    assert (similarity.numpy()[:, 4] == 0).all()
    assert np.isfinite(tf.convert_to_tensor(tape.gradient(similarity, table))).all()


@pytest.mark.parametrize(("kind", "weight"), [("attention", 1.0), ("additive_attention", 2.0)])
def test_one_turn_has_all_the_weight_without_a_warning(kind, weight, recwarn):
    attention = build_attention(kind)
    pooled = tf.constant(np.random.default_rng(3).normal(size=(2, 1, DIM)), tf.float32)
    with tf.GradientTape() as tape:
        weights = attention(pooled, tf.constant([[True], [False]]))
    assert weights.numpy().tolist() == [[weight], [0.0]]
    variables = [variable.value for variable in attention.trainable_variables]
    for gradient in tape.gradient(weights, variables):  # zeros, not None: an optimizer takes them
        assert not tf.convert_to_tensor(gradient).numpy().any()
    assert not [warning for warning in recwarn if "softmax" in str(warning.message)]


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="expected attention or additive_attention"):
        build_attention("mean")


def test_no_tensor_has_a_place_for_two_kinds_of_tokens_and_the_width():
    """Memory grows as contexts x tokens of the table, or tokens^2 of an utterance."""
    layer = GramSimilarity()
    shapes = [(50, 20, 64), (50, 20), (30, 6), (30, 6)]
    types = [tf.float32, tf.bool, tf.int32, tf.bool]
    signature = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, types, strict=True)]
    graph = tf.function(lambda *inputs: layer(*inputs)).get_concrete_function(*signature).graph
    sizes = [tensor.shape.num_elements() or 0 for op in graph.get_operations()
             for tensor in op.outputs]  # fmt: skip
    # The table, contexts x turns x width, and contexts x all tokens; the direct way would have
    # 30 x 50 x 6 x 20 x 64.
    assert max(sizes) <= max(50 * 20 * 64, 30 * 6 * 64, 30 * 50 * 20)
