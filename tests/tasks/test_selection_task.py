"""Response selection as a training run."""

import json

import numpy as np
import pytest
import tensorflow as tf
from test_baseline_tasks import read_checkpoint
from tiny_reranker import save_reranker
from train_options import make_manifest, make_options, resolve

from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.dialogue import Context
from dcse_tf.errors import InputError
from dcse_tf.evaluation.evaluate import evaluate
from dcse_tf.evaluation.evaluate_options import EvaluateOptions
from dcse_tf.options import OptionError
from dcse_tf.tasks.response_selection import ResponseSelectionOptions, compute_selection_loss
from dcse_tf.tasks.shared import average_sums
from dcse_tf.training import job
from dcse_tf.training.build import build_training
from dcse_tf.training.trainer import seed_dropout

pytestmark = pytest.mark.slow

AUXILIARY = ("next_session", "restoration", "incoherence", "consistency")


def make_config(data_dir, run_dir="run", **changes):
    settings = {
        "task": "response_selection",
        "data_dir": str(data_dir),
        "run_dir": str(run_dir),
        "encoder_size": "tiny",
        "steps": 4,
        "global_batch_size": 8,
        "learning_rate": 1e-3,
        "max_context_tokens": 96,
        "max_response_tokens": 32,
        "log_every": 1,
        "save_every": 2,
        "eval_every": 4,
        "dev_samples": 12,
    }
    return make_options(**{**settings, **changes})


def evaluate_kept(data_dir, run_dir):
    """What `evaluate` says of the dev sessions that the run was scored on."""
    options = EvaluateOptions(
        model=str(run_dir),
        response_selection=(str(data_dir / "dev.jsonl"),),
        context_turns=20,
        max_samples=12,
    )
    (found,) = evaluate(options)
    assert found.task == "response_reranker"
    return found.scores["reranker_mrr"]


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory):
    """A run directory and what the run came to."""
    folder = tmp_path_factory.mktemp("selection") / "run"
    mrr = "dev/reranker_mrr"
    config = make_config(data_dir, folder, speaker_embeddings=True, steps=3, best_metric=mrr)
    return folder, job.train(config)


def test_a_run_scores_every_task_and_leaves_a_re_ranker_that_scores_the_same(run, data_dir):
    run_dir, outcome = run
    ranks = {f"dev/reranker_{name}" for name in ("r1", "r2", "r5", "mrr")}
    accuracies = {f"dev/{task}_accuracy" for task in ("matching", *AUXILIARY)}
    told = ("matching", "next_session", "incoherence", "consistency")
    chances = {f"dev/{task}_chance" for task in told}
    assert set(outcome.scores) == ranks | accuracies | chances
    assert all(0.0 <= value <= 100.0 for value in outcome.scores.values())
    assert evaluate_kept(data_dir, run_dir) == pytest.approx(outcome.kept.score)

    folder = run_dir / "encoder"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    vocabulary = read_vocabulary(folder)
    assert vocabulary.tokens[-1] == "[EOT]"
    assert config["vocab_size"] == len(vocabulary.tokens)
    settings = json.loads((folder / "reranker.json").read_text())
    assert settings == {
        "architecture": "bert", "first_tokens": 96, "second_tokens": 32, "speakers": True,
    }  # fmt: skip


def test_a_batch_without_an_example_of_a_task_does_not_lower_its_accuracy():
    matching = {"weight": 4.0, "matching_weight": 4.0, "matching_accuracy": 2.0}
    batches = [
        {**matching, "consistency_weight": 4.0, "consistency_accuracy": 3.0},
        {**matching, "consistency_weight": 0.0, "consistency_accuracy": 0.0},
    ]
    names = ("matching_accuracy", "consistency_accuracy")
    found = average_sums(batches, lambda batch: batch, names, 100.0)
    assert found == {"matching_accuracy": 50.0, "consistency_accuracy": 75.0}
    # Where no batch has an example, nothing is known of the task.
    found = average_sums(batches[1:], lambda batch: batch, names, 100.0)
    assert found == {"matching_accuracy": 50.0}


@pytest.mark.parametrize("architecture", ["dual_lstm", "esim"])
def test_so_does_a_run_without_bert(data_dir, tmp_path, architecture, monkeypatch, caplog):
    warned = ["cut at 9% of them"]
    monkeypatch.setattr(ResponseSelectionOptions, "list_warnings", lambda *_: warned)
    sizes = {"encoder_size": "", "lstm_units": 8, "lstm_embedding_size": 8}
    alone = {"auxiliary": ("none",), "best_metric": "dev/reranker_mrr", "steps": 1}
    options = make_config(data_dir, tmp_path, architecture=architecture, **sizes, **alone)
    kept = job.train(options).kept
    assert evaluate_kept(data_dir, tmp_path) == pytest.approx(kept.score)
    assert "cut at 9% of them" in caplog.messages


@pytest.mark.parametrize("architecture", ["bert", "dual_lstm", "esim"])
def test_restoration_starts_near_the_loss_of_guessing(data_dir, tmp_path, architecture):
    sizes = {} if architecture == "bert" else {"encoder_size": ""}
    options = make_config(data_dir, tmp_path, architecture=architecture, **sizes)
    training = build_training(options)
    sums = compute_selection_loss(training.model, next(iter(training.dataset(0))), False)
    loss = float(sums["restoration_loss"] / sums["weight"])
    assert loss == pytest.approx(np.log(len(training.setup.vocabulary.tokens)), rel=0.25)


@pytest.mark.parametrize("packaged", [False, True])
def test_a_re_ranker_has_no_embeddings_to_compare(tmp_path, monkeypatch, packaged):
    folder = save_reranker(tmp_path / "own_reranker")
    monkeypatch.syspath_prepend(tmp_path)  # which makes the folder a package
    (tmp_path / "sts.txt").write_text("1\ta\tb\n5\tc\td\n")
    model = "package:own_reranker" if packaged else str(folder)
    options = EvaluateOptions(model=model, sts=(str(tmp_path / "sts.txt"),))
    with pytest.raises(InputError, match=r"`sts`: .* is a re-ranker, which gives no embeddings"):
        evaluate(options)


def test_a_re_ranker_is_not_shown_what_follows_a_response(data_dir, tmp_path):
    model, sessions = str(save_reranker(tmp_path / "run")), str(data_dir / "dev.jsonl")
    found = evaluate(EvaluateOptions(model=model, response_selection=(sessions,)))
    assert [result.task for result in found] == ["response_reranker"]


def test_a_run_that_was_cut_off_goes_on_with_all_its_heads(run, data_dir, tmp_path, monkeypatch):
    whole, _ = run
    config = make_config(data_dir, tmp_path, speaker_embeddings=True, steps=3, dev_samples=0)
    steps = iter(range(1, 9))

    def stop_at_the_third(metrics):
        if next(steps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(job, "advise", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        job.train(config)
    before = read_checkpoint(tmp_path)
    job.train(config)
    first, second = read_checkpoint(whole), read_checkpoint(tmp_path)
    assert first.keys() == second.keys() == before.keys()
    for name, value in first.items():
        np.testing.assert_allclose(second[name], value, atol=1e-5, err_msg=name)
    changed = {v.shape for name, v in first.items() if not np.array_equal(before[name], v)}
    # The heads of sequences, that of turns (mean and maximum), BERT's prediction head.
    assert {(128, 128), (128, 1), (256, 1)} <= changed


@pytest.fixture(scope="module")
def training(data_dir):
    return build_training(make_config(data_dir, dropout=0.0))


def test_two_devices_have_the_loss_and_gradients_of_one(training):
    variables = training.model.trainable_variables

    def differentiate(batches):
        totals, weight = None, 0.0
        for batch in batches:
            with tf.GradientTape() as tape:
                sums = compute_selection_loss(training.model, batch)
            found = tape.gradient(sums["loss"], [v.value for v in variables])
            found = [tf.convert_to_tensor(gradient).numpy() for gradient in found]
            totals = found if totals is None else [a + b for a, b in zip(totals, found)]
            weight += float(sums["weight"])
        return [total / weight for total in totals], weight

    one = training.spec.make_dataset(training.setup, 0, 1).take(1)
    two = training.spec.make_dataset(training.setup, 0, 2).take(2)
    (first, weight), (second, same) = differentiate(one), differentiate(two)
    assert weight == same == 16.0
    for variable, a, b in zip(variables, first, second, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, err_msg=variable.path)


def test_batches_after_a_step_are_those_of_a_run_that_took_it(training):
    whole, later = iter(training.dataset(0)), iter(training.dataset(5))
    for _ in range(5):
        next(whole)
    for _ in range(14):  # over the end of an epoch
        first, second = next(whole), next(later)
        assert first.keys() == second.keys()
        for name, value in first.items():
            np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_the_matching_alone_has_no_other_variables(data_dir, training):
    alone, every = build_training(make_config(data_dir, auxiliary=("none",))).model, training.model
    assert len(every.trainable_variables) > len(alone.trainable_variables)
    seed_dropout(alone, 0, 0)
    names = {variable.path.split("/")[0] for variable in alone.trainable_variables}
    assert not {"next_session", "consistency", "incoherence", "masked_lm_head"} & names
    assert "matching" in names


def test_contexts_are_before_the_response_and_as_long_as_the_encoder_allows():
    options = make_config("data", max_context_tokens=0, max_response_tokens=64)
    assert options.context == Context(20, "before")
    assert resolve(options).max_context_tokens == 448
    assert options.resolve(make_manifest(), positions=256).max_context_tokens == 192
    with pytest.raises(OptionError, match="`max_response_tokens`=64: the encoder has only 70 p"):
        options.resolve(make_manifest(), positions=70)


def test_too_few_dev_sessions_to_rank_responses_are_refused_before_anything_is_built():
    assert resolve(make_config("data"), 10)
    match = "`best_metric`=dev/reranker_r1: ranks a response among 10, and of data only 9 dev sess"
    with pytest.raises(OptionError, match=match):
        resolve(make_config("data"), 9)
    with pytest.raises(OptionError, match="choose by one of dev/matching_accuracy, "):
        resolve(make_config("data", dev_samples=9), 20)
    assert resolve(make_config("data", best_metric="dev/matching_accuracy"), 9)
    # Without any score the last encoder is kept.
    assert resolve(make_config("data", dev_samples=0), 20)
    assert resolve(make_options(data_dir="d", run_dir="r", encoder_size="tiny", dev_samples=5), 50)


def test_an_lstm_reads_sequences_of_any_length():
    options = make_config("data", architecture="esim", encoder_size="", max_response_tokens=600)
    assert resolve(options).segment_tokens == (96, 600)
    free = options.replace(max_context_tokens=0)
    assert resolve(free).segment_tokens == (448, 600)


def test_rows_have_room_for_two_pieces_of_long_dialogues():
    """Of 4 turns of 49 tokens with [EOT], one piece has 3 and [CLS] and [SEP], the other 3 and
    [SEP]: 149 + 148, more than the 198 of a whole dialogue and the 64 of a response.
    """
    lengths = {"max_context_tokens": 448, "max_response_tokens": 64, "context_turns": 3}
    options = resolve(make_config("data", **lengths), longest=50)
    assert options.row_length >= 149 + 148
    assert options.longest_sequence(50) == 2 * 198
    # Pieces have 256 tokens each at most, contexts and responses 448 and 64.
    assert options.longest_sequence(500) == 512
    alone = resolve(make_config("data", **lengths, auxiliary=("none",)), longest=50)
    assert alone.row_length == 198 + 64


def test_turns_cut_shorter_than_a_response_are_told():
    """A turn of 65 tokens is [CLS] and the response's 64, [SEP] among them."""
    options = make_config("cut", max_response_tokens=64)
    for longest, truncated in ((65, 7), (64, 0)):
        assert not options.list_warnings(make_manifest(longest=longest, truncated=truncated))
    (told,) = options.list_warnings(make_manifest(longest=64, truncated=7))
    assert "cut was prepared with `max_sequence_length`=64, which cut 7 turns" in told
    assert "with 65 or more" in told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auxiliary": ("nsp",)}, "`auxiliary`=nsp: 'nsp': expected next_session, restoration"),
        ({"auxiliary": ("none", "consistency")}, "none excludes other tasks"),
        (
            {"auxiliary": ("none",), "auxiliary_weight": 0.1},
            "`auxiliary_weight`=0.1: has no meaning without tasks in `auxiliary`",
        ),
        (
            {"auxiliary": ("next_session",), "consistency_margin": 0.2},
            "`consistency_margin`=0.2: has no meaning without consistency in `auxiliary`",
        ),
        ({"negatives": 8}, "`negatives`=8: they come from the other sessions of the batch"),
        ({"context_side": "both"}, "`context_side`=both: has no meaning"),
        ({"dev_sts": "s"}, "`dev_sts`=s: a re-ranker gives no embeddings of sentences"),
        ({"lstm_units": 8}, "`lstm_units`=8: has no meaning with `architecture`=bert"),
        ({"architecture": "esim"}, "`encoder_size`=tiny: `architecture`=esim starts from random"),
        (
            {"architecture": "esim", "encoder_size": "", "layout": "packed"},
            "`layout`=packed: `architecture`=esim reads padded sequences",
        ),
        (
            {"architecture": "esim", "encoder_size": "", "speaker_embeddings": True},
            "`speaker_embeddings`=True: has no meaning with `architecture`=esim",
        ),
        ({"best_metric": "dev/cosine_r1"}, "`best_metric`=dev/cosine_r1: with these settings"),
    ],
)
def test_settings_that_contradict_each_other(changes, message):
    with pytest.raises(OptionError, match=message):
        make_config("data", **changes)
