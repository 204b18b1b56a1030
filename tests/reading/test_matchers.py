"""DualLSTM and ESIM against NumPy, and what the tasks rely on: masks, seeds, devices, files."""

import json

import keras
import keras_hub
import numpy as np
import pytest
import reference
import tensorflow as tf
from pair_rows import ROWS, VOCABULARY_SIZE, make_table

from dcse_tf.errors import InputError
from dcse_tf.reading.matchers import (
    ESIM,
    DualLSTM,
    build_matcher,
    read_matcher,
    read_matcher_settings,
    write_matcher,
)
from dcse_tf.training.trainer import seed_dropout

ARCHITECTURES = ("dual_lstm", "esim")
EVERY_ARCHITECTURE = pytest.mark.parametrize("architecture", ARCHITECTURES)
EMBEDDING_DIM, HIDDEN_DIM = 6, 5


def build(architecture, seed=3, dropout=0.0):
    """A small model; weights and biases large enough for gates that differ."""
    matcher = build_matcher(
        architecture, VOCABULARY_SIZE, seed, EMBEDDING_DIM, HIDDEN_DIM, dropout=dropout
    )
    rng = np.random.default_rng(seed)
    for variable in matcher.trainable_variables:
        variable.assign_add(rng.normal(scale=0.3, size=variable.shape))
    return matcher


def make_float64(matcher):
    """The same model in float64: rounding then hides no mistake."""
    config = matcher.get_config() | {"dtype": "float64"}
    copy = type(matcher).from_config(config)
    copy.build()
    copy.set_weights(matcher.get_weights())
    return copy


def get_tensors(matcher):
    return {name: value.numpy().astype(float) for name, value in matcher.name_weights().items()}


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-10), ("float32", 1e-5)])
def test_dual_lstm_equals_the_reference(dtype, bound):
    matcher = build("dual_lstm") if dtype == "float32" else make_float64(build("dual_lstm"))
    outputs, tensors = matcher(**make_table(ROWS)), get_tensors(matcher)
    assert outputs["pair"].dtype == outputs["tokens"].dtype == dtype
    for pair, tokens, (first, second) in zip(outputs["pair"], outputs["tokens"], ROWS):
        score, expected = reference.dual_lstm(first, second or [3], tensors)
        if second is None:
            expected.pop()
            np.testing.assert_array_equal(pair, np.zeros(HIDDEN_DIM))
        else:
            np.testing.assert_allclose(tf.reduce_sum(pair), score, rtol=bound, atol=bound)
        rows = np.concatenate(expected)
        np.testing.assert_allclose(tokens[: len(rows)], rows, rtol=bound, atol=bound)


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-10), ("float32", 1e-5)])
def test_esim_equals_the_reference(dtype, bound):
    matcher = build("esim") if dtype == "float32" else make_float64(build("esim"))
    outputs, tensors = matcher(**make_table(ROWS)), get_tensors(matcher)
    assert outputs["pair"].dtype == outputs["tokens"].dtype == dtype
    for pair, tokens, (first, second) in zip(outputs["pair"], outputs["tokens"], ROWS):
        expected, encoded = reference.esim(first, second or [3], tensors)
        if second is None:
            encoded.pop()
            expected = np.zeros(8 * HIDDEN_DIM)
        np.testing.assert_allclose(pair, expected, rtol=bound, atol=bound)
        rows = np.concatenate(encoded)
        np.testing.assert_allclose(tokens[: len(rows)], rows, rtol=bound, atol=bound)


def test_a_linear_head_on_dual_lstm_is_a_bilinear_score():
    """Any weights w: sum of w_i (c^T M)_i r_i is c^T M diag(w) r."""
    matcher, weights = build("dual_lstm"), np.random.default_rng(5).normal(size=HIDDEN_DIM)
    tensors = get_tensors(matcher)
    pairs = matcher(**make_table(ROWS))["pair"].numpy()
    tensors["matching"] = tensors["matching"] @ np.diag(weights)
    for pair, (first, second) in zip(pairs, ROWS, strict=True):
        if second:
            score, _ = reference.dual_lstm(first, second, tensors)
            np.testing.assert_allclose(pair @ weights, score, rtol=1e-4, atol=1e-5)


def assert_same(outputs, expected, rows=slice(None)):
    """Rows of one table are those of another, as far as it is wide."""
    np.testing.assert_allclose(outputs["pair"], expected["pair"].numpy()[rows], atol=1e-6)
    tokens = expected["tokens"].numpy()[rows]
    width = min(tokens.shape[1], outputs["tokens"].shape[1])
    np.testing.assert_allclose(outputs["tokens"][:, :width], tokens[:, :width], atol=1e-6)


@EVERY_ARCHITECTURE
@pytest.mark.parametrize(("extra", "fill"), [(1, 0), (4, 7)])
def test_padding_never_changes_a_result(architecture, extra, fill):
    matcher = build(architecture)
    outputs = matcher(**make_table(ROWS, extra, fill))
    assert_same(outputs, matcher(**make_table(ROWS)))
    assert np.isfinite(outputs["tokens"]).all()


@EVERY_ARCHITECTURE
def test_other_rows_never_change_a_result(architecture):
    matcher, order = build(architecture), [4, 2, 0, 3, 1]
    expected = matcher(**make_table(ROWS))
    assert_same(matcher(**make_table([ROWS[i] for i in order])), expected, order)
    for i, row in enumerate(ROWS):
        assert_same(matcher(**make_table([row])), expected, slice(i, i + 1))


@EVERY_ARCHITECTURE
def test_both_segments_reach_the_pair(architecture):
    matcher = build(architecture)
    rows = [([2, 7, 8, 3], [11, 3]), ([2, 7, 9, 3], [11, 3]), ([2, 7, 8, 3], [12, 3])]
    pairs = matcher(**make_table(rows))["pair"].numpy()
    distances = np.abs(pairs[1:] - pairs[0]).max(axis=1)
    assert (distances > 1e-3).all()
    tokens = matcher(**make_table(rows))["tokens"].numpy()
    # No token's own vector knows the other segment.
    np.testing.assert_allclose(tokens[0, :4], tokens[2, :4], atol=1e-6)
    np.testing.assert_allclose(tokens[0, 4:], tokens[1, 4:], atol=1e-6)


@EVERY_ARCHITECTURE
def test_padding_gets_no_gradient_and_every_weight_has_one(architecture):
    matcher = build(architecture)
    table = make_table(ROWS, extra=2, fill=39)
    with tf.GradientTape() as tape:
        outputs = matcher(**table)
        loss = tf.reduce_sum(outputs["pair"] ** 2)
    names = matcher.name_weights()
    gradients = tape.gradient(loss, [variable.value for variable in names.values()])
    for name, gradient in zip(names, gradients, strict=True):
        dense = tf.convert_to_tensor(gradient).numpy()
        assert np.isfinite(dense).all(), name
        assert dense.any(), name
    # The id 39 stands in the padding alone, 21 in a row that has one segment.
    assert not tf.convert_to_tensor(gradients[0]).numpy()[[0, 39, 21]].any()


@EVERY_ARCHITECTURE
def test_a_functional_model_is_saved_and_reloaded(architecture, tmp_path):
    matcher, table = build(architecture), make_table(ROWS)
    model = make_model(matcher)
    assert model.output["pair"].shape == (None, matcher.pair_dim)
    assert model.output["tokens"].shape == (None, None, matcher.tokens_dim)
    expected = matcher(**table)
    assert_same(tf.function(model)(table), expected)
    model.save(tmp_path / "model.keras")
    assert_same(keras.saving.load_model(tmp_path / "model.keras")(table), expected)


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
    kernels = [v.numpy() for name, v in first.name_weights().items() if "recurrent" in name]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels)


def test_the_embedding_s_first_weights_have_one_scale():
    table = build_matcher("dual_lstm", 2000, 1, hidden_dim=4).token_embedding.embeddings.numpy()
    assert table.shape == (2000, 300)
    # A truncated normal's standard deviation is 0.88 times its parameter.
    np.testing.assert_allclose(table.std(), 0.88, rtol=0.01)


def test_esim_s_first_attention_finds_a_word_of_the_other_segment():
    """Where it is the same everywhere, nothing is learnt for hundreds of steps."""
    matcher = build_matcher("esim", 5000, seed=1)
    token_ids = np.random.default_rng(0).integers(1, 5000, size=(1, 60))
    token_ids[0, 45] = token_ids[0, 10]
    lengths = tf.constant([[40, 20]])
    tokens = matcher.context_lstm(matcher.token_embedding(token_ids), lengths)[0]
    attention = tf.nn.softmax(tf.matmul(tokens[10:11], tokens[40:], transpose_b=True))[0]
    assert attention[5] > 0.5


def make_model(matcher):
    inputs = {
        name: keras.Input((None,), dtype=value.dtype.name, name=name)
        for name, value in make_table(ROWS).items()
    }
    return keras.Model(inputs, matcher(**inputs))


@EVERY_ARCHITECTURE
def test_dropout_follows_from_seed_and_step(architecture):
    table = make_table(ROWS)

    def run(seed, step, training=True):
        model = make_model(build(architecture, dropout=0.5))
        seed_dropout(model, seed, step)
        return model(table, training=training)["tokens"].numpy()

    np.testing.assert_array_equal(run(1, 2), run(1, 2))
    assert np.abs(run(1, 2) - run(1, 3)).max() > 0.01
    assert np.abs(run(1, 2) - run(2, 2)).max() > 0.01
    expected = build(architecture)(**table)["tokens"]
    np.testing.assert_array_equal(run(1, 2, training=False), expected)


def test_every_dropout_of_esim_is_found_and_has_its_own_state():
    model = make_model(build("esim", dropout=0.5))
    generators = [
        layer.seed_generator
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Dropout)
    ]
    assert len(generators) == 3
    for _ in range(2):
        assert len({tuple(generator.state.numpy()) for generator in generators}) == 3
        seed_dropout(model, 1, 2)


@pytest.mark.parametrize("name", ["embedding_dropout", "projection_dropout", "pair_dropout"])
def test_every_dropout_of_esim_changes_what_follows_it(name):
    matcher, table = build("esim", dropout=0.5), make_table(ROWS)
    expected = matcher(**table)
    for other in {"embedding_dropout", "projection_dropout", "pair_dropout"} - {name}:
        getattr(matcher, other).rate = 0.0
    outputs = matcher(**table, training=True)
    tokens_differ = np.abs(outputs["tokens"] - expected["tokens"]).max() > 1e-3
    assert tokens_differ == (name == "embedding_dropout")
    assert np.abs(outputs["pair"] - expected["pair"]).max() > 1e-3
    # Only the last one sets entries of the pair itself to zero.
    zeros = (outputs["pair"].numpy()[0] == 0.0).mean()
    assert (zeros > 0.2) == (name == "pair_dropout")


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
        return outputs["pair"], [tf.reduce_sum(tf.convert_to_tensor(g) ** 1) for g in gradients]

    @tf.function
    def run(batch):
        return strategy.run(compute, args=(batch,))

    def take(context):
        i = context.replica_id_in_sync_group
        return {name: value[2 * i : 2 * i + 2] for name, value in table.items()}

    found, sums = run(strategy.experimental_distribute_values_from_function(take))
    found = tf.concat(strategy.experimental_local_results(found), 0)
    expected, expected_sums = compute(table)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    for value, total in zip(sums, expected_sums, strict=True):
        parts = strategy.experimental_local_results(value)
        np.testing.assert_allclose(tf.add_n(parts), total, rtol=1e-3, atol=1e-4)


@EVERY_ARCHITECTURE
def test_a_masked_language_model_s_head_can_be_tied(architecture):
    matcher = build(architecture)
    head = keras_hub.layers.MaskedLMHead(token_embedding=matcher.token_embedding)
    tokens = matcher(**make_table(ROWS))["tokens"]
    logits = head(tf.reshape(tokens, [1, -1, matcher.tokens_dim]), tf.constant([[1, 4]]))
    assert logits.shape == (1, 2, VOCABULARY_SIZE)


@pytest.mark.parametrize(("architecture", "kind"), [("dual_lstm", DualLSTM), ("esim", ESIM)])
def test_files_give_the_model_back(architecture, kind, tmp_path):
    matcher = build(architecture, dropout=0.25)
    write_matcher(tmp_path, matcher)
    again = read_matcher(tmp_path)
    assert isinstance(again, kind)
    assert again.settings() == matcher.settings()
    assert read_matcher_settings(tmp_path) == matcher.settings()
    outputs, expected = again(**make_table(ROWS)), matcher(**make_table(ROWS))
    for name in ("pair", "tokens"):
        np.testing.assert_array_equal(outputs[name], expected[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "gru"}, "expected dual_lstm or esim"),
        ({"architecture": 3}, "architecture is 3"),
        ({"hidden_dim": 0}, "expected at least 1"),
        ({"hidden_dim": "5"}, "hidden_dim is '5'"),
        ({"embedding_dim": True}, "embedding_dim is True"),
        ({"dropout": 1.0}, "less than 1"),
        ({"hidden_dim": 4}, r"lstm.kernel is \(6, 20\), expected \(6, 16\)"),
        ({"architecture": "esim"}, "lacks the tensor"),
    ],
)
def test_wrong_settings_are_named(tmp_path, change, message):
    write_matcher(tmp_path, build("dual_lstm"))
    path = tmp_path / "matcher.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message) as caught:
        read_matcher(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"matcher\.json"):
        read_matcher(tmp_path)


def test_the_default_sizes_are_those_of_the_papers_code():
    for architecture in ARCHITECTURES:
        settings = build_matcher(architecture, 7, 1).settings()
        assert settings["embedding_dim"] == settings["hidden_dim"] == 300
