"""The training job as a whole: what its settings make of a loss, by the reference alone.

A step takes all sessions of a small corpus, every turn as a response, all negatives: then the
batch is known without any draw, and its loss follows from the texts and the checkpoint.
"""

import functools
import unittest.mock

import numpy as np
import pytest
import reference
import safetensors.numpy
import tensorflow as tf
from lettered_corpus import TOKENS, prepare_sessions, turn_ids
from train_options import make_options, read_scalars

from dcse_tf.bert import bert
from dcse_tf.errors import InputError
from dcse_tf.input_files import read_json_object
from dcse_tf.options import OptionError
from dcse_tf.training import train as job
from dcse_tf.training.build import build_training
from dcse_tf.training.train import train
from dcse_tf.training.trainer import seed_dropout

pytestmark = pytest.mark.slow

TURNS = [3, 2, 4]  # of the three sessions
LAYERS, DIM, HEADS, EPSILON = 2, 128, 2, 1e-12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The prepared corpus in data/, and in vocab/ a checkpoint with its vocabulary."""
    folder = tmp_path_factory.mktemp("job")
    prepare_sessions(folder, TURNS)
    config = bert.make_bert_config(LAYERS, DIM, len(TOKENS))
    backbone = bert.build_backbone(config, 0.0)
    bert.initialize_weights(backbone.trainable_variables, seed=3, stddev=0.1)
    bert.save_backbone(folder / "vocab", backbone, config)
    return folder


def describe(corpus, run_dir, **changes):
    """The settings of a training on the corpus."""
    return {
        "data_dir": str(corpus / "data"), "encoder": str(corpus / "vocab"),
        "run_dir": str(run_dir), "steps": 1, "global_batch_size": len(TURNS),
        "batch_form": "dense", "negatives": 0, "context_turns": 2, "learning_rate": 1e-3,
        "warmup_steps": 2, "dropout": 0.0, "freeze_layers": 0, "freeze_embeddings": False,
        "log_every": 1, "dev_samples": 0, **changes,
    }  # fmt: skip


def run(corpus, run_dir, **changes):
    """Trains; the scalars of every step by their names, each a list."""
    train(make_options(**describe(corpus, run_dir, **changes)))
    return read_scalars(run_dir)


def read_tensors(folder):
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    return {name: value.astype(np.float64) for name, value in tensors.items()}


def expected_losses(folder, temperature):
    """By the weights in a folder: the mean loss of the matching, and of the plain cosine."""
    tensors = read_tensors(folder)
    embedded = {
        (session, turn): reference.bert(turn_ids(session, turn), tensors, HEADS, EPSILON)
        for session, turns in enumerate(TURNS)
        for turn in range(turns)
    }
    losses = {reference.similarity: [], reference.plain_cosine: []}
    for session, turn in embedded:
        context = [
            rows for (s, t), rows in embedded.items() if s == session and 0 < abs(t - turn) < 3
        ]
        others = [rows for (s, _), rows in embedded.items() if s != session]
        for measure, found in losses.items():
            values = [measure(context, rows) for rows in [embedded[session, turn], *others]]
            found.append(reference.nt_xent(values, temperature))
    return [float(np.mean(found)) for found in losses.values()]


RUNS = {
    "matching": {"cosine_weight": 0.0, "layout": "padded"},
    "both": {"cosine_weight": 0.8, "layout": "packed"},
    "cosine": {"cosine_weight": 1.0, "layout": "packed"},
}
RUNS["matching"] |= {"steps": 6, "decay": "linear", "learning_rate": 8e-4}
RUNS["cosine"] |= {"freeze_layers": -1, "freeze_embeddings": True}  # half of the two layers


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A function of a name: the scalars and the folder of that run, which is trained once."""

    @functools.cache
    def run_once(name):
        folder = tmp_path_factory.mktemp(name)
        return run(corpus, folder, temperature=0.2, **RUNS[name]), folder

    return run_once


@pytest.mark.parametrize("name", RUNS)
def test_the_loss_is_that_of_the_settings(corpus, trained, name):
    scalars, folder = trained(name)
    recorded = read_json_object(folder / "corpus.json")  # for the model card
    assert recorded["train split"].startswith(f"{len(TURNS)} sessions, {sum(TURNS)} utterances")
    matching, cosine = expected_losses(corpus / "vocab", 0.2)
    weight = RUNS[name]["cosine_weight"]
    expected = (1 - weight) * matching + weight * cosine
    assert len(scalars["loss"]) == RUNS[name].get("steps", 1)
    assert scalars["loss"][0] == pytest.approx(expected, rel=1e-4)
    assert abs(matching - cosine) > 0.05 * expected  # the weight matters


def test_dropout_reaches_an_encoder_that_was_loaded(corpus):
    losses = {}
    for dropout in (0.0, 0.3):
        training = build_training(make_options(**describe(corpus, "unused", dropout=dropout)))
        seed_dropout(training.model, 0, 0)
        losses[dropout] = float(training.model(next(training.batches()), training=True)["loss"])
    without, _ = expected_losses(corpus / "vocab", 0.1)
    assert losses[0.0] == pytest.approx(without, rel=1e-4)
    assert losses[0.3] != pytest.approx(without, rel=1e-3)


def test_the_rates_are_those_of_the_settings(trained):
    scalars, _ = trained("matching")
    # After n steps the rate is that of step n, from 0: warm-up (n + 1) / 2, then from step 2 on
    # linearly to 0 at step 6.
    expected = [8e-4, 8e-4, 6e-4, 4e-4, 2e-4, 0.0]
    np.testing.assert_allclose(scalars["learning_rate"], expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "frozen"), [("both", ()), ("cosine", ("embeddings.", "encoder.layer.0."))]
)
def test_what_is_frozen_stays_and_all_else_is_trained(corpus, trained, name, frozen):
    _, folder = trained(name)
    before, after = read_tensors(corpus / "vocab"), read_tensors(folder / "encoder")
    assert before.keys() == after.keys()
    same = {name for name in before if np.array_equal(before[name], after[name])}
    # An attention's softmax is blind to the bias of its keys: rounding alone may move it.
    moved = before.keys() - same
    for name in before:
        if name.startswith(frozen):
            assert name in same, name
        elif not name.endswith("key.bias"):
            assert name in moved, name
    # Adam's first step is at most the rate, here that of step 0, half of the peak, and nearly that
    # where the gradient is large; the decay adds a hundredth of a weight times the rate.
    farthest = max(np.abs(after[name] - before[name]).max() for name in before)
    assert 0.3e-3 < farthest < 0.51e-3


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_training_without_weights_to_train_is_refused(corpus, tmp_path, lora_rank):
    settings = {"freeze_layers": LAYERS, "freeze_embeddings": True, "lora_rank": lora_rank}
    with pytest.raises(OptionError, match=f"`freeze_layers`={LAYERS}: .* nothing left to train"):
        run(corpus, tmp_path, **settings)


def test_the_cpu_is_divided_before_the_inputs_are_read(tmp_path, monkeypatch):
    """Reading a vocabulary of SentencePiece may run operations, after which it cannot be."""
    calls = []
    monkeypatch.setattr(job, "divide_cpu", calls.append)
    with pytest.raises(InputError, match="nothing"):
        train(make_options(encoder="nothing", data_dir="d", run_dir=str(tmp_path), logical_cpus=2))
    assert calls == [2]


def test_a_batch_too_large_for_the_memory_is_named(corpus, tmp_path, monkeypatch):
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    monkeypatch.setattr(job.Controller, "run", unittest.mock.Mock(side_effect=error))
    with pytest.raises(MemoryError, match="try a smaller `global_batch_size`"):
        run(corpus, tmp_path)


def test_a_training_that_makes_the_encoder_worse_leaves_the_start_and_says_so(
    corpus, tmp_path, capsys
):
    """Scores fall when the weights are destroyed: at a rate of 1 nothing of them is left."""
    from dcse_tf.cli.commands import train as train_from_command_line

    sts = tmp_path / "sts.txt"
    # The start, all of whose similarities differ, ranks them as their degrees say.
    pairs = [((0, 0), (0, 1)), ((0, 0), (1, 1)), ((0, 1), (2, 2))]
    pairs += [((1, 0), (2, 3)), ((2, 0), (2, 1))]
    tensors = read_tensors(corpus / "vocab")
    means = {
        turn: reference.mean_of_rows(reference.bert(turn_ids(*turn), tensors, HEADS, EPSILON))
        for pair in pairs
        for turn in pair
    }
    order = sorted(pairs, key=lambda pair: reference.cosine(means[pair[0]], means[pair[1]]))
    text = [f"{i}\ts{a[0]} t{a[1]}\ts{b[0]} t{b[1]}" for i, (a, b) in enumerate(order, start=1)]
    sts.write_text("\n".join(text) + "\n")
    settings = {"steps": 2, "negatives": 1, "learning_rate": 1.0, "eval_every": 1}
    settings |= {"dev_sts": str(sts), "best_metric": "dev/spearman"}
    options = make_options(**describe(corpus, tmp_path / "run", **settings))
    train_from_command_line(options)
    printed = capsys.readouterr().out
    assert "kept: step 0 of 2, dev/spearman 100 (" in printed
    assert "the one that the training started from, unchanged" in printed
    before, after = read_tensors(corpus / "vocab"), read_tensors(tmp_path / "run/encoder")
    assert all(np.array_equal(before[name], after[name]) for name in before)

    # The set may move, but not change, when the run is resumed.
    moved = sts.rename(tmp_path / "moved.txt")
    options = options.replace(dev_sts=str(moved))
    assert train(options).kept.step == 0
    moved.write_text("\n".join(text[::-1]))
    with pytest.raises(InputError, match=r"inputs\.json: .*`dev_sts`: SHA-256"):
        train(options)
