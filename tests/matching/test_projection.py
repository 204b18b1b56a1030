"""Projection heads, behind which the plain cosine is contrasted."""

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from tiny_batch import CANDIDATES, CONTEXTS, TEMPERATURE, make_batch
from tiny_bert import DIM, build_backbone, draw_utterances, encode_alone
from train_options import make_options

from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.data.stream import PADDED
from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.matching.projection import ProjectedCosineSimilarity, build_heads
from dcse_tf.options import OptionError


def project(head, vector):
    """The head in float64, by the weights that it stands for."""
    hidden, bias, output = (head.rate * v.numpy().astype(float) for v in head.trainable_variables)
    return np.maximum(vector @ hidden + bias, 0.0) @ output


@pytest.mark.parametrize("behind", [1.0, 0.3])
def test_the_loss_is_that_of_the_cosines_behind_the_heads_and_its_rest_that_of_the_cosines(behind):
    backbone, heads = build_backbone(), build_heads(DIM, 8, 5.0, seed=1)
    for head in heads:
        head.hidden_bias.assign(np.linspace(-0.1, 0.1, DIM))
    objective = Objective(TEMPERATURE, cosine_weight=0.6, heads=heads, projection_share=behind)
    outputs = build_dialogue_cse(backbone, PADDED, objective)(make_batch())

    encoder = build_bert_encoder(backbone)
    tokens = [encode_alone(encoder, ids).astype(float) for ids in draw_utterances(8)]
    means = [rows.mean(axis=0) for rows in tokens]
    for row, loss in enumerate(outputs["loss"].numpy()):
        mean = np.mean([means[i] for i in CONTEXTS[row]], axis=0)
        projected = project(heads[0], mean)
        behind_heads = [
            reference.cosine(projected, project(heads[1], means[j])) for j in CANDIDATES[row]
        ]
        cosines = [reference.cosine(mean, means[j]) for j in CANDIDATES[row]]
        turns = [tokens[i] for i in CONTEXTS[row]]
        matching = [reference.similarity(turns, tokens[j]) for j in CANDIDATES[row]]
        expected = 0.6 * behind * reference.nt_xent(behind_heads, TEMPERATURE)
        expected += 0.6 * (1.0 - behind) * reference.nt_xent(cosines, TEMPERATURE)
        expected += 0.4 * reference.nt_xent(matching, TEMPERATURE)
        assert loss == pytest.approx(expected, rel=1e-4)
        # The metrics are those of the similarity with most weight: 0.6 or, of 0.18, 0.42 and 0.4,
        # the second.
        main = behind_heads if behind == 1.0 else cosines
        found = outputs["similarity"][row, : len(main)]
        np.testing.assert_allclose(found, main, atol=1e-5)


def test_heads_start_alike_whatever_their_rate_and_learn_so_many_times_faster():
    vectors = tf.random.stateless_normal([6, DIM], [1, 2])
    moved = {}
    for rate in (1.0, 20.0):
        head = build_heads(DIM, 4, rate, seed=7)[0]
        before = [rate * v.numpy() for v in head.trainable_variables]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(head(vectors)))
        gradients = tape.gradient(loss, head.trainable_variables)
        keras.optimizers.Adam(1e-4, epsilon=1e-12).apply(gradients, head.trainable_variables)
        after = [rate * v.numpy() for v in head.trainable_variables]
        moved[rate] = (before, [b - a for a, b in zip(after, before, strict=True)])
    for first, second in zip(moved[1.0][0], moved[20.0][0], strict=True):
        np.testing.assert_allclose(first, second, atol=1e-6)
    for slow, fast in zip(moved[1.0][1], moved[20.0][1], strict=True):
        np.testing.assert_allclose(fast, 20.0 * slow, rtol=0.02, atol=2e-5)


def test_the_heads_differ_and_are_saved_with_the_layer():
    first, second = build_heads(DIM, 4, 2.0, seed=7)
    assert np.abs(first.hidden_kernel - second.hidden_kernel).max() > 0.01
    layer = ProjectedCosineSimilarity(first, second)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert (again.response_head.units, again.response_head.rate) == (4, 2.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"projection_dim": 8}, "needs `cosine_weight`"),
        ({"projection_rate": 2.0}, "has no meaning without `projection_dim`"),
        ({"projection_share": 0.5}, "has no meaning without `projection_dim`"),
    ],
)
def test_heads_are_for_the_plain_cosine(values, message):
    with pytest.raises(OptionError, match=message):
        make_options(data_dir="d", run_dir="r", encoder_size="tiny", **values)
