"""DualLSTM and ESIM against NumPy, and what the tasks rely on: masks, seeds, devices, files."""

import json
from collections.abc import Sequence

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
import tiny_bert

from dcse_tf.errors import InputError
from dcse_tf.reading.matchers import SegmentTables, build_matcher, read_matcher, write_matcher
from dcse_tf.reading.reranker_files import read_matcher_settings
from dcse_tf.training.trainer import seed_dropout

EVERY_ARCHITECTURE = pytest.mark.parametrize("architecture", ["dual_lstm", "esim"])
HIDDEN_DIM = 5
VOCABULARY_SIZE = 40

# Token ids of a row's first and second segment; None where there is no second.
Row = tuple[list[int], list[int] | None]

# Segments of unequal length; the second is empty in one row and alone with its mark in another.
ROWS: list[Row] = [
    ([2, 7, 8, 9, 5, 3], [11, 12, 3]), ([2, 10, 3], [13, 14, 15, 16, 17, 3]),
    ([2, 7, 21, 22, 23, 5, 24, 5, 3], None), ([2, 3], [3]), ([2, 30, 31, 5, 3], [32, 33, 3]),
]  # fmt: skip


def make_table(rows: Sequence[Row], extra: int = 0, fill: int = 0) -> dict[str, tf.Tensor]:
    """The table of rows, padded `extra` beyond need, with what the padding's ids may be."""
    segments = [[0] * len(first) + [1] * len(second or []) for first, second in rows]
    table = tiny_bert.make_table([first + (second or []) for first, second in rows], extra, fill)
    return {**table, "segment_ids": tiny_bert.make_table(segments, extra, fill % 2)["token_ids"]}


def build(architecture, seed=3, dropout=0.0):
    """A small model; weights and biases large enough for gates that differ."""
    matcher = build_matcher(architecture, VOCABULARY_SIZE, seed, 6, HIDDEN_DIM, dropout)
    rng = np.random.default_rng(seed)
    for variable in matcher.trainable_variables:
        variable.assign_add(rng.normal(scale=0.3, size=variable.shape))
    return matcher


@pytest.mark.parametrize("fill", [0, 1])
def test_a_table_is_split_into_its_segments_and_joined_again(fill):
    segments = SegmentTables(
        # In padding, the segment may be any.
        tf.constant([[0, 0, 1, fill], [0, 1, 1, 1], [0, 0, fill, fill]]),
        tf.constant([[True, True, True, False], [True] * 4, [True, True, False, False]]),
    )
    values = tf.constant([[1.0, 2, 3, 90], [4, 5, 6, 7], [8, 9, 91, 92]])[..., None]
    first, second = segments.split(values)
    np.testing.assert_array_equal(first[..., 0], [[1, 2], [4, 0], [8, 9]])
    np.testing.assert_array_equal(second[..., 0], [[3, 0, 0], [5, 6, 7], [0, 0, 0]])
    np.testing.assert_array_equal(segments.masks[0], first[..., 0] > 0)
    np.testing.assert_array_equal(segments.masks[1], second[..., 0] > 0)
    joined = segments.join([first, second])[..., 0]
    np.testing.assert_array_equal(joined, [[1, 2, 3, 0], [4, 5, 6, 7], [8, 9, 0, 0]])


@EVERY_ARCHITECTURE
def test_both_equal_the_reference(architecture):
    """In float64, where rounding hides no mistake."""
    matcher = build(architecture)
    settings = matcher.settings()
    del settings["architecture"]
    exact = type(matcher)(**settings, dtype="float64")
    exact.build()
    exact.set_weights(matcher.get_weights())
    outputs = exact(**make_table(ROWS, extra=2, fill=7))
    tensors = {name: value.numpy() for name, value in exact.name_weights().items()}
    for pair, tokens, (first, second) in zip(outputs["pair"], outputs["tokens"], ROWS):
        if architecture == "dual_lstm":
            # Any weights w: the sum of w_i (c^T M)_i r_i is c^T M diag(w) r.
            weights = np.random.default_rng(5).normal(size=HIDDEN_DIM)
            weighted = tensors | {"matching": tensors["matching"] @ np.diag(weights)}
            expected, encoded = reference.dual_lstm(first, second or [3], weighted)
            found = tf.reduce_sum(pair * weights)
        else:
            expected, encoded = reference.esim(first, second or [3], tensors)
            found = pair
        if second is None:
            np.testing.assert_array_equal(pair, np.zeros(exact.pair_dim))
            encoded.pop()
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
        rows = np.concatenate(encoded)
        np.testing.assert_allclose(tokens[: len(rows)], rows, rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(tokens[len(rows) :], np.zeros_like(tokens[len(rows) :]))


@EVERY_ARCHITECTURE
def test_padding_gets_no_gradient_and_every_weight_has_one(architecture):
    matcher = build(architecture)
    names = matcher.name_weights()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(matcher(**make_table(ROWS, extra=2, fill=39))["pair"] ** 2)
    gradients = tape.gradient(loss, [variable.value for variable in names.values()])
    for name, gradient in zip(names, gradients, strict=True):
        dense = tf.convert_to_tensor(gradient).numpy()
        assert np.isfinite(dense).all(), name
        assert dense.any(), name
    # The id 39 stands in the padding alone, 21 in a row that has one segment.
    assert not tf.convert_to_tensor(gradients[0]).numpy()[[0, 39, 21]].any()


@EVERY_ARCHITECTURE
def test_weights_follow_from_the_seed(architecture):
    first, second, other = (build_matcher(architecture, 30, seed, 4, 3) for seed in (1, 1, 2))
    for name, value in first.name_weights().items():
        np.testing.assert_array_equal(value, second.name_weights()[name])
        if not name.endswith(("bias", "matching")):
            assert np.abs(value - other.name_weights()[name].numpy()).max() > 0.01, name
        if name.endswith("recurrent_kernel"):
            for gate in np.split(value.numpy(), 4, axis=1):
                np.testing.assert_allclose(gate @ gate.T, np.eye(3), atol=1e-6)
        if name.endswith(("lstm.bias", "ward.bias")):  # the forget gate is open
            np.testing.assert_array_equal(value, [0] * 3 + [1] * 3 + [0] * 6)


@pytest.mark.slow
def test_esim_s_first_attention_finds_a_word_of_the_other_segment():
    """Where it is the same everywhere, nothing is learnt for hundreds of steps."""
    matcher = build_matcher("esim", 5000, seed=1)
    token_ids = np.random.default_rng(0).integers(1, 5000, size=60)
    token_ids[45] = token_ids[10]
    table = make_table([(token_ids[:40].tolist(), token_ids[40:].tolist())])
    tokens = matcher(**table)["tokens"][0]
    attention = tf.nn.softmax(tf.matmul(tokens[10:11], tokens[40:], transpose_b=True))[0]
    assert attention[5] > 0.5


@pytest.mark.slow
def test_dropout_follows_from_seed_and_step():
    table = make_table(ROWS)
    inputs = {
        name: keras.Input((None,), dtype=value.dtype.name, name=name)
        for name, value in table.items()
    }
    model = keras.Model(inputs, build("dual_lstm", dropout=0.5)(**inputs))  # as tasks build one

    def run(seed, step, training=True):
        seed_dropout(model, seed, step)
        return model(table, training=training)["tokens"].numpy()

    np.testing.assert_array_equal(run(1, 2), run(1, 2))
    assert np.abs(run(1, 2) - run(1, 3)).max() > 0.01
    assert np.abs(run(1, 2) - run(2, 2)).max() > 0.01
    plain = build("dual_lstm")(**table)["tokens"]
    np.testing.assert_array_equal(run(1, 2, training=False), plain)


@pytest.mark.slow
def test_every_dropout_of_esim_changes_what_follows_it():
    matcher, table = build("esim", dropout=0.5), make_table(ROWS)
    names = ("embedding_dropout", "projection_dropout", "pair_dropout")
    expected = matcher(**table)
    for name in names:
        for other in names:
            getattr(matcher, other).rate = 0.5 if other == name else 0.0
        outputs = matcher(**table, training=True)
        tokens_differ = np.abs(outputs["tokens"] - expected["tokens"]).max() > 1e-3
        assert tokens_differ == (name == "embedding_dropout")
        assert np.abs(outputs["pair"] - expected["pair"]).max() > 1e-3


@pytest.mark.slow
@EVERY_ARCHITECTURE
def test_two_devices_give_what_one_gives(architecture):
    table = make_table(ROWS[:4])
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        matcher = build(architecture)

    def compute(batch):
        with tf.GradientTape() as tape:
            outputs = matcher(**batch)
            loss = tf.reduce_sum(outputs["pair"] ** 2) + tf.reduce_sum(outputs["tokens"] ** 2)
        gradients = tape.gradient(loss, [v.value for v in matcher.trainable_variables])
        return outputs["pair"], [tf.reduce_sum(tf.convert_to_tensor(g)) for g in gradients]

    def take(context):
        i = context.replica_id_in_sync_group
        return {name: value[2 * i : 2 * i + 2] for name, value in table.items()}

    batch = strategy.experimental_distribute_values_from_function(take)
    found, sums = tf.function(lambda batch: strategy.run(compute, (batch,)))(batch)
    expected, expected_sums = compute(table)
    found = tf.concat(strategy.experimental_local_results(found), 0)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    for value, total in zip(sums, expected_sums, strict=True):
        parts = strategy.experimental_local_results(value)
        np.testing.assert_allclose(tf.add_n(parts), total, rtol=1e-3, atol=1e-4)


@EVERY_ARCHITECTURE
def test_files_give_the_model_back(architecture, tmp_path):
    matcher = build(architecture, dropout=0.25)
    write_matcher(tmp_path, matcher)
    again = read_matcher(tmp_path)
    assert read_matcher_settings(tmp_path) == again.settings() == matcher.settings()
    outputs, expected = again(**make_table(ROWS)), matcher(**make_table(ROWS))
    for name in ("pair", "tokens"):
        np.testing.assert_array_equal(outputs[name], expected[name])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architecture": "gru"}, "gru"),
        ({"hidden_dim": "5"}, "hidden_dim"),
        ({"hidden_dim": 4}, r"lstm.kernel is float32 \(6, 20\), expected \(6, 16\)"),
        ({"architecture": "esim"}, "lacks the tensor"),
        (None, r"matcher\.json"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, named):
    write_matcher(tmp_path, build("dual_lstm"))
    path = tmp_path / "matcher.json"
    if change is None:
        path.unlink()
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=named) as caught:
        read_matcher(tmp_path)
    assert str(tmp_path) in str(caught.value)
