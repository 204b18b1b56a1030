"""What the paper's objective may be changed to, by the jobs that train and use it."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from train_options import make_options

from dcse_tf.encoder.checkpoint import load_graph
from dcse_tf.errors import InputError
from dcse_tf.evaluation.evaluate import evaluate
from dcse_tf.evaluation.evaluate_options import EvaluateOptions
from dcse_tf.matching.matching_files import PAPER, MatchingForm, read_matching, write_matching
from dcse_tf.options import OptionError
from dcse_tf.training.build import build_training
from dcse_tf.training.checkpoint_store import find_checkpoint
from dcse_tf.training.job import train

pytestmark = pytest.mark.slow

STEPS = 6


def _options(data_dir, run_dir, **changes):
    settings = {
        "data_dir": str(data_dir),
        "run_dir": str(run_dir),
        "encoder_size": "tiny",
        "steps": STEPS,
        "global_batch_size": 8,
        "negatives": 3,
        "learning_rate": 0.003,
        "freeze_layers": 0,
        "freeze_embeddings": False,
        "eval_every": STEPS,
        "log_every": STEPS,
        "dev_samples": 20,
        "best_metric": "dev/cosine_r5",
    }
    return make_options(**{**settings, **changes})


def _train(data_dir, run_dir, **changes):
    return train(_options(data_dir, run_dir, **changes)).scores


def _variables(run_dir):
    """Shapes of what the last checkpoint holds of the model."""
    path = find_checkpoint(run_dir)
    found = tf.train.list_variables(str(path / "state"))
    return [shape for name, shape in found if "OPTIMIZER" not in name]


@pytest.fixture(scope="module")
def attentive(data_dir, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "attentive"
    scores = _train(data_dir, run_dir, aggregation="attention", dev_samples=0)
    assert scores == {}  # so the encoder kept is the last
    return run_dir


def test_attention_is_trained_and_scores_responses(attentive, data_dir, tmp_path):
    attention = read_matching(attentive / "encoder").attention
    assert attention.kind == "attention"
    assert [128, 128] in _variables(attentive)
    assert np.abs(attention.hidden.bias).max() > 0  # it began at zero

    def score(model):
        sets = {"response_selection": (str(data_dir / "test.jsonl"),), "candidates": 4}
        output = tmp_path / "results.json"
        evaluate(EvaluateOptions(model=str(model), output=str(output), **sets))
        return json.loads(output.read_text())["results"]

    # A network that tells turns apart sharply, so that scores change without it.
    for variable in attention.trainable_variables:
        variable.assign(variable * 1000.0)
    changed = tmp_path / "changed"
    shutil.copytree(attentive / "encoder", changed)
    write_matching(changed, MatchingForm(attention=attention))
    matching, _, cosine, _ = score(changed)
    (changed / "turn_attention.safetensors").unlink()
    matching_by_mean, _, cosine_again, _ = score(changed)
    assert matching["scores"] != matching_by_mean["scores"]
    assert cosine["scores"] == cosine_again["scores"]


def test_a_damaged_attention_is_an_error_that_names_the_file(attentive, tmp_path):
    shutil.copytree(attentive / "encoder", tmp_path / "encoder")
    path = tmp_path / "encoder/turn_attention.safetensors"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"turn_attention\.safetensors: expected the weights"):
        read_matching(tmp_path / "encoder")


def test_the_papers_mean_of_the_turns_needs_no_file(tmp_path):
    assert read_matching(tmp_path) == PAPER


def test_a_centred_run_saves_an_encoder_that_is_centred(data_dir, tmp_path):
    texts = [
        turn["text"]
        for line in (data_dir / "dev.jsonl").read_text().splitlines()
        for turn in json.loads(line)["turns"]
    ]
    # So slow that the encoder stays where it starts, and the running average follows.
    changes = {"batch_form": "dense", "dev_samples": 0, "learning_rate": 1e-5}
    start = build_training(_options(data_dir, "unused", **changes))
    (tmp_path / "start").mkdir()
    start.spec.write_encoder(start.setup, start.model, tmp_path / "start")
    _train(data_dir, tmp_path / "run", center_tokens=True, **changes)
    norms = {}
    for folder in ("start", "run"):
        encoder = load_graph(str(tmp_path / folder), "model")
        tokens, mask = encoder.token_embeddings(tf.constant(texts))
        mean = tokens.numpy()[mask.numpy()].mean(axis=0)
        norms[folder] = np.linalg.norm(mean) / np.linalg.norm(tokens[mask], axis=-1).mean()
    assert norms["run"] < 0.5 * norms["start"]
    assert [128] in _variables(tmp_path / "run")


def test_attention_without_matching_is_refused():
    with pytest.raises(OptionError, match="with `cosine_weight`=1 there is no matching"):
        make_options(
            data_dir="d",
            run_dir="r",
            encoder_size="tiny",
            cosine_weight=1.0,
            aggregation="attention",
        )
