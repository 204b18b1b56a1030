"""The export: its signatures, its verification, its versions, and how servers are asked."""

import ast
import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tiny_bert import DIM, LAYERS, VOCABULARY, VOCABULARY_SIZE, build_backbone
from tiny_checkpoints import train_byte_pairs, write_weights

from dcse_tf.bert import bert
from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.bert.blanks import NO_CANDIDATE
from dcse_tf.bert.checkpoints import write_max_sequence_length
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError, OutputError
from dcse_tf.evaluation.job import evaluate
from dcse_tf.evaluation.options import EvaluateOptions
from dcse_tf.exporting import fresh_process, saved_model
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.exporting.saved_model import SENTENCES as SAMPLE
from dcse_tf.exporting.saved_model import TOLERANCE, ServedEncoder, make_requests
from dcse_tf.matching.matching_files import MatchingForm, build_turn_attention, write_matching
from dcse_tf.options import OptionError

pytestmark = pytest.mark.slow

SERVING = pathlib.Path(__file__).parents[2] / "experiments/serving"
HAS_MESSAGES = importlib.util.find_spec("tensorflow_serving") is not None
needs_messages = pytest.mark.skipif(not HAS_MESSAGES, reason="needs tensorflow-serving-api")

LENGTH = 8
SENTENCES = ["where is my parcel", "ok", "", "好的发货", "i want a refund for the cup " * 9, "ok"]
CONTEXTS = [["where is my parcel", "it left today", "thanks"], ["i want a refund"], ["好的", "ok"]]
CANDIDATES = [["it left today", "refund " * 20], ["ok", ""], ["好的发货", "where is the cup"]]
KINDS = ("attention", "additive_attention")


def make_encoder(pooling="mean", length=LENGTH):
    encoder = build_bert_encoder(build_backbone())
    return EncoderGraph(encoder, VOCABULARY, length, pooling)


def embed(encoder):
    return SentenceEncoder(GraphBackend(encoder)).encode(SENTENCES)


class Scale(tf.keras.layers.Layer):
    """A postprocessing that makes embeddings longer or shorter."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, x):
        return self.factor * x


def make_attention(kind):
    """Weights large enough that the turns count differently."""
    attention = build_turn_attention(kind, DIM, 1)
    for variable in attention.variables:
        variable.assign(30 * variable)
    return attention


@pytest.fixture(scope="module")
def encoder():
    return make_encoder()


@pytest.fixture(scope="module")
def functions(encoder):
    return ServedEncoder(encoder, unit_norm=False).functions


@pytest.fixture(scope="module")
def requests(encoder):
    return make_requests(encoder, unit_norm=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """An encoder trained with aggregation I1, as a run leaves it."""
    folder = tmp_path_factory.mktemp("run") / "encoder"
    folder.mkdir()
    config = bert.make_bert_config(LAYERS, DIM, VOCABULARY_SIZE)
    bert.save_backbone(folder, build_backbone(), config)
    VOCABULARY.write(folder)
    write_max_sequence_length(folder, LENGTH)
    write_matching(folder, MatchingForm(attention=make_attention("attention")))
    return folder


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    """Verified by a fresh process when it was written."""
    folder = tmp_path_factory.mktemp("models") / "dcse"
    return export(
        ExportOptions(
            run_dir=str(checkpoint.parent),
            output_dir=str(folder),
            unit_norm=True,
            versioned=True,
            warmup=HAS_MESSAGES,
        )
    )


@pytest.fixture(scope="module")
def signatures(exported):
    return tf.saved_model.load(str(exported)).signatures


def pad(rows):
    return tf.ragged.constant(rows, tf.string).to_tensor()


def ask(function, **inputs):
    (found,) = function(**inputs).values()
    return found.numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_batch_of_any_size_is_embedded(pooling):
    encoder = make_encoder(pooling)
    functions = ServedEncoder(encoder, unit_norm=False).functions
    whole = embed(encoder)
    for count in (0, 1, len(SENTENCES)):
        sentences = tf.constant(SENTENCES[:count], tf.string)
        found = ask(functions["serving_default"], sentences=sentences)
        assert found.shape == (count, DIM)
        np.testing.assert_allclose(found, whole[:count], atol=1e-5)
        token_ids = encoder.tokenize(tf.constant(SENTENCES)).to_tensor()[:count]
        found = ask(functions["tokens"], token_ids=token_ids, padding_mask=token_ids != 0)
        assert found.shape == (count, DIM)
        np.testing.assert_allclose(found, whole[:count], atol=1e-5)


def test_a_long_sentence_is_cut_and_a_short_one_is_not(functions):
    """[CLS], six words, [SEP]."""
    words = ["i", "want", "a", "refund", "for", "the", "blue", "cup", "thanks"]
    texts = [" ".join(words[:count]) for count in (5, 6, 7, 9)]
    five, six, seven, nine = ask(functions["serving_default"], sentences=tf.constant(texts))
    np.testing.assert_allclose(seven, six, atol=1e-6)
    np.testing.assert_allclose(nine, six, atol=1e-6)
    assert np.abs(five - six).max() > 1e-2


def test_padding_is_what_the_mask_says_wherever_it_is(functions):
    """Id 0 may be a real token, and others padding."""
    tokens = functions["tokens"]
    mask = tf.constant([[True, True, True, False, False]])
    first, second, real = (
        ask(tokens, token_ids=tf.constant([ids]), padding_mask=mask)
        for ids in ([2, 5, 3, 0, 0], [2, 5, 3, 9, 9], [2, 0, 3, 0, 0])
    )
    np.testing.assert_allclose(first, second, atol=1e-6)
    assert np.abs(first - real).max() > 1e-2


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([2, 60, 3], "token_ids: expected under 60"),
        ([2, -1, 3], "token_ids: expected 0 or more"),
        ([2] * 9, "token_ids: expected at most 8 tokens"),
    ],
)
def test_token_ids_that_are_none_are_refused(functions, ids, message):
    token_ids = tf.constant([ids])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        functions["tokens"](token_ids=token_ids, padding_mask=token_ids > 0)


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_match_is_the_response_scorers_similarity(encoder, functions, kind):
    attention = make_attention(kind) if kind else None
    graph = EncoderGraph(
        encoder.bert, VOCABULARY, LENGTH, "mean", matching=MatchingForm(attention=attention)
    )
    match = ServedEncoder(graph, unit_norm=True).functions["match"]
    expected = SentenceEncoder(GraphBackend(graph)).match(CONTEXTS, CANDIDATES)
    context, candidates = pad(CONTEXTS), tf.constant(CANDIDATES)
    for count in (0, 1, 3):
        found = ask(match, context=context[:count], candidates=candidates[:count])
        assert found.dtype == np.float32
        assert found.shape == (count, 2)
        np.testing.assert_allclose(found, expected[:count], atol=1e-5)
    plain = ask(functions["match"], context=context, candidates=candidates)
    assert kind is None or np.abs(plain - expected).max() > 1e-3


def test_an_empty_string_is_no_turn_wherever_it_stands(functions):
    contexts = [["ok", "thanks", ""], ["", "ok", "thanks"], ["ok", "", "thanks"], ["", "", ""]]
    candidates = tf.constant([["refund", "", "it left today"]] * 4)
    found = ask(functions["match"], context=tf.constant(contexts), candidates=candidates)
    alone = ask(
        functions["match"], context=tf.constant([["ok", "thanks"]]), candidates=candidates[:1]
    )
    np.testing.assert_allclose(found[:3], np.repeat(alone, 3, axis=0), atol=1e-6)
    assert found[3].tolist() == [0, NO_CANDIDATE, 0]
    assert (found[:, 1] == NO_CANDIDATE).all()


def test_as_many_contexts_as_rows_of_candidates(functions):
    """One context for all would be a guess."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected as many rows in both"):
        functions["match"](context=pad(CONTEXTS[:1]), candidates=tf.constant(CANDIDATES))


def test_unit_norm_scales_and_leaves_zero(encoder, functions):
    unit = ServedEncoder(encoder, unit_norm=True).functions
    sentences = tf.constant(SENTENCES)
    plain = ask(functions["serving_default"], sentences=sentences)
    expected = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    found = ask(unit["serving_default"], sentences=sentences)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    short = EncoderGraph(encoder.bert, VOCABULARY, LENGTH, "mean", Scale(1e-11))
    functions = ServedEncoder(short, unit_norm=True).functions
    np.testing.assert_allclose(
        ask(functions["serving_default"], sentences=sentences), expected, atol=1e-6
    )
    # Nothing is real: a mean of nothing.
    token_ids = tf.constant([[0, 0, 0]])
    found = ask(unit["tokens"], token_ids=token_ids, padding_mask=token_ids > 0)
    assert found.tolist() == [[0] * DIM]


def test_an_export_gives_the_runs_unit_embeddings_and_similarities(
    exported, signatures, checkpoint
):
    encoder = SentenceEncoder.load(checkpoint)
    plain = encoder.encode(SENTENCES)
    expected = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    assert set(signatures) == {"serving_default", "tokens", "match"}
    found = ask(signatures["serving_default"], sentences=tf.constant(SENTENCES))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    loaded = SentenceEncoder.load(exported)
    np.testing.assert_allclose(loaded.encode(SENTENCES), expected, atol=1e-5)
    scored = encoder.match(CONTEXTS, CANDIDATES)
    np.testing.assert_allclose(loaded.match(CONTEXTS, CANDIDATES), scored, atol=1e-5)


def test_outputs_have_names_and_shapes(signatures):
    shapes = {
        name: {key: tuple(spec.shape) for key, spec in function.structured_outputs.items()}
        for name, function in signatures.items()
    }
    assert shapes["serving_default"] == shapes["tokens"] == {"embeddings": (None, DIM)}
    assert list(shapes["match"]) == ["similarities"]


def test_responses_are_selected_by_an_exports_matching(exported, checkpoint, data_dir):
    results = []
    for model in (exported, checkpoint):
        config = EvaluateOptions(
            model=str(model),
            response_selection=(str(data_dir / "test.jsonl"),),
            candidates=4,
            max_samples=20,
        )
        results.append({result.task: result.scores for result in evaluate(config)})
    assert len(results[0]) == 4  # by the matching and by the cosine, each with both contexts
    for task in ("response_matching", "response_matching_bidirectional"):
        assert results[0][task] == results[1][task]


def test_settings_say_what_was_exported_and_by_what(exported, checkpoint):
    settings = json.loads((exported / "dcse_tf.json").read_text())
    assert settings["max_sequence_length"] == LENGTH
    assert settings["unit_norm"] is True
    assert settings["versions"]["tensorflow"] == tf.__version__
    digest = subprocess.run(
        ["sha256sum", checkpoint / "model.safetensors"], check=True, capture_output=True, text=True
    )
    assert settings["sha256"]["model.safetensors"] == digest.stdout.split()[0]
    assert "turn_attention.safetensors" in settings["sha256"]


def test_a_version_is_a_number_of_its_own(exported):
    assert exported.name == "1"
    assert {path.name for path in exported.parent.iterdir()} == {"1"}
    with pytest.raises(OptionError, match="leave out `overwrite`"):
        ExportOptions(run_dir="run", output_dir="out", versioned=True, overwrite=True)


def test_an_export_that_computes_something_else_is_refused(checkpoint, tmp_path, monkeypatch):
    finish = ServedEncoder._finish
    monkeypatch.setattr(
        ServedEncoder,
        "_finish",
        lambda self, x: {"embeddings": finish(self, x)["embeddings"] + 2 * TOLERANCE},
    )
    config = ExportOptions(
        run_dir=str(checkpoint), output_dir=str(tmp_path / "models"), unit_norm=True
    )
    with pytest.raises(OutputError, match=r"refused: embeddings .* differ .* by 2.0e-05"):
        export(config)
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_cannot_be_run_is_refused(requests, tmp_path):
    with pytest.raises(OutputError, match=r"a fresh process cannot run it: .*saved_model"):
        saved_model.verify(tmp_path, requests)


def add(array):
    return array + np.float32(3 * TOLERANCE)


@pytest.mark.parametrize("signature", ["serving_default", "tokens", "match"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (add, r"differ .* by 3.0e-05, expected at most 1.0e-05"),
        (lambda x: np.where(x == x, np.nan, x).astype(np.float32), "differ .* by nan"),
        (lambda x: x[:, :-1], r"are float32 \[.*\], expected float32"),
        (lambda x: x.astype(np.float64), r"are float64 \[.*\], expected float32"),
    ],
)
def test_each_answer_is_held_to_the_encoders(requests, monkeypatch, signature, damage, message):
    answers = {f"{i}/{request.output}": request.answer for i, request in enumerate(requests)}
    monkeypatch.setattr(saved_model, "_answer", lambda *_: answers)
    said = []
    monkeypatch.setattr(saved_model.logging, "info", lambda text, *values: said.append(values))
    saved_model.verify(pathlib.Path(), requests)
    ((difference, _),) = said
    assert difference == 0
    last = max(i for i, request in enumerate(requests) if request.signature == signature)
    name = f"{last}/{requests[last].output}"
    answers[name] = damage(answers[name])
    with pytest.raises(OutputError, match=f"of the signature {signature} {message}"):
        saved_model.verify(pathlib.Path(), requests)


def test_all_signatures_are_asked_with_none_one_and_several_rows(requests, functions):
    asked = {(r.signature, min(len(r.answer), 2)) for r in requests}
    assert asked == {(name, rows) for name in functions for rows in (0, 1, 2)}
    for request in requests:
        assert {len(array) for array in request.inputs.values()} == {len(request.answer)}


def test_a_fitted_encoder_has_no_match_and_the_tolerance_that_it_magnifies_to(encoder):
    fitted = EncoderGraph(encoder.bert, VOCABULARY, LENGTH, "mean", Scale(1000.0))
    plain = SentenceEncoder(GraphBackend(encoder)).encode(SAMPLE)
    scale = max(1, np.abs(plain).max())
    functions = ServedEncoder(fitted, unit_norm=False).functions
    assert set(functions) == {"serving_default", "tokens"}
    requests = make_requests(fitted, unit_norm=False)
    assert {request.signature for request in requests} == {"serving_default", "tokens"}
    assert requests[0].tolerance == pytest.approx(1000 * TOLERANCE * scale, rel=0.1)


def test_the_fresh_process_has_nothing_of_this_package():
    tree = ast.parse(pathlib.Path(fresh_process.__file__).read_text())
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    assert names == {"json", "sys", "numpy", "tensorflow", "tensorflow_text"}
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))


@needs_messages
def test_warm_up_requests_run_through_the_signatures(exported, signatures):
    from tensorflow_serving.apis import prediction_log_pb2

    path = exported / "assets.extra/tf_serving_warmup_requests"
    asked = set()
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        name = request.model_spec.signature_name
        inputs = {key: tf.constant(tf.make_ndarray(x)) for key, x in request.inputs.items()}
        found = ask(signatures[name], **inputs)
        assert len(found) == len(next(iter(inputs.values()))) > 0
        assert np.isfinite(found).all()
        asked.add((name, len(found) > 1))
    assert asked == {(name, several) for name in signatures for several in (False, True)}


def test_warm_up_without_its_messages_is_one_error(checkpoint, tmp_path, monkeypatch):
    for name in ("apis", "apis.predict_pb2", "apis.prediction_log_pb2"):
        monkeypatch.setitem(sys.modules, f"tensorflow_serving.{name}", None)
    config = ExportOptions(run_dir=str(checkpoint), output_dir=str(tmp_path / "e"), warmup=True)
    needed = r"`warmup` needs tensorflow_serving.*: pip install tensorflow-serving-api"
    with pytest.raises(InputError, match=needed):
        export(config)
    assert list(tmp_path.iterdir()) == []


@needs_messages
def test_the_servers_configuration_is_of_its_form():
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    config = model_server_config_pb2.ModelServerConfig()
    text_format.Parse((SERVING / "models.config").read_text(), config)
    (model,) = config.model_config_list.config
    assert (model.name, model.model_platform) == ("dcse", "tensorflow")


def test_a_blank_text_is_no_turn_and_no_candidate_of_any_vocabulary(tmp_path, verified_here):
    """White space is a token of a byte-level one."""
    start = tmp_path / "start"
    start.mkdir()
    texts = ["where is my parcel", "it left today", "i want a refund for the blue cup"]
    train_byte_pairs(start, texts, 300)
    entries = json.loads((start / "tokenizer.json").read_text())["model"]["vocab"]
    write_weights(start, "roberta", entries=len(entries))
    names = {"run_dir": str(start), "output_dir": str(tmp_path / "export")}
    exported = SentenceEncoder.load(export(ExportOptions(**names)))
    expected = [*SentenceEncoder.load(start).similarity(["where is"], texts), NO_CANDIDATE]
    for blank in ("", " ", "\u3000\n"):
        padded = [blank, "where is"]
        served = exported.backend._signatures["match"](
            context=tf.constant([padded]), candidates=tf.constant([[*texts, blank]])
        )["similarities"].numpy()[0]
        for found in (served, exported.similarity(padded, [*texts, blank])):
            np.testing.assert_allclose(found, expected, atol=1e-5)
