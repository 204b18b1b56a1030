import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_bert import DIM, build_backbone, draw_utterances, encode_alone, make_table

from dcse_tf.bert import bert

UTTERANCES = draw_utterances(6, longest=9)


@pytest.mark.parametrize("padding", [{}, {"extra": 4, "fill": 7}])
def test_padding_never_changes_token_embeddings(padding):
    encoder = bert.build_bert_encoder(build_backbone())
    table = make_table(UTTERANCES, **padding)
    embeddings = encoder(table).numpy()
    assert embeddings.shape == (*table["token_ids"].shape, DIM)
    for ids, rows in zip(UTTERANCES, embeddings, strict=True):
        np.testing.assert_allclose(rows[: len(ids)], encode_alone(encoder, ids), atol=1e-5)


def test_the_encoder_has_all_weights_but_the_pooler():
    backbone = build_backbone()
    encoder = bert.build_bert_encoder(backbone)
    missing = {v.path for v in backbone.variables} - {v.path for v in encoder.variables}
    assert missing == {"pooled_dense/kernel", "pooled_dense/bias"}


def _draw(seed: int, stddev: float = 0.02):
    backbone = bert.build_backbone(bert.make_bert_config(2, 64, 60), 0.1)
    bert.initialize_weights(backbone.trainable_variables, seed, stddev)
    return {v.path: v.numpy() for v in backbone.trainable_variables}


def test_the_seed_decides_the_initial_weights():
    keras.utils.set_random_seed(1)
    first = _draw(seed=5)
    keras.utils.set_random_seed(2)  # the global state must not matter
    again, other = _draw(seed=5), _draw(seed=6)
    for path, value in first.items():
        np.testing.assert_array_equal(again[path], value)
        drawn = path.endswith(("kernel", "embeddings"))
        assert drawn == (not np.array_equal(other[path], value)), path


def test_initial_matrices_have_the_standard_deviation_and_differ():
    weights = _draw(seed=5, stddev=0.02)
    table = weights["token_embedding/embeddings"]
    # A truncated normal lies within two deviations, and its own is 0.88 of the untruncated one.
    assert np.abs(table).max() < 0.04
    assert table.std() == pytest.approx(0.88 * 0.02, rel=0.05)
    kernels = [w for path, w in weights.items() if path.endswith("dense/kernel")]
    assert len({w.tobytes() for w in kernels}) == len(kernels) == 5  # two a layer, and the pooler
    assert not weights["transformer_layer_0/self_attention_layer/query/bias"].any()
    assert (weights["embeddings_layer_norm/gamma"] == 1).all()


def test_freezing_half_of_the_layers_rounds_down_and_more_than_there_are_is_refused():
    backbone = build_backbone(shape=(5, 64, 60))
    bert.freeze(backbone, -1, False)
    frozen = [i for i in range(5) if not backbone.get_layer(f"transformer_layer_{i}").trainable]
    assert frozen == [0, 1]
    with pytest.raises(ValueError, match="`freeze_layers`=6: the encoder has only 5 layers"):
        bert.freeze(backbone, 6, False)


def _loss_and_gradients(backbone, table):
    encoder = bert.build_bert_encoder(backbone)

    @tf.function
    def compute():
        with tf.GradientTape() as tape:
            tokens = encoder(table)
            weights = tf.reshape(tf.range(tf.size(tokens), dtype=tokens.dtype), tf.shape(tokens))
            loss = tf.reduce_mean(tokens * tf.cos(weights))
        gradients = tape.gradient(loss, encoder.trainable_variables)
        return [tokens, *map(tf.convert_to_tensor, gradients)]

    operations = compute.get_concrete_function().graph.get_operations()
    return compute(), [operation.type for operation in operations]


@pytest.mark.slow
def test_projections_are_those_of_keras_as_products_of_two_matrices():
    backbone = build_backbone()
    bert.add_adapters(backbone, rank=3, seed=1)
    for variable in backbone.trainable_variables:  # also the factors that begin as zero
        variable.assign_add(tf.random.stateless_normal(variable.shape, [2, 3], stddev=0.1))
    table = make_table(UTTERANCES)
    ours, operations = _loss_and_gradients(backbone, table)
    for layer in backbone.transformer_layers:
        attention = layer._self_attention_layer
        for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
            getattr(attention, name).__class__ = keras.layers.EinsumDense
    theirs, before = _loss_and_gradients(backbone, table)
    assert len(ours) > 6
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert "BatchMatMulV2" in before
    assert "BatchMatMulV2" not in operations
