"""The model of response selection: heads and losses by the reference, the same in every layout."""

import keras
import numpy as np
import pytest
import reference
import safetensors.numpy
import tensorflow as tf
from drawn_dialogues import collect, session
from tiny_bert import DIM, VOCABULARY_SIZE, build_backbone

from dcse_tf.bert import masked_lm
from dcse_tf.bert.layout import Layout
from dcse_tf.bert.pair_rule import PairRule
from dcse_tf.data import selection
from dcse_tf.data.dialogue import AUXILIARY_TASKS
from dcse_tf.matching.losses import JointLoss
from dcse_tf.reading import cross_encoder
from dcse_tf.reading.cross_encoder import HeadShape
from dcse_tf.reading.matchers import build_matcher

TASKS = ("matching", *AUXILIARY_TASKS)
TURNS = 7  # of the longest dialogue


def make_batch(layout):
    # Token ids below those of the vocabulary: session 0 has 10 to 15, session 1 110 modulo it.
    samples = collect([session(number, 4 + number % 3) for number in range(6)]).samples
    small = tf.math.floormod(samples["token_ids"].flat_values, VOCABULARY_SIZE - 12) + 12
    samples["token_ids"] = samples["token_ids"].with_flat_values(small)
    rule = PairRule(2, 3, 9, 20, 6)
    form = selection.SelectionForm(TURNS - 1, 1, AUXILIARY_TASKS, True, rule, 4)
    return selection.make_selection_batches(samples, form, tf.constant([1, 2], tf.int64), 1, layout)


def build(layout, speakers=True, seed=3):
    backbone = build_backbone(seed)
    table = cross_encoder.build_speaker_embedding(DIM, 1, {}) if speakers else None
    if table is not None:
        table.embeddings.assign(np.random.default_rng(6).normal(size=(2, DIM)))
    reading = cross_encoder.read_with_bert(backbone, layout, table)
    heads = cross_encoder.build_heads(TASKS, reading, HeadShape(TURNS, DIM), 4, {})
    restoration = masked_lm.build_head(backbone.token_embedding, backbone)
    loss = JointLoss(0.5, 0.6)
    model = cross_encoder.build_selection_model(reading, heads, restoration, loss)
    rng = np.random.default_rng(5)
    for variable in masked_lm.own_variables(restoration):
        variable.assign(rng.normal(scale=0.1, size=variable.shape))
    return model, backbone, heads, table


def read():
    return cross_encoder.read_with_bert(build_backbone(), Layout("padded"))


def run(model, batch):
    return model({name: batch[name] for name in model.input})


def test_the_layout_does_not_change_any_sum_nor_any_gradient():
    results = []
    for layout in (Layout("padded"), Layout("packed", row_length=32)):
        model, backbone, *_ = build(layout)
        (batch,) = make_batch(layout)
        with tf.GradientTape() as tape:
            sums = run(model, batch)
        kernel = backbone.transformer_layers[0]._feedforward_intermediate_dense.kernel
        gradient = tape.gradient(sums["loss"], kernel.value)
        results.append(({name: float(value) for name, value in sums.items()}, gradient.numpy()))
    (padded, first), (packed, second) = results
    assert set(padded) == {
        *("loss", "weight", "incoherence_chance"),
        *(f"{task}_{what}" for task in TASKS for what in ("weight", "loss", "accuracy")),
    }
    for name, value in padded.items():
        assert packed[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert np.abs(first).max() > 1e-3
    # The losses of the auxiliary tasks count half.
    others = sum(padded[f"{task}_loss"] for task in AUXILIARY_TASKS)
    assert padded["loss"] == pytest.approx(padded["matching_loss"] + 0.5 * others, rel=1e-5)


def test_scores_of_turns_are_those_of_the_reference():
    rng = np.random.default_rng(0)
    turns = [[rng.normal(size=(n, 3)) for n in counts] for counts in ([2, 1, 4], [3, 2])]
    tokens = np.concatenate([rows for dialogue in turns for rows in dialogue])
    ids = [5 * d + t for d, dialogue in enumerate(turns) for t, rows in enumerate(dialogue)
           for _ in rows]  # fmt: skip
    order = rng.permutation(len(ids))
    layer = cross_encoder.TurnScores(5)
    layer.build((None, 3), None, None)
    kernel, bias = rng.normal(size=6), 0.25
    layer.kernel.assign(kernel[:, None])
    layer.bias.assign([bias])
    found = layer(
        tf.constant(tokens[order], tf.float32), tf.constant(np.array(ids)[order]), tf.zeros([2])
    ).numpy()
    for row, dialogue in zip(found, turns, strict=True):
        expected = reference.turn_scores(dialogue, kernel, bias)
        np.testing.assert_allclose(row[: len(dialogue)], expected, rtol=1e-5)
        assert (row[len(dialogue) :] < -1e8).all()


def test_losses_are_those_of_the_reference():
    rng = np.random.default_rng(1)
    weights = {name: rng.uniform(0.5, 2.0, size=4) for name in TASKS}
    logits = {
        **{name: rng.normal(size=4) for name in ("matching", "next_session")},
        "consistency": rng.normal(size=8),
        "restoration": rng.normal(size=(4, 5)),
        "incoherence": np.array([[1.0, 0.5, -1e9], [0.2, 0.9, 2.0], [3.0, 1.0, 0.1], [0, 1, 2.0]]),
    }
    labels, answers, odd = [1, 0, 1, 1], [0, 3, 4, 1], [1, 2, 2, 0]
    # Each row of a pair has its weight; the pair has both.
    pairs = np.repeat(weights["consistency"] / 2, 2)
    targets = {f"{name}_weights": tf.constant(weights[name], tf.float32) for name in TASKS}
    targets |= {
        "consistency_weights": tf.constant(pairs, tf.float32),
        "matching_labels": tf.constant(labels, tf.float32),
        "next_session_labels": tf.constant(labels, tf.float32),
        "restoration_ids": tf.constant(answers),
        "incoherence_labels": tf.constant(odd),
    }
    logits_of = {name: tf.constant(value, tf.float32) for name, value in logits.items()}
    sums = {k: float(v) for k, v in JointLoss(0.5, 0.6)(logits_of, targets).items()}

    losses, hits = {}, {}
    for name in ("matching", "next_session"):
        losses[name] = [reference.binary_cross_entropy(x, y)
                        for x, y in zip(logits[name], labels, strict=True)]  # fmt: skip
        hits[name] = [(x > 0) == bool(y) for x, y in zip(logits[name], labels, strict=True)]
    same, other = logits["consistency"][::2], logits["consistency"][1::2]
    losses["consistency"] = [reference.consistency_loss(a, b, 0.6)
                             for a, b in zip(same, other, strict=True)]  # fmt: skip
    hits["consistency"] = same > other
    for name, answer in (("restoration", answers), ("incoherence", odd)):
        rows = [row[row > -1e8] for row in logits[name]]
        losses[name] = [reference.negative_log_likelihood(row, a)
                        for row, a in zip(rows, answer, strict=True)]  # fmt: skip
        hits[name] = [np.argmax(row) == a for row, a in zip(rows, answer, strict=True)]
    for name in TASKS:
        assert sums[f"{name}_loss"] == pytest.approx(np.dot(losses[name], weights[name]), rel=1e-5)
        assert sums[f"{name}_accuracy"] == pytest.approx(np.dot(hits[name], weights[name]))
    assert sums["weight"] == pytest.approx(weights["matching"].sum())
    chances = weights["incoherence"] / np.array([2, 3, 3, 3])
    assert sums["incoherence_chance"] == pytest.approx(chances.sum())


def test_speakers_count_and_a_table_of_zeros_is_none():
    layout = Layout("padded")
    (batch,) = make_batch(layout)
    model, _, _, table = build(layout)
    with_speakers = float(run(model, batch)["restoration_loss"])
    table.embeddings.assign(tf.zeros_like(table.embeddings))
    zeros = float(run(model, batch)["restoration_loss"])
    without, *_ = build(layout, speakers=False)
    assert zeros == pytest.approx(float(run(without, batch)["restoration_loss"]), rel=1e-6)
    assert with_speakers != pytest.approx(zeros, rel=1e-3)


def test_a_checkpoints_pooler_and_classifier_are_the_start():
    rng = np.random.default_rng(2)
    tensors = {
        "pooler.dense.weight": rng.normal(size=(DIM, DIM)),
        "pooler.dense.bias": rng.normal(size=DIM),
        "classifier.weight": rng.normal(size=(1, DIM)),
        "classifier.bias": rng.normal(size=1),
    }
    heads = cross_encoder.build_heads(TASKS, read(), HeadShape(TURNS, DIM), 4, tensors)
    vector = rng.normal(size=DIM)
    hidden = np.tanh(tensors["pooler.dense.weight"] @ vector + tensors["pooler.dense.bias"])
    expected = tensors["classifier.weight"] @ hidden + tensors["classifier.bias"]
    found = heads["matching"](tf.constant(vector[None], tf.float32)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # The other heads have only the pooler from it.
    other = heads["next_session"](tf.constant(vector[None], tf.float32)).numpy()
    assert abs(other[0] - expected[0]) > 0.1


def test_what_is_written_has_the_names_of_a_sequence_classifier(tmp_path):
    _, backbone, heads, table = build(Layout("padded"))
    cross_encoder.write_cross_encoder(tmp_path, backbone, heads["matching"], table)
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    expected = {
        *("bert.pooler.dense.weight", "bert.pooler.dense.bias"),
        *("classifier.weight", "classifier.bias"),
        "bert.embeddings.speaker_embeddings.weight",
        "bert.embeddings.word_embeddings.weight",
        "bert.encoder.layer.1.output.LayerNorm.bias",
    }
    assert expected <= set(tensors)
    stripped = {name.removeprefix("bert."): value for name, value in tensors.items()}
    shape = HeadShape(TURNS, DIM)
    again = cross_encoder.build_heads(["matching"], read(), shape, 99, stripped)["matching"]
    for old, new in zip(heads["matching"].weights, again.weights, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())


def test_the_layers_can_be_saved_with_their_settings():
    for layer in (cross_encoder.PairHead(8, 3), cross_encoder.TurnScores(5), JointLoss(0.5, 0.2)):
        copy = type(layer).from_config(layer.get_config())
        assert copy.get_config() == layer.get_config()
        assert isinstance(copy, keras.layers.Layer)


@pytest.mark.parametrize("architecture", ["dual_lstm", "esim"])
def test_models_without_bert_have_every_task_too(architecture):
    layout = Layout("padded")
    matcher = build_matcher(architecture, VOCABULARY_SIZE, 3, 10, 12, 0.0)
    reading = cross_encoder.read_with_matcher(matcher, layout)
    shape = HeadShape(TURNS, 12, linear=architecture == "dual_lstm")
    heads = cross_encoder.build_heads(TASKS, reading, shape, 4, {})
    restoration = masked_lm.build_head(reading.token_embedding, None)
    model = cross_encoder.build_selection_model(reading, heads, restoration, JointLoss())
    (batch,) = make_batch(layout)
    sums = run(model, batch)
    assert all(np.isfinite(float(value)) for value in sums.values())

    # By hand from the matcher's own vectors, row by row.
    names = ("token_ids", "segment_ids", "padding_mask")
    pairs = matcher(*(batch[name] for name in names))["pair"].numpy()
    rows = batch["matching_places"].numpy() // batch["token_ids"].shape[1]
    logits = heads["matching"](tf.constant(pairs[rows])).numpy()
    if architecture == "dual_lstm":
        np.testing.assert_allclose(logits, pairs[rows].sum(axis=1), atol=1e-5)
    labels = batch["matching_labels"].numpy()
    expected = [reference.binary_cross_entropy(x, y) for x, y in zip(logits, labels, strict=True)]
    assert float(sums["matching_loss"]) == pytest.approx(sum(expected), rel=1e-4)


def test_a_head_is_read_as_it_was_written(tmp_path):
    for dim in (0, 5):
        head = cross_encoder.PairHead(dim, name="matching")
        head.build((None, 7))
        cross_encoder.write_head(tmp_path, head)
        again = cross_encoder.build_head(cross_encoder.read_head_tensors(tmp_path))
        vectors = tf.constant(np.random.default_rng(dim).normal(size=(3, 7)), tf.float32)
        np.testing.assert_allclose(again(vectors), head(vectors), rtol=1e-6)
