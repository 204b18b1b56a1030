import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from tiny_batch import (
    CANDIDATES,
    CONTEXTS,
    INDEX_NAMES,
    TEMPERATURE,
    make_batch,
    make_index,
    reference_similarities,
)
from tiny_bert import DIM, build_backbone, draw_utterances, make_table

from dcse_tf.bert.bert import build_bert_encoder, freeze
from dcse_tf.bert.layout import Layout
from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse, build_matching
from dcse_tf.matching.losses import NTXent

PADDED = Layout("padded")
EMBEDDINGS = ("token_embedding", "position_embedding", "segment_embedding", "embeddings_layer_norm")


@pytest.fixture(scope="module")
def backbone():
    return build_backbone()


@pytest.fixture(scope="module")
def encoder(backbone):
    return build_bert_encoder(backbone)


@pytest.fixture(scope="module")
def model(backbone):
    return build_dialogue_cse(backbone, PADDED, Objective(TEMPERATURE))


def _matching_inputs(encoder, batch):
    table = {name: batch[name] for name in ("token_ids", "padding_mask")}
    names = ("padding_mask", "context_index", "turn_mask", "candidate_index")
    return {"token_embeddings": encoder(table), **{name: batch[name] for name in names}}


def test_similarity_and_loss_equal_the_reference(encoder, model):
    outputs = model(make_batch())
    expected = reference_similarities(encoder)
    for row, values in zip(outputs["similarity"].numpy(), expected, strict=True):
        np.testing.assert_allclose(row[: len(values)], values, atol=1e-5)
    losses = [reference.nt_xent(values, TEMPERATURE) for values in expected]
    np.testing.assert_allclose(outputs["loss"], losses, rtol=1e-4)
    # The figures differ enough to tell a wrong index from a right one.
    assert np.ptp(np.concatenate(expected)) > 0.1


def test_matching_alone_equals_the_reference_in_eager_and_graph(encoder):
    inputs = _matching_inputs(encoder, make_batch())
    matching = build_matching(DIM)
    expected = reference_similarities(encoder)
    for similarity in (matching(inputs), tf.function(matching)(inputs)):
        for row, values in zip(similarity.numpy(), expected, strict=True):
            np.testing.assert_allclose(row[: len(values)], values, atol=1e-5)


def test_matching_is_the_same_after_saving_and_loading(encoder, tmp_path):
    matching = build_matching(DIM)
    matching.save(tmp_path / "matching.keras")
    inputs = _matching_inputs(encoder, make_batch())
    reloaded = keras.saving.load_model(tmp_path / "matching.keras")
    np.testing.assert_array_equal(reloaded(inputs), matching(inputs))


def test_bfloat16_token_embeddings_give_a_float32_similarity(encoder):
    inputs = _matching_inputs(encoder, make_batch())
    rounded = {**inputs, "token_embeddings": tf.cast(inputs["token_embeddings"], tf.bfloat16)}
    matching = build_matching(DIM)
    similarity = matching(rounded)
    assert similarity.dtype == tf.float32
    np.testing.assert_allclose(similarity, matching(inputs), atol=0.01)


@pytest.mark.parametrize("padding", [{"absent": 7}, {"extra": 3}, {"extra": 2, "fill": 9}])
def test_padding_never_changes_the_result(model, padding):
    plain, padded = model(make_batch()), model(make_batch(**padding))
    mask = make_batch()["candidate_mask"].numpy()
    np.testing.assert_allclose(padded["loss"], plain["loss"], rtol=1e-4)
    np.testing.assert_allclose(
        padded["similarity"].numpy()[mask], plain["similarity"].numpy()[mask], atol=1e-5
    )


def test_permutation_of_turns_changes_nothing_and_of_candidates_permutes(encoder):
    batch, order = make_batch(), [2, 0, 1]
    matching = build_matching(DIM)
    straight = matching(_matching_inputs(encoder, batch)).numpy()
    turns = {name: tf.gather(batch[name], order, axis=1) for name in INDEX_NAMES[:2]}
    permuted = matching(_matching_inputs(encoder, {**batch, **turns}))
    np.testing.assert_allclose(permuted, straight, atol=1e-6)
    candidates = {"candidate_index": tf.gather(batch["candidate_index"], order, axis=1)}
    permuted = matching(_matching_inputs(encoder, {**batch, **candidates}))
    np.testing.assert_allclose(permuted, straight[:, order], atol=1e-6)


@pytest.mark.parametrize("moved", [(1, 2, 3), (6, 7), tuple(range(8))])
def test_gradients_are_those_of_the_reference(moved):
    """Along a random direction, of contexts, of candidates, of all; by a central difference."""
    rng = np.random.default_rng(0)
    table = [rng.normal(size=(2 + i % 3, 8)) for i in range(8)]
    move = [rng.normal(size=rows.shape) * (i in moved) for i, rows in enumerate(table)]

    def reference_loss(step):
        at = [rows + step * direction for rows, direction in zip(table, move, strict=True)]
        return sum(
            reference.nt_xent(
                [reference.similarity([at[i] for i in turns], at[j]) for j in candidates], 1.0
            )
            for turns, candidates in zip(CONTEXTS, CANDIDATES, strict=True)
        )

    def pad(arrays):
        return tf.ragged.stack(arrays).to_tensor(shape=[8, 4, 8])

    index = make_index(CONTEXTS, CANDIDATES)
    candidate_mask = index.pop("candidate_mask")
    mask = tf.sequence_mask([len(rows) for rows in table])
    embeddings = tf.cast(pad(table), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(embeddings)
        inputs = {"token_embeddings": embeddings, "padding_mask": mask, **index}
        loss = tf.reduce_sum(NTXent(1.0)(build_matching(8)(inputs), candidate_mask))
    slope = np.sum(tape.gradient(loss, embeddings) * tf.cast(pad(move), tf.float32))
    expected = (reference_loss(1e-5) - reference_loss(-1e-5)) / 2e-5
    assert slope == pytest.approx(expected, rel=1e-3)


def _loss_and_gradients(model, batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch)["loss"])
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    return float(loss), [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


def test_encoding_once_gives_the_gradients_of_encoding_every_use(model):
    utterances = draw_utterances(8)
    uses = [i for rows in (CONTEXTS, CANDIDATES) for row in rows for i in row]
    places = iter(range(len(uses)))
    contexts, candidates = ([[next(places) for _ in row] for row in rows] for rows in
                            (CONTEXTS, CANDIDATES))  # fmt: skip
    every_use = {**make_table([utterances[i] for i in uses]), **make_index(contexts, candidates)}
    loss, gradients = _loss_and_gradients(model, make_batch())
    loss_of_uses, gradients_of_uses = _loss_and_gradients(model, every_use)
    assert len(uses) == 14  # of 8 distinct utterances
    assert loss_of_uses == pytest.approx(loss, rel=1e-5)
    scale = max(np.abs(gradient).max() for gradient in gradients)
    for once, apart in zip(gradients, gradients_of_uses, strict=True):
        np.testing.assert_allclose(apart, once, atol=1e-5 * scale)


@pytest.mark.parametrize(
    ("layers", "embeddings", "frozen"),
    [
        (0, False, ()),
        (1, False, ("transformer_layer_0",)),
        (1, True, ("transformer_layer_0", *EMBEDDINGS)),
        (-1, True, ("transformer_layer_0", *EMBEDDINGS)),  # half of two
        (-1, False, ("transformer_layer_0",)),
        (2, True, ("transformer_layer", *EMBEDDINGS)),
    ],
)
def test_a_step_changes_what_is_trained_and_nothing_frozen(layers, embeddings, frozen):
    backbone = build_backbone()
    freeze(backbone, layers, embeddings)
    model = build_dialogue_cse(backbone, PADDED, Objective(TEMPERATURE))
    before = {v.path: v.numpy().copy() for v in backbone.variables}
    trained = [v.path for v in model.trainable_variables]
    if trained:
        _, gradients = _loss_and_gradients(model, make_batch())
        keras.optimizers.SGD(0.1).apply(gradients, model.trainable_variables)
    for variable in backbone.variables:
        path, same = variable.path, np.array_equal(variable, before[variable.path])
        if path.startswith(frozen) or path.startswith("pooled_dense"):
            assert path not in trained
            assert same
        elif not path.endswith("key/bias"):  # the softmax is blind to it
            assert not same, path


def test_identical_token_embeddings_give_similarity_1_and_the_loss_of_chance(encoder):
    """The trap of a collapsed encoder: whatever the context, nothing can be told apart."""
    vector = np.random.default_rng(0).normal(size=DIM)
    batch = make_batch()
    inputs = _matching_inputs(encoder, batch)
    inputs["token_embeddings"] = tf.zeros_like(inputs["token_embeddings"]) + vector
    np.testing.assert_allclose(build_matching(DIM)(inputs), np.ones((3, 3)), atol=1e-5)

    collapsed = build_backbone()
    for name in ("token_embedding", "position_embedding"):
        table = collapsed.get_layer(name).weights[0]
        table.assign(np.tile(table.numpy()[:1], (table.shape[0], 1)))
    outputs = build_dialogue_cse(collapsed, PADDED, Objective(TEMPERATURE))(batch)
    np.testing.assert_allclose(outputs["similarity"], np.ones((3, 3)), atol=1e-5)
    # log(1 + K): K = 2, 1 and 2 negatives
    np.testing.assert_allclose(outputs["loss"], np.log([3, 2, 3]), atol=1e-4)


def test_encoding_every_use_or_every_utterance_once_gives_the_same_gradients(encoder, model):
    """The forms plain and unique, dropout off."""
    batch = make_batch()
    used = tf.concat([tf.reshape(batch[name], [-1]) for name in INDEX_NAMES[::2]], axis=0)
    shapes = [batch[name].shape for name in INDEX_NAMES[::2]]
    index = tf.split(tf.range(tf.size(used)), [shape.num_elements() for shape in shapes])
    plain = {
        **batch,
        **{name: tf.gather(batch[name], used) for name in ("token_ids", "padding_mask")},
        **{n: tf.reshape(i, s) for n, i, s in zip(INDEX_NAMES[::2], index, shapes, strict=True)},
    }
    variables = [variable.value for variable in model.trainable_variables]
    found = []
    for inputs in (batch, plain):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs, training=False)["loss"])
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        found.append((loss, [tf.convert_to_tensor(gradient) for gradient in gradients]))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    for once, each in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(
            each, once, atol=1e-4 * float(tf.reduce_max(tf.abs(once))) + 1e-6
        )
