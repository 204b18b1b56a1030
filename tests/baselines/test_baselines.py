"""Each baseline through the jobs: fitted, evaluated, loaded and exported."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from tiny_bert import save_random
from tiny_checkpoints import prepare_for

import dcse_tf
from dcse_tf.baselines import BaselineSpec, Fitted, register_baseline
from dcse_tf.baselines.registry import BASELINES, BaselineOptions
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.records import sample_utterances
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.training.fit_baseline import fit_baseline

pytestmark = pytest.mark.slow

SENTENCES = ["Where is my parcel?", "I drink it black with red coffee", "", "Where is my parcel?"]
VECTORS = {
    "where": [1.0, 0.0, 2.0],
    "Parcel": [3.0, 4.0, 0.0],
    "parcel": [9.0, 9.0, 9.0],
    "coffee": [0.0, -1.0, 0.5],
}
FLOW = {"depth": 1, "hidden_dim": 8, "steps": 2, "batch_size": 32}
KINDS = ("centering", "whitening", "flow", "word_vectors")


@pytest.fixture(scope="module")
def bert(data_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert") / "bert"
    return save_random(folder, read_vocabulary(data_dir / "vocabulary"))


@pytest.fixture(scope="module")
def fit(data_dir, bert, tmp_path_factory):
    """A function that fits a baseline into a new folder."""

    def run(kind, **changes):
        folder = tmp_path_factory.mktemp(kind) / kind
        settings = {"encoder": str(bert), "data_dir": str(data_dir)} if kind != "lengths" else {}
        settings |= FLOW if kind == "flow" else {}
        if kind == "word_vectors":
            path = folder.parent / "vectors.json"
            path.write_text(json.dumps(VECTORS))
            settings = {"word_vectors": str(path)}
        fit_baseline(BASELINES[kind].options(output_dir=str(folder), **{**settings, **changes}))
        return folder

    return run


@pytest.fixture(scope="module")
def baselines(fit):
    return {kind: fit(kind) for kind in KINDS}


def encode(model, **settings):
    return SentenceEncoder.load(model, **settings).encode(SENTENCES, show_progress=False)


def read_tensors(folder):
    return safetensors.numpy.load_file(folder / "baseline.safetensors")


@pytest.fixture(scope="module")
def utterances(bert, data_dir):
    """Of every utterance of the train split, encoded alone: float64 [utterances, dim]."""
    batches = SentenceEncoder.load(bert).backend
    ids, lengths = batches.read_tokens(sample_utterances(data_dir, read_manifest(data_dir), 0, 0))
    rows = [batches.embed(ids[[i]], int(n)) for i, n in enumerate(lengths)]
    return np.concatenate(rows).astype(np.float64)


def test_a_baseline_is_fitted_to_the_utterances_of_the_train_split(baselines, utterances):
    facts = json.loads((baselines["whitening"] / "baseline.json").read_text())["facts"]
    assert facts["sentences"] == len(utterances)
    mean = read_tensors(baselines["centering"])["mean"]
    np.testing.assert_allclose(mean, utterances.mean(axis=0), atol=1e-5)
    tensors = read_tensors(baselines["whitening"])
    white = (utterances - tensors["mean"]) @ tensors["matrix"]
    np.testing.assert_allclose(np.cov(white.T), np.eye(white.shape[1]), atol=2e-2)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_what_is_fitted_is_applied_to_the_encoder_s_embeddings(pooling, fit, baselines, bert):
    folder = fit("whitening", pooling=pooling, dimensions=5)
    tensors = read_tensors(folder)
    expected = (encode(bert, pooling=pooling) - tensors["mean"]) @ tensors["matrix"]
    found = encode(folder)
    assert (found.dtype, found.shape) == (np.float32, (4, 5))
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())
    centred = encode(bert) - read_tensors(baselines["centering"])["mean"]
    np.testing.assert_allclose(encode(baselines["centering"]), centred, atol=1e-5)
    # "parcel" and "Parcel" are one word, whose vector is the first of the two in the file.
    words = encode(baselines["word_vectors"])
    assert words.tolist() == [[2, 2, 1], [0, -1, 0.5], [0, 0, 0], [2, 2, 1]]


def test_a_baseline_puts_the_prefix_it_was_fitted_with_before_every_text(
    fit, bert, dialogues_file, tmp_path
):
    prepared = prepare_for(bert, dialogues_file, tmp_path, prefix="query: ")
    folder = fit("centering", data_dir=str(prepared), prefix="query: ", components=2)
    mean, matrix = (read_tensors(folder)[name] for name in ("mean", "matrix"))
    expected = (encode(bert, prefix="query: ") - mean) @ matrix
    np.testing.assert_allclose(encode(folder), expected, atol=1e-5)


def test_a_flow_is_read_and_exported_as_it_was_fitted(baselines, fit, verified_here, tmp_path):
    first = encode(baselines["flow"])
    np.testing.assert_array_equal(encode(fit("flow")), first)
    assert np.abs(encode(fit("flow", seed=1)) - first).max() > 0.1
    folder = dcse_tf.export(run_dir=baselines["flow"], output_dir=tmp_path / "export")
    signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
    served = signature(sentences=tf.constant(SENTENCES))["embeddings"].numpy()
    np.testing.assert_allclose(served, first, atol=2e-3 * np.abs(first).max())


def test_evaluate_scores_a_baseline_like_any_encoder(baselines, data_dir, tmp_path):
    pairs = ["5\tWhere is my parcel\tmy parcel", "1\tcoffee\tI want a refund", "3\tok\tcoffee"]
    (tmp_path / "sts.txt").write_text("\n".join(pairs) + "\n")
    sets = {"sts": tmp_path / "sts.txt", "response_selection": data_dir / "test.jsonl"}
    results = dcse_tf.evaluate(model=baselines["flow"], candidates=4, **sets)
    # No matching: the tokens' embeddings are not what was fitted.
    tasks = ["sts", "response_cosine", "response_cosine_bidirectional"]
    assert [result.task for result in results] == tasks


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_covers_what_was_fitted(kind, baselines, tmp_path):
    folder = shutil.copytree(baselines[kind], tmp_path / kind)
    tensors = read_tensors(folder)
    name = {"centering": "mean", "flow": "step_0/0"}.get(kind, "matrix")
    tensors[name] = tensors[name] + 1
    safetensors.numpy.save_file(tensors, folder / "baseline.safetensors")
    changed = SentenceEncoder.load(folder).fingerprint()
    assert SentenceEncoder.load(baselines[kind]).fingerprint() != changed


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        ("json", "{", "baseline.json: not a file of fit_baseline"),
        ("json", '{"kind": "magic"}', "'magic', expected 'centering'"),
        ("json", '{"kind": "whitening"}', "baseline.json: .* pooling None"),
        ("safetensors", "x", "baseline.safetensors: cannot be read"),
        ("safetensors", {"matrix": np.zeros([8, 8])}, "safetensors: not a file"),
        ("safetensors", {"mean": np.ones(8)}, r"safetensors: mean \[8\] .* an encoder of 64"),
    ],
)
def test_a_damaged_file_is_named(suffix, content, message, baselines, tmp_path):
    folder = shutil.copytree(baselines["whitening"], tmp_path / "copy")
    path = folder / f"baseline.{suffix}"
    if isinstance(content, dict):
        safetensors.numpy.save_file(content, path)
    else:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        SentenceEncoder.load(folder)


def test_what_a_baseline_cannot_be_asked_for_is_one_error(baselines, tmp_path):
    with pytest.raises(InputError, match=r"^`pooling`=cls: .* `pooling`=mean"):
        SentenceEncoder.load(baselines["flow"], pooling="cls")
    with pytest.raises(InputError, match="leave out `pooling`"):
        SentenceEncoder.load(baselines["word_vectors"], pooling="cls")
    with pytest.raises(InputError, match="cannot be exported"):
        dcse_tf.export(run_dir=baselines["word_vectors"], output_dir=tmp_path / "export")


def test_a_fault_of_the_input_leaves_no_folder(bert, data_dir, baselines, tmp_path):
    reranker = shutil.copytree(bert, bert.with_name("reranker"))
    (reranker / "reranker.json").touch()
    for settings, message in [
        ({"data_dir": str(tmp_path)}, "manifest.json: no such file"),
        ({"encoder": "./nowhere"}, "`encoder`=./nowhere: expected a checkpoint"),
        ({"encoder": str(baselines["flow"])}, "is a fitted baseline"),
        ({"encoder": str(reranker)}, "`encoder`=.* is a re-ranker"),
        ({"max_sentences": 1}, "expected at least two distinct utterances"),
        ({"dimensions": 65}, "`dimensions`=65"),
        ({"max_sequence_length": 999}, "512 positions"),
    ]:
        given = {"encoder": str(bert), "data_dir": str(data_dir), **settings}
        with pytest.raises(InputError, match=message):
            fit_baseline(BASELINES["whitening"].options(output_dir=str(tmp_path / "out"), **given))
        assert list(tmp_path.iterdir()) == []


def test_baselines_from_outside_are_fitted_and_loaded(printed_examples, fit, bert, utterances):
    expected = encode(bert) / np.sqrt(utterances.std(axis=0) + 1e-6)
    np.testing.assert_allclose(encode(fit("scaling", strength=0.5)), expected, rtol=1e-4, atol=1e-5)

    def fit_lengths(options, corpus):
        return Fitted({"longest": np.array([20])}, {}, "a text has 20 characters")

    def make_encode(fitted):
        longest = int(fitted.tensors["longest"][0])
        return lambda texts: np.array([[len(text) / longest, 1.0] for text in texts], np.float32)

    given = "lengths", "how long", BaselineOptions, fit_lengths
    register_baseline(BaselineSpec(*given, make_encode=make_encode))
    np.testing.assert_allclose(encode(fit("lengths"))[0], [len(SENTENCES[0]) / 20, 1], rtol=1e-6)
