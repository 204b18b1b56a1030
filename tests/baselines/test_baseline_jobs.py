"""Each baseline through the jobs: fitted, evaluated, embedded with, exported."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from tiny_bert import DIM, LAYERS
from tiny_checkpoints import prepare_for
from train_options import make_options

from dcse_tf.baselines import BaselineSpec, Fitted, register_baseline
from dcse_tf.baselines.fit_baseline import fit_baseline
from dcse_tf.baselines.options import FitBaselineOptions
from dcse_tf.baselines.registry import BASELINES, FittedToEmbeddings, FittedToTexts
from dcse_tf.bert import bert as bert_encoder
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.utterance_sample import sample_utterances
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation.geometry import NAMES
from dcse_tf.evaluation.job import evaluate
from dcse_tf.evaluation.options import EvaluateOptions
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.options import OptionError, option
from dcse_tf.search.embed import embed
from dcse_tf.search.search_options import EmbedOptions
from dcse_tf.training.job import train

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
    folder.mkdir()
    vocabulary = read_vocabulary(data_dir / "vocabulary")
    config = bert_encoder.make_bert_config(LAYERS, DIM, len(vocabulary.tokens))
    backbone = bert_encoder.build_backbone(config, 0.0)
    bert_encoder.initialize_weights(backbone.trainable_variables, 3, 0.05)
    bert_encoder.save_backbone(folder, backbone, config)
    vocabulary.write(folder)
    return folder


@pytest.fixture(scope="module")
def fit(data_dir, bert, tmp_path_factory):
    """A function that fits a baseline into a new folder."""

    def run(kind, **changes):
        folder = tmp_path_factory.mktemp(kind) / kind
        settings = {"encoder": str(bert), "data_dir": str(data_dir)}
        settings = {"data_dir": str(data_dir)} if kind == "lengths" else settings
        settings |= FLOW if kind == "flow" else {}
        if kind == "word_vectors":
            path = folder.parent / "vectors.json"
            path.write_text(json.dumps(VECTORS))
            settings = {"word_vectors": str(path)}
        make_options = BASELINES[kind].options
        fit_baseline(make_options(output_dir=str(folder), **{**settings, **changes}))
        return folder

    return run


@pytest.fixture(scope="module")
def baselines(fit):
    return {kind: fit(kind) for kind in KINDS}


def embed_sentences(model, tmp_path, **settings):
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES) + "\n")
    output = str(tmp_path / "out.npy")
    embed(
        EmbedOptions(
            model=str(model),
            input=str(tmp_path / "in.txt"),
            output=output,
            overwrite=True,
            **settings,
        )
    )
    return np.load(output)


def plain(bert, pooling=None):
    return SentenceEncoder.load(bert, pooling=pooling).encode(SENTENCES).astype(np.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_scores_a_baseline_like_any_encoder(kind, baselines, data_dir, tmp_path):
    pairs = ["5\tWhere is my parcel\tmy parcel", "1\tcoffee\tI want a refund", "3\tok\tcoffee"]
    (tmp_path / "sts.txt").write_text("\n".join(pairs) + "\n")
    rows = [f"{i}\t{text}\tx\t{(i + 1) % 4}\t{(i + 2) % 4}" for i, text in enumerate("abcd")]
    (tmp_path / "select.txt").write_text("\n".join(rows) + "\n")
    config = EvaluateOptions(
        model=str(baselines[kind]),
        sts=(str(tmp_path / "sts.txt"),),
        retrieval=(str(tmp_path / "select.txt"),),
        response_selection=(str(data_dir / "test.jsonl"),),
        candidates=4,
        output=str(tmp_path / "results.json"),
    )
    results = evaluate(config)
    # No matching: the tokens' embeddings are not what was fitted.
    *_, bidirectional = results
    tasks = ["retrieval", "sts", "response_cosine", "response_cosine_bidirectional"]
    assert [result.task for result in results] == tasks
    written = json.loads((tmp_path / "results.json").read_text())["results"]
    for result, entry in zip(results, written, strict=True):
        assert set(NAMES) <= set(entry["scores"]) or result is bidirectional
        assert not set(NAMES) & {*entry["items"], *entry["intervals"]}
        assert result.scores == entry["scores"]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_whitening_is_applied_to_the_encoders_embeddings(pooling, fit, bert, tmp_path):
    folder = fit("whitening", pooling=pooling)
    tensors = safetensors.numpy.load_file(folder / "baseline.safetensors")
    expected = (plain(bert, pooling) - tensors["mean"]) @ tensors["matrix"]
    found = embed_sentences(folder, tmp_path)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())
    assert json.loads((folder / "baseline.json").read_text())["pooling"] == pooling


@pytest.fixture(scope="module")
def utterances(bert, data_dir):
    """Of every utterance of the train split, encoded alone: float64 [utterances, dim]."""
    sample = sample_utterances(data_dir, read_manifest(data_dir), 0, 0)
    batches = SentenceEncoder.load(bert).backend
    ids, lengths = batches.read_tokens(sample)
    rows = [batches.embed(ids[[i]], int(n)) for i, n in enumerate(lengths)]
    return np.concatenate(rows).astype(np.float64)


def test_the_corpus_whitened_has_identity_covariance(baselines, utterances):
    description = json.loads((baselines["whitening"] / "baseline.json").read_text())
    assert description["facts"]["sentences"] == len(utterances)
    tensors = safetensors.numpy.load_file(baselines["whitening"] / "baseline.safetensors")
    white = (utterances - tensors["mean"]) @ tensors["matrix"]
    np.testing.assert_allclose(np.cov(white.T), np.eye(white.shape[1]), atol=2e-2)


def test_the_corpus_centred_has_mean_zero(baselines, bert, utterances, tmp_path):
    tensors = safetensors.numpy.load_file(baselines["centering"] / "baseline.safetensors")
    assert np.abs(utterances.mean(axis=0)).max() > 0.01
    np.testing.assert_allclose((utterances - tensors["mean"]).mean(axis=0), 0, atol=1e-5)
    found = embed_sentences(baselines["centering"], tmp_path)
    np.testing.assert_allclose(found, plain(bert) - utterances.mean(axis=0), atol=1e-5)


def test_a_baseline_puts_the_prefix_it_was_fitted_with_before_every_text(
    fit, bert, dialogues_file, tmp_path
):
    prepared = prepare_for(bert, dialogues_file, tmp_path, prefix="query: ")
    folder = fit("centering", data_dir=str(prepared), prefix="query: ")
    mean = safetensors.numpy.load_file(folder / "baseline.safetensors")["mean"]
    expected = SentenceEncoder.load(bert, prefix="query: ").encode(SENTENCES) - mean
    assert np.abs(expected - (plain(bert) - mean)).max() > 0.01
    found = SentenceEncoder.load(folder).encode(SENTENCES)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_dimensions_kept_are_the_first(fit, baselines, tmp_path):
    few = embed_sentences(fit("whitening", dimensions=5), tmp_path)
    whole = embed_sentences(baselines["whitening"], tmp_path)
    np.testing.assert_allclose(np.abs(few), np.abs(whole[:, :5]), rtol=1e-3, atol=1e-3)


def test_a_flow_is_read_as_it_was_fitted(baselines, fit, tmp_path):
    first = embed_sentences(baselines["flow"], tmp_path)
    np.testing.assert_array_equal(embed_sentences(baselines["flow"], tmp_path), first)
    np.testing.assert_array_equal(embed_sentences(fit("flow"), tmp_path), first)
    assert np.abs(embed_sentences(fit("flow", seed=1), tmp_path) - first).max() > 0.1


def test_words_are_averaged_by_hand(baselines, tmp_path):
    found = embed_sentences(baselines["word_vectors"], tmp_path)
    # "parcel" and "Parcel" are one word, whose vector is the first of the two in the file.
    assert found.tolist() == [[2, 2, 1], [0, -1, 0.5], [0, 0, 0], [2, 2, 1]]


def test_an_export_of_a_baseline_gives_its_embeddings(baselines, verified_here, tmp_path):
    export(ExportOptions(run_dir=str(baselines["flow"]), output_dir=str(tmp_path / "export")))
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    served = signature(sentences=tf.constant(SENTENCES))["embeddings"].numpy()
    expected = embed_sentences(baselines["flow"], tmp_path)
    np.testing.assert_allclose(served, expected, atol=2e-3 * np.abs(expected).max())


def test_word_vectors_are_not_exported(baselines, tmp_path):
    config = ExportOptions(run_dir=str(baselines["word_vectors"]), output_dir=str(tmp_path / "e"))
    with pytest.raises(InputError, match="cannot be exported"):
        export(config)
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_covers_what_was_fitted(kind, baselines, tmp_path):
    folder = shutil.copytree(baselines[kind], tmp_path / kind)
    first = SentenceEncoder.load(folder).fingerprint()
    path = folder / "baseline.safetensors"
    tensors = safetensors.numpy.load_file(path)
    name = {"centering": "mean", "flow": "act_norm_0/shift"}.get(kind, "matrix")
    tensors[name] = tensors[name] + 1
    safetensors.numpy.save_file(tensors, path)
    assert SentenceEncoder.load(folder).fingerprint() != first


def test_what_a_baseline_cannot_be_asked_for_is_one_error(baselines, data_dir, fit):
    with pytest.raises(InputError, match=r"`pooling`=cls: .* was fitted .* `pooling`=mean"):
        SentenceEncoder.load(baselines["flow"], pooling="cls")
    with pytest.raises(InputError, match="leave out `pooling` and `compute_dtype`"):
        SentenceEncoder.load(baselines["word_vectors"], pooling="cls", compute_dtype="bfloat16")
    with pytest.raises(InputError, match="is a fitted baseline"):
        fit("whitening", encoder=str(baselines["flow"]))
    with pytest.raises(InputError, match="is a fitted baseline"):
        train(
            make_options(
                data_dir=str(data_dir), encoder=str(baselines["flow"]), run_dir="/nowhere/run"
            )
        )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("baseline.json", "{", "baseline.json: not a file of fit_baseline"),
        ("baseline.json", '{"kind": "magic"}', "kind 'magic', expected one of"),
        ("baseline.json", '{"kind": "whitening"}', "baseline.json: .* pooling None"),
        ("baseline.safetensors", "x", "baseline.safetensors: cannot be read"),
    ],
)
def test_a_damaged_file_is_named(name, content, message, fit):
    folder = fit("whitening", max_sentences=30)
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=message):
        SentenceEncoder.load(folder)


def test_a_map_of_another_dimension_is_refused(fit):
    folder = fit("whitening", max_sentences=30)
    tensors = {"mean": np.zeros(8), "matrix": np.zeros([8, 8])}
    safetensors.numpy.save_file(tensors, folder / "baseline.safetensors")
    with pytest.raises(InputError, match=r"safetensors: mean \[8\] .* an encoder of 64"):
        SentenceEncoder.load(folder)


def test_fewer_sentences_than_dimensions_are_said_in_words(fit, monkeypatch):
    said = []
    monkeypatch.setattr("absl.logging.info", lambda text, *values: said.append(text % values))
    folder = fit("whitening", max_sentences=10)
    assert any("the embeddings of 10 sentences vary in only 9 of 64 directions" in x for x in said)
    assert SentenceEncoder.load(folder).encode(["ok"]).shape == (1, 9)


def test_a_fault_of_the_input_leaves_no_folder(bert, data_dir, tmp_path):
    for settings, message in [
        ({"data_dir": str(tmp_path)}, "manifest.json: no such file"),
        ({"encoder": "./nowhere"}, "`encoder`=./nowhere: expected a checkpoint"),
        ({"max_sentences": 1}, "expected at least two distinct utterances"),
        ({"dimensions": 65}, "`dimensions`=65"),
        ({"max_sequence_length": 999}, "512 positions"),
    ]:
        output = tmp_path / "out"
        with pytest.raises(InputError, match=message):
            fit_baseline(
                BASELINES["whitening"].options(
                    output_dir=str(output),
                    **{"encoder": str(bert), "data_dir": str(data_dir), **settings},
                )
            )
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "magic"},
            "`kind`=magic: expected one of 'centering', 'whitening', 'flow', 'word_vectors'",
        ),
        ({"kind": "whitening", "data_dir": "d"}, "`encoder` is required"),
        ({"kind": "flow", "encoder": "bert"}, "`data_dir` is required"),
        ({"kind": "word_vectors"}, "`word_vectors` is required"),
        (
            {"kind": "flow", "encoder": "a", "data_dir": "d", "dimensions": 3},
            "`dimensions`=3: has no meaning with `kind`=flow, only with whitening",
        ),
        (
            {"kind": "word_vectors", "word_vectors": "a.txt", "pooling": "cls"},
            "`pooling`=cls: has no meaning with `kind`=word_vectors",
        ),
        (
            {"kind": "centering", "encoder": "a", "data_dir": "d", "projection": "context"},
            "`projection`=context: a baseline is fitted to embeddings without a head",
        ),
        ({"kind": "word_vectors", "word_vectors": "a.npz"}, "`word_index` goes with"),
        (
            {"kind": "word_vectors", "word_vectors": "a.txt", "word_index": "b.json"},
            "`word_index` goes with",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        FitBaselineOptions.from_dict({"output_dir": "out", **settings})


@dataclasses.dataclass(frozen=True)
class ShiftingOptions(FittedToEmbeddings):
    share: float = option(1.0, "How much of the mean is subtracted.", minimum=0.0)


@dataclasses.dataclass(frozen=True)
class LengthsOptions(FittedToTexts):
    pass


def fit_mean(options, corpus):
    return Fitted({"shift": options.share * corpus.embeddings().mean(axis=0)}, {})


def make_shift(fitted, dim):
    return keras.layers.Lambda(lambda x: x - fitted.tensors["shift"], name="shifting")


def fit_lengths(options, corpus):
    longest = max(len(text) for text in corpus.texts())
    return Fitted({"longest": np.array([longest])}, {}, f"the longest has {longest} characters")


def make_lengths(fitted):
    longest = int(fitted.tensors["longest"][0])
    return lambda texts: np.array([[len(text) / longest, 1.0] for text in texts], np.float32)


@pytest.fixture
def registered():
    """Two baselines of this file, gone after the test."""
    register_baseline(
        BaselineSpec("shifting", "no mean", ShiftingOptions, fit_mean, make_layer=make_shift)
    )
    register_baseline(
        BaselineSpec("lengths", "how long", LengthsOptions, fit_lengths, make_encode=make_lengths)
    )
    yield
    del BASELINES["shifting"], BASELINES["lengths"]


def test_a_layer_from_outside_is_fitted_loaded_and_exported(
    registered, fit, bert, verified_here, tmp_path
):
    """`share`=0.5 of the mean of all utterances of the train split is gone."""
    folder = fit("shifting", share=0.5)
    found = SentenceEncoder.load(folder).encode(SENTENCES)
    shift = safetensors.numpy.load_file(folder / "baseline.safetensors")["shift"]
    np.testing.assert_allclose(found, plain(bert) - shift, atol=1e-5)
    export(ExportOptions(run_dir=str(folder), output_dir=str(tmp_path / "export")))
    exported = SentenceEncoder.load(tmp_path / "export").encode(SENTENCES)
    np.testing.assert_allclose(exported, found, atol=1e-5)


def test_an_encoder_from_outside_is_fitted_and_loaded(registered, fit, dialogues_file):
    folder = fit("lengths")
    # The vocabulary splits off punctuation: the text is as the tokenizer spells it.
    longest = int(safetensors.numpy.load_file(folder / "baseline.safetensors")["longest"][0])
    turns = [
        turn["text"]
        for line in dialogues_file.read_text().splitlines()
        for turn in json.loads(line)["turns"]
    ]
    assert max(map(len, turns)) - 5 < longest < max(map(len, turns)) + 5
    found = SentenceEncoder.load(folder).encode(["abc", "", "包裹"])
    np.testing.assert_allclose(found, [[3 / longest, 1], [0, 1], [2 / longest, 1]], rtol=1e-6)


def test_the_command_line_has_the_settings_of_what_was_registered(registered):
    fields = {field.name: field for field in dataclasses.fields(FitBaselineOptions)}
    assert list(fields["kind"].metadata["choices"]) == [*KINDS, "shifting", "lengths"]
    given = {"encoder": "e", "data_dir": "d", "output_dir": "o", "share": 0.5}
    found = FitBaselineOptions.from_dict({"kind": "shifting", **given})
    assert found == ShiftingOptions(**given)


@dataclasses.dataclass(frozen=True)
class OtherDepthOptions(FittedToTexts):
    depth: int = option(3, "Not the flow's.")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("flow", LengthsOptions, "'flow': expected a name that no other has"),
        ("other", OtherDepthOptions, "'other': declares option 'depth' differently from 'flow'"),
    ],
)
def test_a_baseline_that_would_hide_another_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        register_baseline(BaselineSpec(name, "", options, fit_mean, make_layer=make_shift))
    with pytest.raises(ValueError, match="make_layer or make_encode"):
        BaselineSpec("x", "", options, fit_mean)
