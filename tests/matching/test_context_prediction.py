"""What stands around a response, predicted from its embedding alone."""

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
from dcse_tf.matching.context_prediction import ContextPrediction
from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.matching.start import StartObjective
from dcse_tf.options import OptionError

# Of the three slots of a context; no row has a turn in the last but the first row.
SLOTS = (0, 2)


def embed(backbone):
    """The mean embeddings of the utterances, of length 1, float64."""
    encoder = build_bert_encoder(backbone)
    means = [encode_alone(encoder, ids).astype(float).mean(axis=0) for ids in draw_utterances(8)]
    return [mean / np.linalg.norm(mean) for mean in means]


def make_prediction(rate=1.0):
    """Heads with weights that differ from place to place."""
    layer = ContextPrediction(SLOTS, rate, dtype="float32")
    layer.build((None, None, DIM))
    draws = (
        tf.random.stateless_normal(v.shape, [i, 7], 0.0, 0.3) for i, v in enumerate(layer.weights)
    )
    for variable, draw in zip(layer.weights, draws, strict=True):
        variable.assign(draw / rate)
    return layer


def predict(layer, mean, head):
    kernel, bias = (layer.rate * weight.numpy().astype(float)[head] for weight in layer.weights)
    return mean @ kernel + bias


@pytest.mark.parametrize("rate", [1.0, 5.0])
def test_the_loss_is_that_of_the_turns_around_as_they_were(rate):
    start, trained, prediction = build_backbone(seed=5), build_backbone(), make_prediction(rate)
    parts = StartObjective(start, prediction=prediction, prediction_weight=0.3)
    batch = make_batch()
    model = build_dialogue_cse(trained, PADDED, Objective(TEMPERATURE, start=parts))
    outputs = {name: value.numpy() for name, value in model(batch).items()}
    alone = build_dialogue_cse(trained, PADDED, Objective(TEMPERATURE))(batch)["loss"].numpy()

    before, after = embed(start), embed(trained)
    for row, (context, (response, *_)) in enumerate(zip(CONTEXTS, CANDIDATES, strict=True)):
        cosines = [
            reference.cosine(predict(prediction, after[response], head), before[context[slot]])
            for head, slot in enumerate(SLOTS)
            if slot < len(context)
        ]
        expected = 1.0 - np.mean(cosines)
        assert outputs["prediction_loss"][row] == pytest.approx(expected, rel=1e-4)
        mixed = 0.7 * alone[row] + 0.3 * expected
        assert outputs["loss"][row] == pytest.approx(mixed, rel=1e-4)


def test_untrained_heads_predict_the_utterance_itself_and_rows_without_turns_cost_nothing():
    layer = ContextPrediction([0, 1], rate=20.0)
    table = tf.random.stateless_normal([3, 1, DIM], [1, 2])
    mask = tf.ones([3, 1], tf.bool)
    turns = (
        tf.constant([[0, 2], [1, 1], [0, 0]]),
        tf.constant([[True, False], [True, True], [False] * 2]),
    )
    losses = layer(table, table, mask, tf.constant([0, 1, 2]), *turns).numpy()
    np.testing.assert_allclose(losses, 0.0, atol=1e-6)
    other = layer(table, table, mask, tf.constant([2, 0, 2]), *turns).numpy()
    assert (other[:2] > 1e-3).all()
    assert other[2] == 0.0


def test_the_embedding_learns_and_the_encoder_as_it_was_does_not():
    start, trained = build_backbone(seed=5), build_backbone()
    parts = StartObjective(start, prediction=make_prediction(), prediction_weight=1.0)
    model = build_dialogue_cse(trained, PADDED, Objective(TEMPERATURE, start=parts))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(make_batch())["loss"])
    first_layer = trained.transformer_layers[0].trainable_variables
    gradients, of_layer = tape.gradient(loss, [parts.prediction.trainable_variables, first_layer])
    assert max(np.abs(gradient).max() for gradient in of_layer) > 0.0
    assert all(np.abs(gradient).max() > 0.0 for gradient in gradients)
    without = build_dialogue_cse(trained, PADDED, Objective(TEMPERATURE))
    assert len(model.trainable_variables) == len(without.trainable_variables) + len(gradients)
    assert len(gradients) == 2


def test_the_layer_is_saved_with_its_settings():
    layer = ContextPrediction([0, 2], rate=3.0)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert (again.slots, again.rate) == ([0, 2], 3.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoder": "e", "prediction_rate": 2.0}, "has no meaning without `prediction_weight`"),
        ({"encoder": "e", "prediction_turns": 2}, "has no meaning without `prediction_weight`"),
        ({"prediction_weight": 0.5, "encoder_size": "tiny"}, "needs an `encoder`"),
    ],
)
def test_what_it_needs(values, message):
    with pytest.raises(OptionError, match=message):
        make_options(data_dir="d", run_dir="r", **values)
