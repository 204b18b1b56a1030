"""The baselines as training runs: siamese_single, siamese_multi, simcse."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tiny_bert import build_backbone
from train_options import make_options, resolve

from dcse_tf.bert.layout import Layout
from dcse_tf.data.batch import make_simcse_batches
from dcse_tf.data.dialogue import Context
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.options import OptionError
from dcse_tf.tasks.dialogue_cse import compute_contrastive_loss
from dcse_tf.training import job
from dcse_tf.training.checkpoint_store import find_checkpoint
from dcse_tf.training.trainer import seed_dropout

pytestmark = pytest.mark.slow


def make_config(data_dir, run_dir, task, **changes):
    settings = {
        "task": task,
        "data_dir": str(data_dir),
        "run_dir": str(run_dir),
        "encoder_size": "tiny",
        "steps": 4,
        "global_batch_size": 8,
        "negatives": 3,
        "learning_rate": 1e-3,
        "freeze_layers": 0,
        "log_every": 1,
        "save_every": 2,
        "eval_every": 4,
        "dev_samples": 12,
    }
    return make_options(**{**settings, **changes})


def read_checkpoint(run_dir):
    reader = tf.train.load_checkpoint(str(find_checkpoint(run_dir) / "state"))
    shapes = reader.get_variable_to_shape_map()
    names = [name for name in shapes if name.endswith("VARIABLE_VALUE")]
    return {name: reader.get_tensor(name) for name in names}


@pytest.mark.parametrize("task", ["siamese_single", "simcse"])
def test_a_run_scores_by_cosine_and_leaves_an_encoder_like_any_other(data_dir, tmp_path, task):
    scores = job.train(make_config(data_dir, tmp_path, task, steps=2)).scores
    ways = ("cosine", "cosine_bidirectional")
    assert set(scores) == {f"dev/{way}_{x}" for way in ways for x in ("r1", "r2", "r5", "mrr")}
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["temperature"] == {"siamese_single": 1.0, "simcse": 0.05}[task]
    names = {path.name for path in (tmp_path / "encoder").iterdir()}
    assert not any("head" in name or "attention" in name for name in names)
    [events] = (tmp_path / "tensorboard").glob("events.*")
    assert b"explain/" not in events.read_bytes()  # there is no matching to draw
    encoder = SentenceEncoder.load(tmp_path)
    embeddings = encoder.encode(["Where is my parcel?", "Hello"])
    assert embeddings.shape == (2, 128)
    assert np.isfinite(embeddings).all()


def test_a_pair_of_turns_has_no_other_context():
    assert make_config("data", "run", "siamese_single").context == Context(1, "before")
    for name, value in (("context_turns", 3), ("context_side", "both")):
        with pytest.raises(OptionError, match=f"`{name}`={value}: has no meaning"):
            make_config("data", "run", "siamese_single", **{name: value})


@pytest.mark.parametrize(
    ("settings", "longest", "expected"),
    [
        # [CLS] once and of six turns all but theirs: 1 + 6 x 19.
        ({}, 20, 115),
        ({"context_side": "before"}, 20, 58),
        ({"context_side": "before", "context_turns": 1}, 20, 64),  # 20 itself; 64 at least
        ({}, 100, 256),  # cut
        ({"context_tokens": 90}, 100, 100),  # an utterance is longer than a context
    ],
)
def test_rows_are_as_long_as_the_longest_context(settings, longest, expected):
    config = resolve(make_config("data", "run", "siamese_multi", **settings), longest=longest)
    assert config.row_length == max(64, expected)


def test_too_short_rows_for_contexts_are_refused():
    config = make_config("data", "run", "siamese_multi", row_length=64)
    with pytest.raises(OptionError, match="`row_length`=64: sequences of data have up to 115"):
        resolve(config, longest=20)


def test_contexts_must_fit_the_positions_of_the_encoder(data_dir, tmp_path):
    """The encoders made here have 512; 40 x 2 turns of up to 16 tokens are more."""
    changes = {"context_turns": 40, "context_tokens": 600}
    with pytest.raises(OptionError, match="up to 600 tokens, but the encoder has 512 positions"):
        job.train(make_config(data_dir, tmp_path, "siamese_multi", **changes))


@pytest.mark.parametrize("layout", [Layout("padded"), Layout("packed", 16)], ids=lambda x: x.kind)
def test_views_are_the_same_without_dropout_and_differ_with_it(layout):
    texts = [[2, 10, 11, 3], [2, 20, 3], [2, 30, 31, 32, 33, 3], [2, 40, 3], [2, 20, 3]]
    token_ids = tf.ragged.constant(texts, tf.int32).to_tensor()
    (batch,) = make_simcse_batches(token_ids, 1, layout)
    found = {}
    for dropout in (0.0, 0.1):
        backbone = build_backbone(dropout=dropout)
        model = build_dialogue_cse(backbone, layout, Objective(0.05, cosine_weight=1.0))
        seed_dropout(model, 0, 0)
        sums = compute_contrastive_loss(model, batch)
        assert sums["samples"] == 4.0  # one text comes twice
        found[dropout] = float(sums["positive_similarity"]) / 4
    assert found[0.0] == pytest.approx(1.0, abs=1e-5)
    assert 0.5 < found[0.1] < 0.999
