"""The training job."""

import contextlib
import functools
import pathlib

import keras
import tensorflow as tf
from absl import logging

from dcse_tf.bert import checkpoints
from dcse_tf.data.records import check_records
from dcse_tf.data.stream import Stream, list_sessions
from dcse_tf.files import lock_folder
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.training.advice import advise
from dcse_tf.training.best_encoder import BestEncoder
from dcse_tf.training.build import Training, build_training, read_inputs
from dcse_tf.training.changes import ShowChanges
from dcse_tf.training.checkpoint_store import CheckpointStore
from dcse_tf.training.controller import (
    Boundaries,
    Checkpoints,
    Controller,
    Divergence,
    Hook,
    ReadCheckpoints,
    StopSignals,
)
from dcse_tf.training.dev_evaluation import DevEvaluation
from dcse_tf.training.hooks import Evaluate, Outcome, Profile, Report
from dcse_tf.training.run_directory import begin_run, describe_inputs, record_corpus
from dcse_tf.training.summaries import SummaryWriter
from dcse_tf.training.tensorboard import TensorBoardShowcase
from dcse_tf.training.trainer import divide_cpu, make_strategy
from dcse_tf.training.workers import name_lost_workers
from dcse_tf.worker import Worker, read_worker


def train(options: TrainOptions) -> Outcome | None:
    """Trains, from the last checkpoint of the run directory if there is one.

        train(TASKS["simcse"].options(data_dir="data", encoder="package:bert", run_dir="run"))

    Args:
        options: the options of a task.

    Returns:
        The dev scores of the last step, and the step and score of the kept encoder. None on workers
        other than the chief, which alone evaluates and writes (see `workers`).

    Raises:
        InputError: data or checkpoint cannot be used, or an option or input differs from those that
            the run was started with.
        OptionError: an option cannot be used.
        TrainingError: the loss diverged.
        LockedError: another job is using the run directory.
        Stopped: a signal stopped the run.
    """
    worker = read_worker()
    with contextlib.ExitStack() as stack:
        if worker.is_chief:
            remedy = "wait for it, or give another `run_dir`"
            stack.enter_context(lock_folder(pathlib.Path(options.run_dir), remedy))
        stack.enter_context(name_lost_workers(worker))
        return _train(options, worker)


def _train(options: TrainOptions, worker: Worker) -> Outcome | None:
    divide_cpu(options.logical_cpus)  # first, because reading the inputs may run operations
    inputs = read_inputs(options)
    resolved = options.resolve(inputs.manifest, inputs.positions)
    strategy = make_strategy(options.logical_cpus, options.deterministic)
    content = describe_inputs(options, inputs.manifest, inputs.folder)
    resolved = begin_run(resolved, options, content, strategy.num_replicas_in_sync, worker.is_chief)

    signals = StopSignals()
    training = build_training(resolved, inputs, strategy=strategy, stop_asked=signals.asked)
    if worker.is_chief:
        record_corpus(pathlib.Path(resolved.run_dir), inputs.manifest)
        _log_plan(training)
    scored = tf.Variable(-1, trainable=False, dtype=tf.int64)
    hooks = _make_hooks(training, scored) if worker.is_chief else _follow_hooks(training)
    controller = _make_controller(training, hooks, scored, signals, worker)
    try:
        controller.run()
    except (
        *(tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError),
        UnicodeDecodeError,
    ):
        check_records(training.setup.data_dir, inputs.manifest)
        raise  # the data are intact
    return next((hook.outcome for hook in hooks if isinstance(hook, Evaluate)), None)


def _make_hooks(training: Training, scored: tf.Variable) -> list[Hook]:
    """The hooks of the chief worker, without the checkpoints."""
    options, setup = training.options, training.setup
    summaries = SummaryWriter(pathlib.Path(options.run_dir) / "tensorboard")
    dev = DevEvaluation(setup, training.model)
    showcase = TensorBoardShowcase(setup, dev, summaries)
    return [
        Evaluate(
            dev.evaluate,
            _make_best(training),
            options.eval_every,
            summaries,
            scored,
            showcase.after_evaluation,
        ),
        showcase,
        Report(
            summaries,
            options.log_every,
            options.steps,
            lambda: float(training.trainer.optimizer.learning_rate),
            advise,
        ),
        Profile(summaries.folder, options.profile_steps),
        ShowChanges(setup),
    ]


def _follow_hooks(training: Training) -> list[Hook]:
    """The hooks of another worker: they interrupt its steps at the boundaries of the chief's."""
    options = training.options
    return [
        Boundaries(options.eval_every),
        Boundaries(options.log_every),
        Profile(None, options.profile_steps),
    ]


def _make_best(training: Training) -> BestEncoder:
    options = training.options
    return BestEncoder(
        pathlib.Path(options.run_dir) / checkpoints.ENCODER_FOLDER,
        options.best_metric,
        options.best_metric.removeprefix("dev/") in training.spec.lower_is_better,
        functools.partial(training.spec.write_encoder, training.setup, training.model),
    )


def _make_controller(
    training: Training,
    hooks: list[Hook],
    scored: tf.Variable,
    signals: StopSignals,
    worker: Worker,
) -> Controller:
    options, trainer = training.options, training.trainer
    run_dir = pathlib.Path(options.run_dir)

    def list_batch(step: int) -> list[str]:
        stream = Stream(options.global_batch_size, options.seed, first_step=step)
        return list_sessions(training.setup.corpus, training.spec.samples, stream)

    divergence = Divergence(
        run_dir,
        list_batch,
        loss_limit=options.loss_limit,
        skip=options.on_divergence == "skip",
        most=options.max_skipped,
        write=worker.is_chief,
    )
    state = tf.train.Checkpoint(
        model=training.list_state(), optimizer=trainer.optimizer, scored=scored
    )
    store = CheckpointStore(run_dir, state, options.keep_checkpoints)
    kind = Checkpoints if worker.is_chief else ReadCheckpoints
    return Controller(
        trainer,
        training.batches,
        kind(store, options.save_every, keep_start=divergence.skip),
        hooks,
        steps=options.steps,
        divergence=divergence,
        signals=signals,
        several=worker.count > 1,
    )


def _log_plan(training: Training) -> None:
    model, options = training.model, training.options
    logging.info(
        "%s: %d parameters, %d of them trained, on %d device(s)",
        model.name,
        model.count_params(),
        sum(int(keras.ops.size(v)) for v in model.trainable_variables),
        training.trainer.strategy.num_replicas_in_sync,
    )
    logging.info(
        "%d steps of %d samples: %.3g passes over the train split",
        options.steps,
        options.global_batch_size,
        options.epochs,
    )
    for warning in options.list_warnings(training.setup.manifest):
        logging.warning("%s", warning)
