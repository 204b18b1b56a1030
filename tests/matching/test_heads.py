"""The projection heads of a trained encoder: their file, embedding and ranking behind them."""

import shutil

import numpy as np
import pytest
import safetensors.numpy
from tiny_bert import DIM, build_backbone, save_checkpoint
from train_options import make_options

from dcse_tf.bert.options import EncoderOptions
from dcse_tf.encoder.checkpoint import load_graph
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation.evaluate import load_scored
from dcse_tf.evaluation.evaluate_options import EvaluateOptions
from dcse_tf.evaluation.report import describe_differences
from dcse_tf.evaluation.response_selection import Sample, score_by_embeddings
from dcse_tf.exporting.export_options import ExportOptions
from dcse_tf.exporting.job import export
from dcse_tf.exporting.sentence_transformers import write_sentence_transformers
from dcse_tf.matching.head_files import center_heads, list_head_maps, project, write_heads
from dcse_tf.matching.projection import build_heads
from dcse_tf.options import OptionError

WIDTH = 8
TEXTS = ["where is my parcel", "it left today", "i want a refund", "the cup is blue", "ok"]


@pytest.fixture(scope="module")
def heads():
    heads = build_heads(DIM, WIDTH, 5.0, seed=1)
    for place, head in enumerate(heads, start=1):
        head.hidden_bias.assign(np.linspace(-0.1, 0.1, DIM) / place)
    return heads


@pytest.fixture(scope="module")
def model(heads, tmp_path_factory):
    folder = save_checkpoint(tmp_path_factory.mktemp("saved") / "model", build_backbone())
    write_heads(folder, list_head_maps(heads))
    return folder


@pytest.fixture(scope="module")
def encoder(model):
    return SentenceEncoder.load(model)


@pytest.fixture(scope="module")
def expected(heads, encoder):
    """What lies behind the heads, in float64, by the weights that they stand for."""

    def compute(vectors, head):
        hidden, bias, output = (5.0 * v.numpy().astype(float) for v in head.trainable_variables)
        return np.maximum(np.float64(vectors) @ hidden + bias, 0.0) @ output

    return lambda vectors, side: compute(vectors, heads[side == "response"])


@pytest.mark.parametrize("side", ["context", "response"])
def test_a_sentence_is_embedded_behind_the_head_that_is_asked_for(model, encoder, expected, side):
    plain = encoder.encode(TEXTS)
    found = SentenceEncoder.load(model, projection=side)
    np.testing.assert_allclose(found.encode(TEXTS), expected(plain, side), atol=1e-5)
    assert (found.dim, found.match, found.heads) == (WIDTH, None, {})
    assert found.fingerprint() != encoder.fingerprint()
    rows = expected(plain, side)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.project(plain, side), rows, atol=1e-5)


def test_a_sentence_transformers_folder_holds_a_head(model, encoder, expected, tmp_path):
    graph = load_graph(str(model), "model", EncoderOptions(projection="response"))
    write_sentence_transformers(tmp_path, graph, unit_norm=False)
    first, second = (
        safetensors.numpy.load_file(tmp_path / f"{place}_Dense/model.safetensors")
        for place in (2, 3)
    )
    config = (tmp_path / "2_Dense/config.json").read_text()
    assert '"torch.nn.modules.activation.ReLU"' in config
    plain = encoder.encode(TEXTS).astype(float)
    hidden = np.maximum(plain @ first["linear.weight"].T + first["linear.bias"], 0.0)
    rows = hidden @ second["linear.weight"].T + second["linear.bias"]
    np.testing.assert_allclose(rows, expected(plain, "response"), atol=1e-5)
    np.testing.assert_allclose(SentenceEncoder.load(tmp_path).encode(TEXTS), rows, atol=1e-5)


@pytest.mark.parametrize("form", ["saved_model", "onnx"])
def test_an_export_says_which_head_and_dimensions_it_has(model, form, verified_here, tmp_path):
    if form == "onnx":
        pytest.importorskip("onnxruntime")
    made = {"projection": "context", "truncate_dim": 4}
    names = {"run_dir": str(model), "output_dir": str(tmp_path / "export"), "format": form}
    exported = SentenceEncoder.load(export(ExportOptions(**names, **made)))
    by_flags = SentenceEncoder.load(model, **made)
    np.testing.assert_allclose(exported.encode(TEXTS), by_flags.encode(TEXTS), atol=1e-5)
    asked = EvaluateOptions(model=names["output_dir"], candidates_file=("f",))
    with pytest.raises(InputError, match="behind its context head, and response selection needs"):
        load_scored(asked)
    load_scored(asked.replace(candidates_file=(), sts=("f",)))
    # As the results of evaluate record them.
    results = [
        {**EvaluateOptions(model="m", sts=("f",), **given).to_dict(), **encoder.settings}
        for given, encoder in ((made, by_flags), ({}, exported), ({}, SentenceEncoder.load(model)))
    ]
    assert describe_differences(*results[:2]) == []
    assert describe_differences(*results[1:]) == [
        "`projection` is not the same: first context, second ''",
        "`truncate_dim` is not the same: first 4, second 0",
    ]


def test_a_side_without_a_head_is_refused(encoder):
    with pytest.raises(ValueError, match="side='ctx': expected one of 'context', 'response'"):
        encoder.project(np.zeros([1, DIM]), "ctx")


def test_responses_are_ranked_by_the_cosine_behind_the_heads(encoder, expected):
    samples = [Sample(TEXTS[:2], TEXTS[2:]), Sample(TEXTS[4:], TEXTS[:3])]
    scores = score_by_embeddings(samples, encoder.encode, encoder.heads)
    assert list(scores) == ["cosine", "projected"]
    for sample, found in zip(samples, scores["projected"], strict=True):
        mean = encoder.encode(sample.context).astype(float).mean(axis=0)
        context = expected(mean, "context")
        responses = expected(encoder.encode(sample.candidates), "response")
        norms = np.linalg.norm(responses, axis=1) * np.linalg.norm(context)
        np.testing.assert_allclose(found, responses @ context / norms, atol=1e-5)


@pytest.mark.parametrize("settings", [{"truncate_dim": 8}, {"pooling": "cls"}])
def test_other_embeddings_than_the_heads_were_trained_on_have_none(model, settings):
    assert not SentenceEncoder.load(model, **settings).heads


def test_heads_of_centred_embeddings_give_what_they_gave(heads):
    rows = np.random.default_rng(0).normal(size=(5, DIM)).astype(np.float32)
    maps = list_head_maps(heads)
    centered = center_heads(maps, rows.mean(axis=0))
    for side in ("context", "response"):
        before = project(rows, maps[side])
        np.testing.assert_allclose(
            project(rows - rows.mean(axis=0), centered[side]), before, atol=1e-5
        )
        assert np.abs(project(rows - rows.mean(axis=0), maps[side]) - before).max() > 0.01


def test_without_heads_or_with_another_pooling_there_is_one_error(model, tmp_path):
    bare = save_checkpoint(tmp_path / "bare", build_backbone())
    with pytest.raises(InputError, match=r"`projection`=context: .*bare has no projection heads"):
        SentenceEncoder.load(bare, projection="context")
    with pytest.raises(ValueError, match="has no projection heads"):
        SentenceEncoder.load(bare).project(np.zeros([1, DIM]), "context")
    with pytest.raises(InputError, match=r"`pooling`=cls: the heads of .* `pooling`=mean"):
        SentenceEncoder.load(model, projection="context", pooling="cls")
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    safetensors.numpy.save_file({"context": np.zeros(3)}, broken / "heads.safetensors")
    with pytest.raises(InputError, match=r"heads\.safetensors: expected the weights"):
        SentenceEncoder.load(broken, projection="context")


def test_options_that_the_heads_allow_or_rule_out():
    run = {"data_dir": "d", "run_dir": "r", "encoder_size": "tiny", "cosine_weight": 0.5}
    make_options(**run, projection_dim=8, best_metric="dev/projected_r1")
    with pytest.raises(OptionError, match="`best_metric`=dev/projected_r1: with these settings"):
        make_options(**run, best_metric="dev/projected_r1")
    with pytest.raises(OptionError, match="response selection needs both"):
        EvaluateOptions(model="m", response_selection=("f",), projection="context")
