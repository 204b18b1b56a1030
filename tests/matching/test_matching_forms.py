"""The matching's forms besides the paper's: as printed, for all pairs, taken apart, in a folder."""

import json
import math

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from layer_cases import attention_weights, build_attention
from test_gram_similarity import CONTEXTS, DIM, TOKENS, draw, make_inputs
from tiny_batch import CANDIDATES, TEMPERATURE, make_index
from tiny_batch import CONTEXTS as TURNS
from tiny_bert import VOCABULARY, build_backbone, draw_utterances, make_table

from dcse_tf.bert.bert import TokenCentering, build_bert_encoder
from dcse_tf.bert.layout import Layout, lay_out
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.errors import InputError
from dcse_tf.inspecting.explanation import decompose, decompose_maxima, explain_response
from dcse_tf.matching.dialogue_cse import (
    Objective,
    build_dialogue_cse,
    build_matching,
    build_pair_similarity,
)
from dcse_tf.matching.matching_files import (
    PAPER,
    MatchingForm,
    build_turn_attention,
    has_matching,
    make_matching_form,
    read_matching,
    write_matching,
)
from dcse_tf.matching.matching_forms import ResidualWeight

LAMBDA = 2.5
KINDS = ("attention", "additive_attention")
# Form and kind of the turns' attention.
FORMS = [(kind, how) for kind in ("residual", "context") for how in (None, *KINDS)]
FORMS += [("maxsim", None)]
NAMES = ("padding_mask", "context_index", "turn_mask", "candidate_index")


def make_form(kind, how, dtype="float32"):
    attention = build_attention(how, dtype=dtype, name="turn_attention") if how else None
    residual = ResidualWeight(LAMBDA, dtype=dtype) if kind == "residual" else None
    if residual:  # Keras' initial values are float32
        residual.position.assign(np.log(LAMBDA) / 100)
    return MatchingForm(kind, attention, residual)


def make_layer(kind, how, dtype="float32"):
    return build_pair_similarity(make_form(kind, how, dtype), dtype=dtype)


def compute_reference(kind, how, context, response):
    if kind == "maxsim":
        return reference.maxsim(context, response)
    weights = (attention_weights(how) if how else None, how == "additive_attention")
    if kind == "residual":
        return reference.residual_similarity(context, response, LAMBDA, *weights)
    return reference.context_similarity(context, response, *weights)


def compute_references(kind, how, utterances):
    return [[compute_reference(kind, how, [utterances[i] for i in turns], r) for r in utterances]
            for turns in CONTEXTS]  # fmt: skip


def make_printed(form, table, mask, index, turn_mask):
    """The similarity of every pair by the layers as printed."""
    every = tf.tile(tf.range(tf.shape(table)[0])[None, :], [len(CONTEXTS), 1])
    rest = dict(zip(NAMES, (mask, index, turn_mask, every), strict=True))
    matching = build_matching(DIM, form)
    return lambda: matching({"token_embeddings": table, **rest})


def test_maxsim_by_hand():
    # A turn of e1 and (e1 + e2), a response of 3 e2: the cosines are 0 and 1 / sqrt(2).
    turn, response = np.array([[1.0, 0, 0, 0], [1.0, 1.0, 0, 0]]), np.array([[0, 3.0, 0, 0]])
    expected = ((0 + 1 / math.sqrt(2)) / 2 + 1 / math.sqrt(2)) / 2
    assert reference.maxsim([turn], response) == pytest.approx(expected)


def test_residual_and_context_by_hand():
    # d = 4. R = e1, 3 e2: G = diag(1, 9, 0, 0) and r = (1, 3) / 2. U = e1 + e3 is c, so
    # c G / sqrt(d) = e1 / 2.
    context, response = [np.array([[1.0, 0, 1.0, 0]])], np.array([[1.0, 0, 0, 0], [0, 3.0, 0, 0]])
    aware = np.array([2.5, 0, 2, 0])
    expected = aware @ [0.5, 1.5, 0, 0] / np.linalg.norm(aware) / math.sqrt(2.5)
    found = reference.residual_similarity(context, response, 2.0)
    assert found == pytest.approx(expected)
    assert reference.context_similarity(context, response) == pytest.approx(1 / math.sqrt(2))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
@pytest.mark.parametrize(("kind", "how"), FORMS)
def test_every_pair_equals_the_reference(kind, how, dtype, tolerance):
    utterances = draw()
    inputs = make_inputs(utterances, dtype)
    similarity = make_layer(kind, how, dtype)(*inputs)
    expected = compute_references(kind, how, utterances)
    np.testing.assert_allclose(similarity, expected, atol=tolerance, rtol=0)
    assert np.ptp(expected) > 0.3
    other = [[reference.similarity([utterances[i] for i in t], r) for r in utterances]
             for t in CONTEXTS]  # fmt: skip
    assert np.abs(similarity - np.array(other)).max() > 0.1  # it is not the paper's


@pytest.mark.parametrize(("kind", "how"), FORMS)
def test_the_printed_layers_equal_the_reference(kind, how):
    utterances = draw()
    similarity = make_printed(make_form(kind, how), *make_inputs(utterances, "float32"))()
    expected = compute_references(kind, how, utterances)
    np.testing.assert_allclose(similarity, expected, atol=1e-5)


@pytest.mark.parametrize("padding", [{"extra": 3}, {"fill": 1e3}, {"absent": 6}])
@pytest.mark.parametrize(("kind", "how"), FORMS)
def test_padding_never_changes_the_result(kind, how, padding):
    utterances = draw()
    plain, padded = (make_inputs(utterances, "float64", **more) for more in ({}, padding))
    layer = make_layer(kind, how, "float64")
    np.testing.assert_allclose(layer(*padded), layer(*plain), rtol=1e-11)
    form = make_form(kind, how)
    printed = [make_printed(form, tf.cast(table, tf.float32), *rest)()
               for table, *rest in (plain, padded)]  # fmt: skip
    np.testing.assert_allclose(printed[1], printed[0], atol=1e-5)


@pytest.mark.parametrize(("kind", "how"), FORMS)
def test_permutation_of_turns_changes_nothing_and_of_utterances_permutes(kind, how):
    table, mask, index, turn_mask = make_inputs(draw(), "float64")
    layer = make_layer(kind, how, "float64")
    straight = layer(table, mask, index, turn_mask).numpy()
    turned = layer(table, mask, index[:, ::-1], turn_mask[:, ::-1])
    np.testing.assert_allclose(turned, straight, rtol=1e-11)
    last = len(TOKENS) - 1
    permuted = layer(table[::-1], mask[::-1], last - index, turn_mask)
    np.testing.assert_allclose(permuted, straight[:, ::-1], rtol=1e-11)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("kind", "how"), FORMS)
def test_values_and_gradients_equal_those_of_the_printed_layers(kind, how, compiled):
    inputs = make_inputs(draw(1), "float32")
    form = make_form(kind, how)
    layer = build_pair_similarity(form, dtype="float32")
    ways = (make_printed(form, *inputs), lambda: layer(*inputs))
    rows = (len(CONTEXTS), len(TOKENS))
    weights = tf.constant(np.random.default_rng(2).normal(size=rows), tf.float32)
    parts = [part for part in (form.attention, form.residual) if part]
    variables = [v.value for part in parts for v in part.trainable_variables]

    def differentiate(similarity):
        with tf.GradientTape() as tape:
            tape.watch(inputs[0])
            values = similarity()
            total = tf.reduce_sum(values * weights)
        found = tape.gradient(total, [inputs[0], *variables])
        return values, [tf.convert_to_tensor(gradient) for gradient in found]

    run = tf.function(differentiate, autograph=False) if compiled else differentiate
    (values, gradients), (short_values, short_gradients) = (run(way) for way in ways)
    np.testing.assert_allclose(short_values, values, atol=1e-5)
    for short, direct in zip(short_gradients, gradients, strict=True):
        np.testing.assert_allclose(short, direct, atol=2e-5 * max(1.0, np.abs(direct).max()))
    assert np.abs(gradients[0]).max() > 0.05
    assert all(np.abs(gradient).max() > 1e-4 for gradient in gradients[1:2])


def test_the_gradient_of_lambda_is_that_of_its_logarithm():
    utterances = draw()
    layer = make_layer("residual", None)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(*make_inputs(utterances, "float32")))
    found = tape.gradient(total, layer.residual.position.value)

    def at(lam):
        return sum(
            reference.residual_similarity([utterances[i] for i in turns], r, lam)
            for turns in CONTEXTS
            for r in utterances
        )

    step = math.exp(1e-4)
    expected = (at(LAMBDA * step) - at(LAMBDA / step)) / 2e-4
    assert float(found) == pytest.approx(expected, rel=1e-3)


def test_lambda_moves_by_shares_of_itself():
    """A step of Adam moves a weight by the learning rate: here lambda by a factor of e^0.1."""
    weight = ResidualWeight(2.0)
    assert float(weight.value()) == pytest.approx(2.0)
    weight.position.assign_add(0.001)
    assert float(weight.value()) == pytest.approx(2.0 * math.exp(0.1))


@pytest.mark.parametrize(("kind", "how"), FORMS)
def test_an_utterance_of_zeros_has_similarity_zero_and_a_finite_gradient(kind, how):
    utterances = [np.zeros_like(rows) if i == 4 else rows for i, rows in enumerate(draw())]
    table, *rest = make_inputs(utterances, "float32")
    with tf.GradientTape() as tape:
        tape.watch(table)
        similarity = make_layer(kind, how)(table, *rest)
    assert (similarity.numpy()[:, 4] == 0).all()
    assert np.isfinite(tf.convert_to_tensor(tape.gradient(similarity, table))).all()


@pytest.mark.parametrize(("kind", "how"), FORMS)
def test_layers_survive_their_configuration(kind, how, tmp_path):
    inputs = make_inputs(draw(), "float32")
    form = make_form(kind, how)
    layer = build_pair_similarity(form, dtype="float32")
    expected = layer(*inputs)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    again(*inputs)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(*inputs), expected)
    matching = build_matching(DIM, form)
    matching.save(tmp_path / "matching.keras")
    table, mask, index, turn_mask = inputs
    candidates = tf.zeros([len(CONTEXTS), 2], tf.int32)
    values = dict(zip(NAMES, (mask, index, turn_mask, candidates), strict=True))
    values["token_embeddings"] = table
    reloaded = keras.saving.load_model(tmp_path / "matching.keras")
    np.testing.assert_array_equal(reloaded(values), matching(values))


def test_maxsim_keeps_no_cosines_of_all_tokens():
    """Neither the values nor, by computing them again, the gradients."""
    layer = make_layer("maxsim", None)
    shapes = [(50, 20, 64), (50, 20), (30, 6), (30, 6)]
    types = [tf.float32, tf.bool, tf.int32, tf.bool]

    def differentiate(table, *rest):
        with tf.GradientTape() as tape:
            tape.watch(table)
            total = tf.reduce_sum(layer(table, *rest))
        return tape.gradient(total, table)

    signature = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, types, strict=True)]
    graph = tf.function(differentiate, autograph=False).get_concrete_function(*signature).graph
    names = graph._functions.keys()
    bodies = [graph._get_function(name).graph for name in names] if names else []
    lists = [
        op
        for each in (graph, *bodies)
        for op in each.get_operations()
        if op.type == "TensorListPushBack"
    ]
    shapes = [op.inputs[1].shape for op in lists]
    assert all((shape.num_elements() or 0) <= 50 * 20 * 64 / 50 for shape in shapes), shapes


@pytest.mark.parametrize(("kind", "how"), [(k, h) for k, h in FORMS if k != "maxsim"])
def test_contributions_add_up_to_the_similarity(kind, how):
    context, response = draw(3)[:3], draw(4)[4]
    form = make_form(kind, how, "float64")

    def weigh(pooled):
        return form.attention(tf.constant(pooled), tf.ones([len(pooled)], tf.bool)).numpy()

    more = {"weigh": weigh} if how else {}
    matching = decompose(
        context, response, kind=kind, residual=LAMBDA * (kind == "residual"), **more
    )
    total = sum(float(cells.sum()) for cells in matching.contributions)
    assert total == pytest.approx(matching.similarity, abs=1e-12)
    assert total == pytest.approx(compute_reference(kind, how, context, response), abs=1e-6)


def test_contributions_to_the_residual_form_by_hand():
    # d = 4, m = 1, lambda = 2. U = 2 e1 and 2 e2, R = e1: M = (1, 0). r~ pools to
    # (2, 2) + (1/2, 0) and rbar is e1; the pairs have 2 (lambda U . rbar) + M and 0, halved.
    context, response = [2.0 * np.eye(4)[:2]], np.eye(4)[:1]
    matching = decompose(context, response, kind="residual", residual=2.0)
    length = math.hypot(2.5, 2.0)
    np.testing.assert_allclose(matching.contributions[0], [[2.5 / length], [0.0]])
    assert matching.similarity == pytest.approx(2.5 / length)


def test_only_the_best_pairs_of_maxsim_contribute():
    # Cosines of two tokens with one: 1 and 0.6. By rows 1/2 of each, by columns the first.
    turn, response = np.array([[2.0, 0], [3.0, 4.0]]), np.array([[5.0, 0]])
    matching = decompose_maxima([turn, turn], response)
    np.testing.assert_allclose(matching.matrices[0], [[1.0], [0.6]])
    np.testing.assert_allclose(matching.contributions[1], [[0.75 / 2], [0.15 / 2]])
    assert matching.similarity == pytest.approx(reference.maxsim([turn, turn], response))


@pytest.fixture(scope="module")
def backbone():
    return build_backbone()


@pytest.mark.parametrize(("kind", "how"), FORMS)
def test_an_explanation_is_of_the_models_own_form(backbone, kind, how):
    attention = build_turn_attention(how, backbone.hidden_dim, 5) if how else None
    form = make_matching_form(kind, attention)
    graph = EncoderGraph(build_bert_encoder(backbone), VOCABULARY, 8, "mean", matching=form)
    texts = ["where is my parcel", "it left today", "ok", "i want a refund"]
    tokens = VOCABULARY.tokens
    found = explain_response(GraphBackend(graph), tokens, ("s", texts), 1, [0, 2, 3])
    total = sum(float(cells.sum()) for cells in found.matching.contributions)
    assert found.matching.kind == kind
    assert abs(total - found.scored) < 1e-5
    paper = GraphBackend(EncoderGraph(graph.bert, VOCABULARY, 8, "mean"))
    assert abs(found.scored - paper.score([[texts[i] for i in (0, 2, 3)]], [[texts[1]]])) > 1e-3


@pytest.mark.parametrize(("kind", "how"), [("paper", None), ("paper", "attention"), *FORMS])
def test_a_form_is_the_same_after_writing_and_reading(kind, how, tmp_path):
    form = make_form(kind, how)
    write_matching(tmp_path, form)
    again = read_matching(tmp_path)
    assert has_matching(tmp_path)
    assert again.describe() == form.describe()
    utterances = make_inputs(draw(), "float32")
    values = [make_printed(each, *utterances)() for each in (form, again)]
    np.testing.assert_allclose(values[1], values[0], atol=1e-6)
    content = json.loads((tmp_path / "matching.json").read_text())
    assert content.get("lambda", LAMBDA) == pytest.approx(LAMBDA)


def test_a_folder_without_a_file_has_the_papers_form(tmp_path):
    assert (has_matching(tmp_path), read_matching(tmp_path)) == (False, PAPER)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not the form of a matching"),
        ('{"lambda": 1}', "'kind'"),
        ('{"kind": "best"}', "'best', expected one of paper, residual, context, maxsim"),
        ('{"kind": "residual"}', "lambda belongs to"),
        ('{"kind": "context", "lambda": 1}', "lambda belongs to"),
        ('{"kind": "residual", "lambda": 0}', "expected a number above 0"),
        ('{"kind": "residual", "lambda": "x"}', "could not convert"),
    ],
)
def test_a_damaged_file_is_named(content, message, tmp_path):
    (tmp_path / "matching.json").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        read_matching(tmp_path)
    assert str(tmp_path / "matching.json") in str(caught.value)


def test_maxsim_has_no_weights_of_turns(tmp_path):
    write_matching(tmp_path, make_form("context", "attention"))
    (tmp_path / "matching.json").write_text('{"kind": "maxsim"}')
    with pytest.raises(InputError, match="with the matching 'maxsim' each turn counts the same"):
        read_matching(tmp_path)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("kind", ["residual", "context", "maxsim"])
def test_the_training_model_contrasts_the_form(backbone, kind, layout, centred):
    """Its similarities are the printed layers', of the same encoder; lambda is trained."""
    form, way = make_form(kind, None), Layout(layout, row_length=16)
    centering = TokenCentering(dtype="float32") if centred else None
    model = build_dialogue_cse(backbone, way, Objective(TEMPERATURE, form), centering)
    table = make_table(draw_utterances(8))
    index = make_index(TURNS, CANDIDATES)
    batch = {**lay_out(table["token_ids"], way), **index}
    model(batch, training=True)  # so that there is a running mean
    encoder = build_bert_encoder(backbone, centering)
    mask = {"padding_mask": table["padding_mask"]}
    places = {name: value for name, value in index.items() if name != "candidate_mask"}
    inputs = {"token_embeddings": encoder(table), **mask, **places}
    expected = build_matching(backbone.hidden_dim, form)(inputs)
    with tf.GradientTape() as tape:
        outputs = model(batch)
    np.testing.assert_allclose(outputs["similarity"], expected, atol=1e-5)
    weights = [v for v in model.trainable_variables if v.path.endswith("position")]
    assert len(weights) == (kind == "residual")
    gradients = tape.gradient(outputs["loss"], [v.value for v in model.trainable_variables])
    assert None not in gradients
