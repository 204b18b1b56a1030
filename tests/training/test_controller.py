"""The outer loop, driven by a trainer that only counts."""

import math
import os
import shutil
import signal
import types

import keras
import pytest
import tensorflow as tf

from dcse_tf.files import marked
from dcse_tf.training import hooks
from dcse_tf.training.checkpoint_store import CheckpointStore
from dcse_tf.training.controller import Controller, Hook, Stopped, StopSignals, TrainingError
from dcse_tf.training.hooks import Evaluate, Kept, Outcome, Report, SummaryWriter

METRICS = {"loss": 1.0, "gradient_norm": 1.0, "samples": 8.0, "tokens": 8.0, "cells": 8.0}
METRICS |= {"without_negatives": 0.0, "diverged": 0.0, "stopped": 0.0}


class CountingTrainer:
    """Its weight is the sum of the batches taken, of which the one of step n is n + 1."""

    def __init__(self, bad=(), stop_after=None, by=signal.SIGTERM):
        self.model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
        self.model.build((None, 1))
        self.weight = self.model.trainable_variables[0]
        self.weight.assign([[0.0]])
        self.optimizer = keras.optimizers.SGD(0.1)
        self.optimizer.build(self.model.trainable_variables)
        self._bad = set(bad)
        self._stop_after, self._signal = stop_after, by
        self.signals = StopSignals()

    def write(self, folder):
        (folder / "weight").write_text(str(self.step))

    @property
    def step(self):
        return int(self.optimizer.iterations.numpy())

    def train(self, iterator, num_steps):
        for done in range(1, num_steps + 1):
            step = int(self.optimizer.iterations.numpy())
            batch = next(iterator)
            assert batch == step + 1
            self.weight.assign_add([[float(batch)]])
            self.optimizer.iterations.assign(step + 1)
            if step + 1 == self._stop_after:
                os.kill(os.getpid(), self._signal)
                assert isinstance(self.signals.asked, tf.Variable)  # the inner loop reads it
                while not self.signals.asked.numpy():
                    pass
                return {**METRICS, "steps": float(done), "stopped": 1.0}
            if diverged := step in self._bad:
                self.weight.assign([[math.nan]])
                break
        return {**METRICS, "steps": float(done), "diverged": float(diverged)}


def _start(run_dir, trainer, evaluate=dict, *, steps=20, by="dev/score", eval_every=10, hooks=()):
    """A run that logs every 3 steps and saves every 5; what it ended with."""
    summaries = SummaryWriter(run_dir / "tensorboard")
    best = (run_dir / "encoder", by, trainer.write)
    scored = tf.Variable(-1, trainable=False, dtype=tf.int64)
    evaluation = Evaluate(eval_every, evaluate, summaries, scored, *best)
    state = tf.train.Checkpoint(model=trainer.model, optimizer=trainer.optimizer, scored=scored)
    options = types.SimpleNamespace(steps=steps, to_dict=dict)
    controller = Controller(
        trainer,
        lambda step: iter(range(step + 1, 1000)),
        CheckpointStore(run_dir, state, every=5),
        [evaluation, Report(3, summaries, options, lambda: 0.1), *hooks],
        steps=steps,
        signals=trainer.signals,
    )
    controller.run()
    return evaluation.outcome


def _weight(trainer):
    return float(trainer.weight.numpy()[0, 0])


def test_every_batch_is_taken_once_and_the_run_goes_on_where_it_was_saved(tmp_path):
    _start(tmp_path, CountingTrainer(), steps=7)
    trainer = CountingTrainer()
    _start(tmp_path, trainer, steps=20)
    assert _weight(trainer) == sum(range(1, 21))
    ended = CountingTrainer()
    _start(tmp_path, ended, steps=12)  # fewer than it has: nothing to do
    assert _weight(ended) == sum(range(1, 21))


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_it_came_in_and_the_evaluation_is_not_lost(tmp_path, by):
    scored, found = [], signal.signal(by, signal.SIG_IGN)  # found: of an earlier test's Spark
    trainer = CountingTrainer(stop_after=10, by=by)

    def evaluate():
        scored.append(trainer.step)
        if trainer.step == 20:
            os.kill(os.getpid(), by)
            while not trainer.signals.signal:
                pass
        return {"dev/score": 1}

    with pytest.raises(Stopped, match=f"stopped by {by.name} at step 10 of 20, which is saved"):
        _start(tmp_path, trainer, evaluate)
    assert scored == [0]
    assert signal.signal(by, found) is signal.SIG_IGN
    trainer = CountingTrainer()
    with pytest.raises(Stopped, match=f"stopped by {by.name} at step 20 of 20, which is saved"):
        _start(tmp_path, trainer, evaluate)
    assert scored == [0, 10, 20]
    assert _weight(trainer) == sum(range(1, 21))


def test_a_loss_that_diverges_ends_the_run_and_names_the_step(tmp_path):
    with pytest.raises(TrainingError, match=r"the step after 13; .*step-000000010") as caught:
        _start(tmp_path, CountingTrainer(bad=[13]))
    assert "lower `learning_rate` in another `run_dir`" in str(caught.value)
    with pytest.raises(TrainingError, match="there is no checkpoint yet"):
        _start(tmp_path / "other", CountingTrainer(bad=[2]))


def test_hooks_are_called_at_their_own_boundaries_and_told_of_all_steps(tmp_path):
    called = []

    class Calls(Hook):
        def begin(self, step, resumed):
            called.append(("begin", step, resumed))

        def at_boundary(self, step):
            called.append(("boundary", step))

        def after_steps(self, step, steps, seconds, metrics):
            called.append(("steps", step, steps))

        def end(self, step):
            called.append(("end", step))

    _start(tmp_path, CountingTrainer(), steps=6, hooks=[Calls(4)])
    # Boundaries: 3 and 6 of the report, 4 of the hook, 5 of the checkpoints.
    assert called == [
        ("begin", 0, False),
        ("boundary", 0),
        *(("steps", 3, 3), ("steps", 4, 1), ("boundary", 4)),
        *(("steps", 5, 1), ("steps", 6, 1), ("boundary", 6)),
        ("end", 6),
    ]
    del called[:]
    _start(tmp_path, CountingTrainer(), steps=6, hooks=[Calls(4)])
    assert called == [("begin", 6, True), ("boundary", 6), ("end", 6)]


def test_an_evaluation_comes_before_the_checkpoint_of_its_step(tmp_path):
    """Else a run that is cut off between the two would evaluate the step twice, or never."""
    trainer = CountingTrainer()
    checkpoints = []

    def evaluate():
        checkpoints.append(sorted(path.name for path in tmp_path.glob("checkpoints/*")))
        return {"dev/score": 1.0}

    _start(tmp_path, trainer, evaluate, steps=10)
    assert checkpoints == [[], ["step-000000005"]]


def _score(run_dir, by_step, trainer=None, by="dev/score", **settings):
    """What a run with these dev scores ended with, and the steps at which they were asked for."""
    trainer, asked = trainer or CountingTrainer(), []

    def evaluate():
        asked.append(trainer.step)
        return {by: by_step[trainer.step]}

    return _start(run_dir, trainer, evaluate, by=by, **settings), asked


@pytest.mark.parametrize(
    ("metric", "by_step", "best"),
    [
        ("dev/score", {0: 1.0, 5: 7.0, 10: 3.0, 15: 7.0, 20: 5.0}, 5),  # the first of equal ones
        ("dev/loss", {0: 9.0, 5: 2.0, 10: 3.0, 15: 4.0, 20: 8.0}, 5),
        ("dev/score", {0: 9.0, 5: 2.0, 10: 3.0, 15: 4.0, 20: 8.0}, 0),  # none is better
        ("dev/loss", {0: 9.0, 5: 2.0, 10: 3.0, 15: 4.0, 20: 1.0}, 20),
        ("dev/loss", {0: 2.0, 5: math.nan, 10: 5.0, 15: 4.0, 20: 3.0}, 0),
    ],
)
def test_the_encoder_of_the_best_evaluation_is_kept(tmp_path, metric, by_step, best):
    outcome, asked = _score(tmp_path, by_step, by=metric, eval_every=5)
    assert asked == [0, 5, 10, 15, 20]
    assert (tmp_path / "encoder/weight").read_text() == str(best)
    kept, start = {metric: by_step[best]}, {metric: by_step[0]}
    assert outcome.kept == Kept(best, metric, by_step[best], 20, by_step[20], kept, start)
    assert hooks.read_kept(tmp_path / "encoder") == outcome.kept
    assert outcome.scores == {metric: by_step[20]}


@pytest.mark.parametrize(
    ("step", "metric", "last", "said"),
    [
        (0, "dev/cosine_r1", 83.0, ["that the training started from", "heads are untrained"]),
        (5, "dev/cosine_r1", 83.0, ["heads are those of step 5, with dev/projected_r1 60, and"]),
        (5, "dev/cosine_r1", 55.0, []),  # they only got worse
        (5, "dev/projected_r1", 83.0, []),
        (0, "dev/map", None, ["that the training started from"]),  # no heads
    ],
)
def test_heads_that_were_kept_before_they_had_learnt_are_named(step, metric, last, said):
    own, end = ({"dev/projected_r1": value} if last else {} for value in (60.0, last))
    warnings = Outcome(end, Kept(step, metric, 70.0, 20, 60.0, own)).list_warnings()
    assert len(warnings) == len(said)
    assert all(part in warning for part, warning in zip(said, warnings))


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (
            Kept(5, "dev/cosine_r1", 79.3, 20, 77.0, {}, {"dev/cosine_r1": 74.7}),
            "step 5 of 20, dev/cosine_r1 (of 10, by the turns before it) 79.3 "
            "(74.7 at the start, 77 at the end)",
        ),
        (
            Kept(20, "dev/cosine_bidirectional_mrr", 79.3, 20, 79.3, {}, {}),
            "step 20 of 20, dev/cosine_bidirectional_mrr (of 10, by the turns before and after it) "
            "79.3",
        ),
        (Kept(0, "dev/map", 61.0, 9, 55.5, {}, {"dev/map": 61.0}), "dev/map 61 (55.5 at the end)"),
    ],
)
def test_a_run_ends_with_one_score_before_and_after_and_its_context(kept, said):
    assert kept.describe().endswith(said)


def test_without_scores_the_last_encoder_is_kept(tmp_path):
    outcome = _start(tmp_path, CountingTrainer())
    assert (tmp_path / "encoder/weight").read_text() == "20"
    assert outcome.kept == Kept(20, "", None, last_step=20)
    assert "no dev data" in outcome.kept.describe()


def _cut_off(run_dir, by_step, after):
    """A run that dies in the step after `after`, without a word."""
    trainer = CountingTrainer()
    train = trainer.train

    def die(*arguments):
        if trainer.step >= after:
            raise KeyboardInterrupt
        return train(*arguments)

    trainer.train = die
    with pytest.raises(KeyboardInterrupt):
        _score(run_dir, by_step, trainer, eval_every=5)


def test_a_resumed_run_replaces_the_kept_encoder_by_a_better_one_alone(tmp_path):
    by_step = {0: 1.0, 5: 7.0, 10: 3.0, 15: 6.0, 20: 5.0}
    _cut_off(tmp_path, by_step, after=12)
    assert (tmp_path / "checkpoints/step-000000010").is_dir()
    outcome, asked = _score(tmp_path, by_step, eval_every=5)
    assert asked == [15, 20]  # step 10 was evaluated before it was saved
    assert outcome.kept.step == 5
    assert (tmp_path / "encoder/weight").read_text() == "5"


@pytest.mark.parametrize("harm", [
    lambda f: (f / "weight").unlink(), lambda f: (f / "weight").write_text("6"), shutil.rmtree,
], ids=["lost", "damaged", "all lost"])  # fmt: skip
def test_a_kept_encoder_that_was_lost_is_replaced_also_at_the_end(tmp_path, caplog, harm):
    by_step = {0: 1.0, 10: 7.0, 20: 5.0}
    _score(tmp_path, by_step)
    harm(tmp_path / "encoder")
    outcome, _ = _score(tmp_path, by_step)
    assert outcome.kept == Kept(20, "dev/score", 5.0, 20, 5.0, {"dev/score": 5.0})
    assert (tmp_path / "encoder/weight").read_text() == "20"
    assert "the encoder that the run has kept is lost" in caplog.text


def test_a_kept_encoder_is_put_back_that_a_crash_left_while_it_was_replaced(tmp_path):
    """Killed between the two renamings of the encoder of step 20, which is better."""
    by_step = {0: 1.0, 5: 2.0, 10: 7.0}
    _cut_off(tmp_path, by_step, after=12)
    encoder = tmp_path / "encoder"
    encoder.rename(marked(encoder, "previous"))
    outcome, _ = _score(tmp_path, {**by_step, 20: 3.0})
    assert outcome.kept.step == 10
    assert (encoder / "weight").read_text() == "10"
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "encoder", "tensorboard"}


def test_what_an_attempt_before_the_first_checkpoint_kept_does_not_count(tmp_path):
    _cut_off(tmp_path, {0: 99.0}, after=0)
    outcome, _ = _score(tmp_path, {0: 1.0, 10: 7.0, 20: 5.0})
    assert outcome.kept.step == 10


def test_a_best_metric_that_the_dev_data_are_too_few_for_is_one_error(tmp_path):
    with pytest.raises(TrainingError, match=r"dev/score: .*`dev_fraction`, .* one of dev/other$"):
        _start(tmp_path, CountingTrainer(), lambda: {"dev/other": 50.0})


def test_the_scores_of_an_evaluation_are_a_table():
    scores = {"dev/map": 61.5, "dev/matching_r1": 5, "dev/matching_mrr": 20.5, "dev/cosine_r1": 7.5}
    assert hooks.format_scores(scores).splitlines() == [
        "  dev/matching_r1 5      dev/matching_mrr 20.5",
        "  dev/cosine_r1 7.5",
        "  dev/map 61.5",
    ]


def test_the_report_tells_shares_and_rates():
    told = {}
    summaries = types.SimpleNamespace(
        text=lambda *_: None, scalars=lambda prefix, values, step: told.update(values)
    )
    report = Report(3, summaries, types.SimpleNamespace(steps=9, to_dict=dict), lambda: 0.1)
    report.begin(0, False)
    counts = {"samples": 24.0, "tokens": 90.0, "cells": 120.0, "without_negatives": 6.0}
    report.after_steps(3, 3, 2.0, {"loss": 1.0, **counts})
    assert told == {
        "loss": 1.0, "learning_rate": 0.1, "samples_per_second": 12.0, "tokens_per_second": 45.0,
        "fill": 0.75, "step_seconds": pytest.approx(2 / 3), "without_negatives": 0.25,
    }  # fmt: skip
