"""The training job."""

import contextlib
import dataclasses
import functools
import pathlib

import keras
import tensorflow as tf
from absl import logging

from dcse_tf.arguments import read_flags
from dcse_tf.bert.checkpoints import ENCODER_FOLDER
from dcse_tf.data.records import check_records
from dcse_tf.files import lock_folder
from dcse_tf.options import OptionError
from dcse_tf.tasks.train_options import TrainOptions
from dcse_tf.training.build import Training, build_training, read_setup
from dcse_tf.training.checkpoint_store import CheckpointStore
from dcse_tf.training.controller import Controller, Hook, StopSignals, name_lost_workers
from dcse_tf.training.dev_evaluation import make_dev_evaluation
from dcse_tf.training.hooks import Evaluate, Outcome, Report, SummaryWriter
from dcse_tf.training.merge import MergeOptions, merge
from dcse_tf.training.run_directory import begin_run, describe_inputs, record_corpus
from dcse_tf.training.trainer import divide_cpu, make_strategy, read_worker
from dcse_tf.training.verdict import give_verdict


def train(options: TrainOptions, judged: bool = True) -> Outcome | None:
    """Trains, from the last checkpoint of the run directory if there is one; see `dcse_tf.train`.

        train(TASKS["simcse"].options(data_dir="data", encoder="package:bert", run_dir="run"))

    With `average_with`, trains by that preset, too, not `judged` by a verdict, and averages both.
    Returns None on workers other than the chief, which alone evaluates and writes.
    """
    worker, run_dir = read_worker(), pathlib.Path(options.run_dir)
    other, average = None, ""
    if preset := getattr(options, "average_with", ""):
        try:
            flags = read_flags(TrainOptions, "train", [f"--preset={preset}"])[1]
            if (task := flags.get("task", options.task)) != options.task:
                raise OptionError(f"its task is {task}; expected a preset of this task")
            other = options.replace(**flags | {"run_dir": run_dir / preset, "average_with": ""})
        except OptionError as error:
            options.refuse("average_with", str(error))

    with contextlib.ExitStack() as stack:
        if worker.is_chief:
            stack.enter_context(lock_folder(run_dir, "wait for it, or give another `run_dir`"))
        stack.enter_context(name_lost_workers(worker))
        divide_cpu(options.logical_cpus)  # first, because reading the inputs may run operations
        setup = read_setup(options)
        strategy = make_strategy(options.logical_cpus, options.deterministic)
        resolved = begin_run(setup.options, options, describe_inputs(setup), worker.is_chief)
        if other:
            train(other, False)  # as nothing can refuse the run itself any more

        setup, signals = dataclasses.replace(setup, options=resolved), StopSignals()
        training = build_training(resolved, setup, strategy=strategy, stop_asked=signals.asked)
        scored = tf.Variable(-1, trainable=False, dtype=tf.int64)
        state = tf.train.Checkpoint(
            model=training.list_state(), optimizer=training.trainer.optimizer, scored=scored
        )
        # Another worker's steps are interrupted where the chief's are.
        hooks = [Hook(resolved.eval_every), Hook(resolved.log_every)]
        if worker.is_chief:
            record_corpus(run_dir, setup.manifest)
            hooks = _make_hooks(training, run_dir, scored)
        store = CheckpointStore(run_dir, state, every=resolved.save_every, write=worker.is_chief)
        parts = training.trainer, training.batches, store, hooks, resolved.steps, signals
        unread = tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError
        try:
            Controller(*parts, several=worker.count > 1).run()
        except (*unread, UnicodeDecodeError):
            check_records(setup.data_dir, setup.manifest)
            raise  # the data are intact
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError("in training; try a smaller `global_batch_size`") from error
        outcome = next((hook.outcome for hook in hooks if isinstance(hook, Evaluate)), None)
        if outcome and other:
            trained, average = f"{run_dir}/encoder", f"{run_dir}/averaged"
            both = MergeOptions(start=other.run_dir, trained=trained, output_dir=average)
            merge(both.replace(share=0.5, overwrite=True))
            logging.info("the average with the encoder of %s is in %s", other.run_dir, average)
        if not judged or not outcome or not (outcome.kept.step or average):
            return outcome
        return dataclasses.replace(outcome, verdict=give_verdict(setup, run_dir, average))


def _make_hooks(training: Training, run_dir: pathlib.Path, scored: tf.Variable) -> list[Hook]:
    """The hooks of the chief worker, without the checkpoints; logs what will be trained."""
    model, optimizer = training.model, training.trainer.optimizer
    options, trained = training.setup.options, sum(map(keras.ops.size, model.trainable_variables))
    counts = model.count_params(), int(trained), training.stream.replicas
    logging.info("%s: %d parameters, %d of them trained, on %d device(s)", model.name, *counts)
    steps = options.steps, options.global_batch_size, options.epochs
    logging.info("%d steps of %d samples: %.3g passes over the train split", *steps)
    summaries = SummaryWriter(run_dir / "tensorboard")
    evaluate, metric = make_dev_evaluation(training), options.best_metric
    folder, write = run_dir / ENCODER_FOLDER, functools.partial(options.write_encoder, training)
    evaluation = Evaluate(options.eval_every, evaluate, summaries, scored, folder, metric, write)
    report = Report(options.log_every, summaries, options, lambda: float(optimizer.learning_rate))
    return [evaluation, report]
