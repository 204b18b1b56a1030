import numpy as np
import tensorflow as tf
from encoded_tables import build_table_encoder
from tiny_bert import DIM, LAYERS, VOCABULARY_SIZE, build_backbone, draw_utterances, make_table

from dcse_tf.bert import bert
from dcse_tf.bert.bert import TokenCentering
from dcse_tf.bert.layout import lay_out

# Three real tokens; the fourth place is padding.
TOKENS = tf.constant([[[1.0, 2.0], [3.0, 4.0]], [[8.0, 0.0], [900.0, 900.0]]])
MASK = tf.constant([[True, True], [True, False]])
MEAN = [4.0, 2.0]  # (1 + 3 + 8) / 3, (2 + 4 + 0) / 3


def test_the_batch_s_mean_is_subtracted_and_afterwards_a_running_average_not_pulled_to_zero():
    layer = TokenCentering(momentum=0.75)
    np.testing.assert_array_equal(layer(TOKENS, MASK), TOKENS)  # before the first step
    np.testing.assert_allclose(layer(TOKENS, MASK, training=True), TOKENS - MEAN, atol=1e-6)
    np.testing.assert_allclose(layer.mean(), MEAN, rtol=1e-6)
    layer(TOKENS + 7.0, MASK, training=True)
    # (0.75 x 0.25 x mean + 0.25 x (mean + 7)) / (0.75 x 0.25 + 0.25): the second has 4 / 7
    np.testing.assert_allclose(layer.mean(), np.array(MEAN) + 4.0, rtol=1e-6)
    np.testing.assert_allclose(layer(TOKENS, MASK), TOKENS - MEAN - 4.0, atol=1e-5)


def test_the_gradient_flows_through_the_mean():
    layer = TokenCentering()
    with tf.GradientTape() as tape:
        tape.watch(TOKENS)
        first = layer(TOKENS, MASK, training=True)[0, 0, 0]
    # d (x - mean) / dx: 1 - 1/3 at itself, -1/3 at the other real tokens, 0 at padding
    gradient = tape.gradient(first, TOKENS).numpy()[..., 0]
    np.testing.assert_allclose(gradient, [[2 / 3, -1 / 3], [-1 / 3, 0]], atol=1e-6)


def test_two_devices_subtract_the_mean_of_both_and_differentiate_it():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = TokenCentering()
        layer.build((None, None, 2), (None, None))

    def compute(tokens, mask):
        """Centred tokens, and the gradient of a sum that the mean is part of."""
        with tf.GradientTape() as tape:
            tape.watch(tokens)
            centred = layer(tokens, mask, training=True)
            total = tf.reduce_sum(tf.where(mask[..., None], centred**3, 0.0))
        return centred, tape.gradient(total, tokens)

    @tf.function
    def run(batch):
        return strategy.run(lambda x: compute(*x), args=(batch,))

    def take(context):
        i = context.replica_id_in_sync_group
        return TOKENS[i : i + 1], MASK[i : i + 1]

    batch = strategy.experimental_distribute_values_from_function(take)
    found = [strategy.experimental_local_results(values) for values in run(batch)]
    centred, gradient = (tf.concat(parts, 0).numpy() for parts in found)
    np.testing.assert_allclose(centred, TOKENS - MEAN, atol=1e-6)
    np.testing.assert_allclose(layer.mean(), MEAN, rtol=1e-6)
    # 3 c^2 - the mean of 3 c^2 over the three real tokens, for each of the two columns.
    slopes = 3 * (TOKENS - MEAN).numpy() ** 2 * MASK.numpy()[..., None]
    expected = (slopes - slopes.sum(axis=(0, 1)) / 3) * MASK.numpy()[..., None]
    np.testing.assert_allclose(gradient, expected, atol=1e-4)


def test_the_layout_of_the_table_does_not_matter():
    backbone, token_ids = build_backbone(), make_table(draw_utterances(8))["token_ids"]
    mask, rows = (token_ids != 0).numpy(), []
    for layout in (0, 16):
        encoder = build_table_encoder(backbone, layout, TokenCentering(dtype="float32"))
        rows.append(encoder(lay_out(token_ids, layout), training=True).numpy()[mask])
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-5)
    assert np.abs(rows[0].mean(axis=0)).max() < 1e-6


def test_a_saved_encoder_has_the_centring_in_its_weights(tmp_path):
    backbone, centering = build_backbone(), TokenCentering(dtype="float32")
    encoder = bert.build_bert_encoder(backbone, centering)
    table = make_table(draw_utterances(6))
    encoder(table, training=True)
    expected = encoder(table)
    assert np.abs(expected - bert.build_bert_encoder(backbone)(table)).max() > 0.01

    config = bert.make_bert_config(LAYERS, DIM, VOCABULARY_SIZE)
    bert.save_backbone(tmp_path, backbone, config, centering.mean().numpy())
    loaded = bert.build_bert_encoder(bert.load_backbone(tmp_path))
    np.testing.assert_allclose(loaded(table), expected, atol=1e-5)
