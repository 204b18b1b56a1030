"""The similarities of all pairs besides I2's: with attention over the turns, and plain cosine."""

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from layer_cases import attention_weights, build_attention
from test_gram_similarity import CONTEXTS, DIM, TOKENS, draw, make_inputs

from dcse_tf.matching.dialogue_cse import build_matching
from dcse_tf.matching.matching_files import MatchingForm
from dcse_tf.matching.pair_similarity import GramSimilarity, MeanCosineSimilarity

KINDS = ("attention", "additive_attention")


def build(name, dtype="float32"):
    if name == "cosine":
        return MeanCosineSimilarity(dtype=dtype)
    return GramSimilarity(build_attention(name, dtype=dtype), dtype=dtype)


def reference_similarity(name, context, response):
    if name == "cosine":
        return reference.plain_cosine(context, response)
    refined = [reference.refined_embedding(utterance, response) for utterance in context]
    weights, released = attention_weights(name), name == "additive_attention"
    turned = reference.weighted_turns(refined, weights, released)
    return reference.cosine(turned, reference.mean_of_rows(response))


def reference_similarities(name, utterances):
    return [[reference_similarity(name, [utterances[i] for i in turns], r) for r in utterances]
            for turns in CONTEXTS]  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
@pytest.mark.parametrize("name", [*KINDS, "cosine"])
def test_every_pair_equals_the_reference(name, dtype, tolerance):
    utterances = draw()
    similarity = build(name, dtype)(*make_inputs(utterances, dtype))
    expected = reference_similarities(name, utterances)
    np.testing.assert_allclose(similarity, expected, atol=tolerance, rtol=0)
    assert np.ptp(expected) > 0.5


def test_the_turns_weights_matter():
    """Attention is told from the mean, and its two kinds from each other."""
    inputs = make_inputs(draw(), "float64")
    found = [build(name, "float64")(*inputs).numpy() for name in KINDS]
    one_turn = [len(turns) == 1 for turns in CONTEXTS]
    difference = np.abs(found[0] - found[1])
    assert difference[~np.array(one_turn)].max() > 0.01
    assert difference[one_turn].max() < 1e-9  # a turn alone has all the weight


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
    attention = build_attention(kind)
    form = MatchingForm(attention=attention)
    matching, layer = build_matching(DIM, form), GramSimilarity(attention)
    names = ("padding_mask", "context_index", "turn_mask", "candidate_index")
    rest = dict(zip(names, (mask, index, turn_mask, every), strict=True))
    ways = (
        lambda: matching({"token_embeddings": table, **rest}),
        lambda: layer(table, mask, index, turn_mask),
    )
    weights = tf.constant(np.random.default_rng(2).normal(size=every.shape), tf.float32)
    variables = [variable.value for variable in attention.trainable_variables]
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
    assert np.abs(results[0][1][1]).max() > 1e-3


@pytest.mark.parametrize("name", [*KINDS, "cosine"])
def test_an_utterance_of_zeros_has_similarity_zero_and_a_finite_gradient(name):
    utterances = [np.zeros_like(rows) if i == 4 else rows for i, rows in enumerate(draw())]
    table, *rest = make_inputs(utterances, "float32")
    with tf.GradientTape() as tape:
        tape.watch(table)
        similarity = build(name)(table, *rest)
    assert (similarity.numpy()[:, 4] == 0).all()
    assert np.isfinite(tf.convert_to_tensor(tape.gradient(similarity, table))).all()


@pytest.mark.parametrize("name", [*KINDS, "cosine"])
def test_it_survives_its_configuration(name):
    layer = build(name)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    inputs = make_inputs(draw(), "float32")
    again(*inputs)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(*inputs), layer(*inputs))


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
