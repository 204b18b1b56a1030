"""The short way to the similarity of all pairs, held against the equations."""

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf

from dcse_tf.matching.dialogue_cse import build_matching
from dcse_tf.matching.pair_similarity import GramSimilarity

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


def reference_similarities(utterances):
    return [[reference.similarity([utterances[i] for i in turns], r) for r in utterances]
            for turns in CONTEXTS]  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
def test_every_pair_equals_the_reference(dtype, tolerance):
    utterances = draw()
    similarity = GramSimilarity(dtype=dtype)(*make_inputs(utterances, dtype))
    expected = reference_similarities(utterances)
    np.testing.assert_allclose(similarity, expected, atol=tolerance, rtol=0)
    assert np.ptp(expected) > 0.5  # the figures differ enough to tell one pair from another


@pytest.mark.parametrize("padding", [{"extra": 3}, {"fill": 1e4}, {"absent": 6}])
def test_padding_never_changes_the_result(padding):
    utterances = draw()
    plain = GramSimilarity(dtype="float64")(*make_inputs(utterances, "float64"))
    padded = GramSimilarity(dtype="float64")(*make_inputs(utterances, "float64", **padding))
    np.testing.assert_allclose(padded, plain, rtol=1e-12)


def test_values_and_gradients_equal_those_of_the_direct_layers():
    table, mask, index, turn_mask = make_inputs(draw(1), "float32")
    every = tf.tile(tf.range(len(TOKENS))[None, :], [len(CONTEXTS), 1])
    matching, layer = build_matching(DIM), GramSimilarity()
    weights = tf.constant(np.random.default_rng(2).normal(size=every.shape), tf.float32)

    def direct(table):
        return matching(
            {
                "token_embeddings": table,
                "padding_mask": mask,
                "context_index": index,
                "turn_mask": turn_mask,
                "candidate_index": every,
            }
        )

    def short(table):
        return layer(table, mask, index, turn_mask)

    results = []
    for similarity in (direct, short):
        with tf.GradientTape() as tape:
            tape.watch(table)
            values = similarity(table)
            total = tf.reduce_sum(values * weights)
        results.append((values, tf.convert_to_tensor(tape.gradient(total, table))))
    np.testing.assert_allclose(results[1][0], results[0][0], atol=1e-5)
    np.testing.assert_allclose(results[1][1], results[0][1], atol=1e-5)
    assert np.abs(results[0][1]).max() > 0.1


def test_an_utterance_of_zeros_has_similarity_zero_and_a_finite_gradient():
    utterances = [np.zeros_like(rows) if i == 4 else rows for i, rows in enumerate(draw())]
    table, *rest = make_inputs(utterances, "float32")
    with tf.GradientTape() as tape:
        tape.watch(table)
        similarity = GramSimilarity()(table, *rest)
    assert (similarity.numpy()[:, 4] == 0).all()
    assert np.isfinite(tf.convert_to_tensor(tape.gradient(similarity, table))).all()


def test_it_survives_its_configuration():
    layer = GramSimilarity(dtype="float32", name="pairs")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    inputs = make_inputs(draw(), "float32")
    np.testing.assert_array_equal(again(*inputs), layer(*inputs))
    assert again.name == "pairs"


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
