"""Trainings with each form of the matching, and what evaluates, exports and refuses it."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tiny_bert import build_backbone, save_checkpoint
from train_options import make_options

from dcse_tf.encoder.checkpoint import load_graph
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError
from dcse_tf.evaluation.job import evaluate
from dcse_tf.evaluation.options import EvaluateOptions
from dcse_tf.exporting.job import export
from dcse_tf.exporting.options import ExportOptions
from dcse_tf.matching.matching_files import make_matching_form, read_matching, write_matching
from dcse_tf.options import OptionError
from dcse_tf.training.build import build_training
from dcse_tf.training.job import train

FORMS = [("residual", "attention"), ("context", "mean"), ("maxsim", "mean")]
BATCHES = [("unique", "packed"), ("dense", "packed"), ("plain", "padded")]
CONTEXTS = [["where is my parcel", "it left today"], ["ok"]]
CANDIDATES = [["thanks", "i want a refund", "it left today"]] * 2


def make_config(data_dir, run_dir="unused", **changes):
    settings = {
        "data_dir": str(data_dir),
        "run_dir": str(run_dir),
        "encoder_size": "tiny",
        "steps": 4,
        "global_batch_size": 8,
        "negatives": 3,
        "learning_rate": 0.003,
        "freeze_layers": 0,
        "freeze_embeddings": False,
        "dev_samples": 0,
    }
    return make_options(**{**settings, **changes})


@pytest.mark.slow
@pytest.mark.parametrize(("batch_form", "layout"), BATCHES)
@pytest.mark.parametrize(("kind", "aggregation"), FORMS)
def test_a_short_training_of_every_form(data_dir, kind, aggregation, batch_form, layout):
    changes = {"matching": kind, "aggregation": aggregation, "center_tokens": layout == "packed"}
    config = make_config(data_dir, batch_form=batch_form, layout=layout, **changes)
    training = build_training(config)
    variables = training.model.trainable_variables
    before = {v.path: v.numpy().copy() for v in variables}
    metrics = training.trainer.train(training.batches(), 2)
    assert np.isfinite(metrics["loss"])
    same = [v.path for v in variables if np.array_equal(v, before[v.path])]
    # A softmax is blind to these.
    assert not [path for path in same if not path.endswith(("key/bias", "output/bias"))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["residual", "maxsim"])
def test_dev_scores_and_the_run_that_is_left_are_of_the_form(data_dir, tmp_path, kind):
    run_dir = tmp_path / "run"
    changes = {"matching": kind, "dev_samples": 20, "eval_every": 4}
    changes["best_metric"] = "dev/matching_mrr"
    outcome = train(make_config(data_dir, run_dir, **changes))
    found, *_ = evaluate(
        EvaluateOptions(
            model=str(run_dir),
            response_selection=(str(data_dir / "dev.jsonl"),),
            max_samples=20,
        )
    )
    last = read_matching(run_dir / "encoder")
    assert last.kind == kind
    assert last.residual is None or float(last.residual.value()) != 1.0
    assert found.scores["matching_mrr"] == pytest.approx(outcome.kept.score)


@pytest.fixture(scope="module")
def backbone():
    return build_backbone()


@pytest.fixture
def folder(backbone, tmp_path):
    return save_checkpoint(tmp_path / "model", backbone)


def score(folder):
    return SentenceEncoder.load(folder).match(CONTEXTS, CANDIDATES)


@pytest.mark.parametrize("kind", ["residual", "context", "maxsim"])
def test_an_encoder_scores_by_the_form_in_its_folder(folder, kind):
    plain = score(folder)
    write_matching(folder, make_matching_form(kind))
    assert np.abs(score(folder) - plain).max() > 1e-3
    assert SentenceEncoder.load(folder).settings["matching"] == kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["maxsim"])
def test_an_export_scores_by_the_form(folder, kind, verified_here, tmp_path):
    """Each signature is compared with the encoder when the export is written."""
    form = make_matching_form(kind)
    if form.residual:
        form.residual.position.assign(0.01)
    write_matching(folder, form)
    target = tmp_path / "export"
    export(ExportOptions(run_dir=str(folder), output_dir=str(target)))
    np.testing.assert_allclose(score(target), score(folder), atol=1e-5)
    assert SentenceEncoder.load(target).settings["matching"] == kind
    settings = json.loads((target / "dcse_tf.json").read_text())
    assert "matching.json" in settings["sha256"]
    card = (target / "model_card.md").read_text()
    shown = "residual (lambda 2.718)" if kind == "residual" else kind
    assert f"| matching of responses | {shown}, turns by mean: the signature match |" in card


def test_a_sentence_transformers_export_says_that_it_has_no_matching(folder, tmp_path):
    write_matching(folder, make_matching_form("maxsim"))
    target = tmp_path / "export"
    settings = {"run_dir": str(folder), "output_dir": str(target)}
    export(ExportOptions(format="sentence_transformers", **settings))
    assert "maxsim, turns by mean: not part of this format" in (target / "README.md").read_text()
    assert not (target / "matching.json").exists()


def make_evaluation(folder, data_dir, **changes):
    sets = {"response_selection": (str(data_dir / "test.jsonl"),), "candidates": 4}
    return EvaluateOptions(model=str(folder), **{**sets, **changes})


def test_a_raw_checkpoint_is_evaluated_by_any_form(folder, data_dir):
    found = {
        kind: evaluate(make_evaluation(folder, data_dir, matching=kind))[0].items["matching_mrr"]
        for kind in ("", "paper", "residual", "context", "maxsim")
    }
    np.testing.assert_array_equal(found[""], found["paper"])
    write_matching(folder, make_matching_form("context"))
    own = evaluate(make_evaluation(folder, data_dir))[0].items["matching_mrr"]
    np.testing.assert_array_equal(found["context"], own)
    assert len({tuple(items) for items in found.values()}) == 4


def test_a_trained_matching_is_not_replaced(folder, data_dir):
    write_matching(folder, make_matching_form("paper"))
    with pytest.raises(InputError, match=r"`matching`=maxsim: .* of its own, paper, turns by mean"):
        evaluate(make_evaluation(folder, data_dir, matching="maxsim"))


def test_an_export_has_no_other_matching(folder, data_dir, tmp_path):
    graph = load_graph(str(folder), "model")
    module = tf.Module()
    embed = tf.function(
        lambda sentences: {"embeddings": graph.pool_tokens(graph.tokenize(sentences).to_tensor())},
        input_signature=[tf.TensorSpec([None], tf.string, name="sentences")],
    )
    module.parts = [graph.tokenizer, graph.bert]
    tf.saved_model.save(module, str(tmp_path / "export"), signatures=embed)
    with pytest.raises(InputError, match=r"`matching`=context: .* has no token embeddings"):
        evaluate(make_evaluation(tmp_path / "export", data_dir, matching="context"))


def test_a_form_without_use_is_refused(data_dir):
    with pytest.raises(OptionError, match="`matching`=maxsim: has no meaning without"):
        EvaluateOptions(model="m", retrieval=("select.txt",), matching="maxsim")
    with pytest.raises(OptionError, match="`matching`=residual: with `cosine_weight`=1"):
        make_config(data_dir, matching="residual", cosine_weight=1.0)
    with pytest.raises(OptionError, match="`aggregation`=attention: with `matching`=maxsim"):
        make_config(data_dir, matching="maxsim", aggregation="attention")
