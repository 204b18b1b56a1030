"""SavedModels: their signatures, and how they are checked before they appear."""

import ast
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_reranker import expect_score, save_lstm_reranker

import dcse_tf
from dcse_tf.bert.vocabulary import NO_CANDIDATE
from dcse_tf.encoder.exported_models import EMBED
from dcse_tf.encoder.graph import EncoderGraph, load_graph
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError, OutputError
from dcse_tf.exporting import fresh_process, saved_model
from dcse_tf.exporting.export_formats import ExportOptions
from dcse_tf.exporting.probes import CANDIDATES as CANDIDATE_PROBES
from dcse_tf.exporting.probes import CONTEXTS as CONTEXT_PROBES
from dcse_tf.exporting.probes import SENTENCES
from dcse_tf.exporting.saved_model import TOLERANCE, serve_encoder, write_encoder

pytestmark = pytest.mark.slow

LENGTH = 12
TEXTS = ["where is my parcel", "ok", "", "好的发货", "i want a refund for the cup " * 9, "ok"]
CONTEXTS = [["where is my parcel", "it left today", "thanks"], ["i want a refund"], ["好的", "ok"]]
CANDIDATES = [["it left today", "refund " * 20], ["ok", ""], ["好的发货", "where is the cup"]]


@pytest.fixture(scope="module")
def run(bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    shutil.copytree(bert, folder / "encoder")
    return folder


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """Checked by a fresh process when it was written."""
    folder = tmp_path_factory.mktemp("models") / "dcse"
    return dcse_tf.export(run_dir=run, output_dir=folder, unit_norm=True)


@pytest.fixture(scope="module")
def graph(run):
    return load_graph(run / "encoder")


def test_an_export_gives_the_runs_unit_embeddings_and_similarities(exported, run):
    encoder, loaded = (dcse_tf.SentenceEncoder.load(model) for model in (run, exported))
    plain = encoder.encode(TEXTS)
    expected = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    for count in (0, 1, len(TEXTS)):
        np.testing.assert_allclose(loaded.encode(TEXTS[:count]), expected[:count], atol=1e-5)
    match = tf.saved_model.load(str(exported)).signatures["match"]
    contexts = tf.ragged.constant(CONTEXTS, tf.string).to_tensor()
    found = match(context=contexts, candidates=tf.constant(CANDIDATES))["similarities"]
    np.testing.assert_allclose(found, encoder.similarity(CONTEXTS, CANDIDATES), atol=1e-5)
    assert loaded.settings["unit_norm"]
    assert loaded.settings["max_sequence_length"] == LENGTH
    assert loaded.fingerprint() != encoder.fingerprint()
    short = dcse_tf.SentenceEncoder.load(exported, truncate_dim=8).encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    card = (exported / "model_card.md").read_text()
    for signature in ("serving_default", "match"):
        assert f"largest difference of {signature} from the model's" in card
    assert f"tensorflow {tf.__version__}" in card


def test_a_signature_takes_what_a_server_pads(exported):
    """A blank text is no turn wherever it stands; a context needs its own row of candidates."""
    match = tf.saved_model.load(str(exported)).signatures["match"]
    contexts = [["ok", "thanks", ""], ["", "ok", "thanks"], ["ok", " ", "thanks"], ["", "", ""]]
    candidates = tf.constant([["refund", "", "it left today"]] * 4)
    found = match(context=tf.constant(contexts), candidates=candidates)["similarities"].numpy()
    np.testing.assert_allclose(found[1:3], found[:2], atol=1e-6)
    assert found[3].tolist() == [0, NO_CANDIDATE, 0]
    assert (found[:, 1] == NO_CANDIDATE).all()
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many rows in both"):
        match(context=tf.constant(contexts[:1]), candidates=candidates)


def test_unit_norm_leaves_zero_and_scales_the_shortest(graph):
    short = load_graph(graph.source)
    short.postprocessing = keras.layers.Rescaling(1e-11)
    units = [
        serve_encoder(each, unit_norm=True).functions["serving_default"](tf.constant(TEXTS))
        for each in (graph, short)
    ]
    rows = [each["embeddings"].numpy() for each in units]
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


@pytest.mark.parametrize(("factor", "width"), [(None, 1), (1000.0, 100)])
def test_each_answer_is_held_to_the_encoders(graph, tmp_path, monkeypatch, factor, width):
    """Postprocessing can magnify differences, so that it has a wider tolerance, and no match."""
    layer = factor and keras.layers.Rescaling(factor)
    own = graph.bert, graph.vocabulary, LENGTH, "mean", layer
    encoder = EncoderGraph(*own, source=graph.source)
    true = SentenceEncoder(encoder).encode(SENTENCES, show_progress=False)
    true = np.concatenate([true[2:3], true])
    tolerance = np.float32(TOLERANCE * width * max(1.0, np.abs(true).max()))
    options = ExportOptions(run_dir="run", output_dir="out")
    right = {}
    if not layer:
        similarities = SentenceEncoder(encoder).match(CONTEXT_PROBES, CANDIDATE_PROBES)
        right["match"] = np.concatenate([similarities[2:3], similarities])
    answers = [true + 0.9 * tolerance]

    monkeypatch.setattr(saved_model, "_answer", lambda _: {EMBED: answers.pop(), **right})
    (difference, *_) = write_encoder(tmp_path, encoder, options).values()
    assert set(tf.saved_model.load(str(tmp_path)).signatures) == {EMBED, *right}
    assert float(difference) == pytest.approx(0.9 * tolerance, rel=0.1)
    # What is refused now is an answer, whatever is written.
    monkeypatch.setattr(tf.saved_model, "save", lambda *_, **__: None)
    for wrong in (
        true + 1.1 * tolerance,
        np.full_like(true, np.nan),
        true[:, :-1],
        true[1:],
        true.astype(np.float64),
    ):
        answers.append(wrong)
        with pytest.raises(OutputError, match="the export is refused"):
            write_encoder(tmp_path, encoder, options)
    for name, similarities in list(right.items()):
        right[name] = similarities + np.float32(3 * TOLERANCE)
        answers.append(true)
        with pytest.raises(OutputError, match="difference of match"):
            write_encoder(tmp_path, encoder, options)


def test_an_export_that_computes_something_else_does_not_appear(
    run, tmp_path, monkeypatch, verified_here
):
    def wrong(encoder, unit_norm):
        served = serve_encoder(encoder, unit_norm)
        embed = served.functions["serving_default"]

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "sentences")])
        def add(sentences):
            return {"embeddings": embed(sentences)["embeddings"] + 2 * TOLERANCE}

        served.functions["serving_default"] = add
        return served

    monkeypatch.setattr(saved_model, "serve_encoder", wrong)
    with pytest.raises(OutputError, match=r"refused: .*difference .* is 2.0e-05"):
        dcse_tf.export(run_dir=run, output_dir=tmp_path / "models", unit_norm=True)
    assert list(tmp_path.iterdir()) == []


def test_what_a_fresh_process_cannot_run_is_refused(tmp_path):
    with pytest.raises(OutputError, match=r"a fresh process cannot run it: .*saved_model"):
        saved_model._answer(tmp_path)


def test_the_fresh_process_has_nothing_of_this_package():
    tree = ast.parse(pathlib.Path(fresh_process.__file__).read_text())
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    assert names == {"sys", "numpy", "tensorflow", "tensorflow_text"}
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))


def test_a_reranker_takes_strings_and_two_speakers_in_turn(rerankers, tmp_path):
    """Cut at the start of the context and at the end of the response; blank texts are none."""
    folder = dcse_tf.export(run_dir=rerankers[True], output_dir=tmp_path / "out")
    signatures = tf.saved_model.load(str(folder)).signatures
    assert sorted(signatures) == ["score"]
    long = ["i want a refund for the blue cup", "ok", "where is my parcel it left today ."]
    short = ["where is my parcel", "it left today"]
    texts = ["thanks", "a refund for my cup", "the blue cup it left today thanks"]
    inputs = {
        "context": tf.constant([long, [*short, ""]]),
        "candidates": tf.constant([[*texts, ""], ["", *texts]]),
    }
    found = signatures["score"](**inputs)["scores"].numpy()
    expected = [[expect_score(long, text, [1, 0, 1]) for text in texts]]
    expected += [[expect_score(short, text, [0, 1]) for text in texts]]
    np.testing.assert_allclose(found[0], [*expected[0], NO_CANDIDATE], atol=2e-5)
    np.testing.assert_allclose(found[1], [NO_CANDIDATE, *expected[1]], atol=2e-5)
    texts = tf.fill([6, 2], "ok")
    for name in [*inputs] * 100:  # another error would come first by chance
        with pytest.raises(tf.errors.InvalidArgumentError, match="as many rows"):
            signatures["score"](**{**dict.fromkeys(inputs, texts), name: texts[:1]})

    written = json.loads((folder / "dcse_tf.json").read_text())
    assert written["fingerprint"] == dcse_tf.Reranker.load(rerankers[True]).fingerprint()
    with pytest.raises(InputError, match="export of a re-ranker, which embeds no sentences"):
        dcse_tf.SentenceEncoder.load(folder)
    with pytest.raises(InputError, match="is a SavedModel, for servers"):
        dcse_tf.Reranker.load(folder)


def test_a_reranker_of_lstms_is_served_and_fits_no_other_format(tmp_path, verified_here):
    run = save_lstm_reranker(tmp_path / "run", "esim")
    folder = dcse_tf.export(run_dir=run, output_dir=tmp_path / "out")
    score = tf.saved_model.load(str(folder)).signatures["score"]
    inputs = {"context": tf.constant(CONTEXTS[:1]), "candidates": tf.constant(CANDIDATES[:1])}
    expected = dcse_tf.Reranker.load(run).score(CONTEXTS[:1], CANDIDATES[:1])
    np.testing.assert_allclose(score(**inputs)["scores"], expected, atol=1e-5)
    for form in ("onnx", "sentence_transformers"):
        with pytest.raises(InputError, match=f"^`format`={form}: cannot hold"):
            dcse_tf.export(run_dir=run, output_dir=tmp_path / "no", format=form)


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"unit_norm": True}, "unit_norm"),
        ({"pooling": "cls"}, "pooling"),
        ({"projection": "context"}, "projection"),
        ({"max_sequence_length": 9}, "max_sequence_length"),
        ({"format": "static", "data_dir": "data"}, "format"),
    ],
)
def test_what_a_reranker_has_no_use_for_is_refused(rerankers, tmp_path, settings, option):
    with pytest.raises(InputError, match=f"`{option}`"):
        dcse_tf.export(run_dir=rerankers[False], output_dir=tmp_path / "out", **settings)
    assert list(tmp_path.iterdir()) == []
