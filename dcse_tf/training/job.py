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
from dcse_tf.files import atomic_file, lock_folder, write_json
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.training.best_encoder import BestEncoder
from dcse_tf.training.build import Training, build_training, read_inputs
from dcse_tf.training.checkpoint_store import CheckpointStore
from dcse_tf.training.controller import Checkpoints, Controller, Hook, StopSignals
from dcse_tf.training.dev_evaluation import DevEvaluation
from dcse_tf.training.hooks import Evaluate, Hyperparameters, Outcome, Report
from dcse_tf.training.run_directory import begin_run, describe_inputs, record_corpus
from dcse_tf.training.summaries import SummaryWriter
from dcse_tf.training.trainer import divide_cpu, make_strategy
from dcse_tf.training.workers import name_lost_workers
from dcse_tf.worker import Worker, read_worker

DIVERGED_FILE = "diverged_batch.json"
_SHOWN = 5  # sessions of a diverged batch in the message


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
    scored = tf.Variable(-1, trainable=False, dtype=tf.int64)
    if worker.is_chief:
        record_corpus(pathlib.Path(resolved.run_dir), inputs.manifest)
        _log_plan(training)
        hooks = _make_hooks(training, scored)
    else:
        # Another worker's steps are interrupted where the chief's are.
        hooks = [Hook(resolved.eval_every), Hook(resolved.log_every)]
    controller = _make_controller(training, hooks, scored, signals, worker)
    try:
        controller.run()
    except (
        *(tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError),
        UnicodeDecodeError,
    ):
        check_records(training.setup.corpus.folder, inputs.manifest)
        raise  # the data are intact
    return next((hook.outcome for hook in hooks if isinstance(hook, Evaluate)), None)


def _make_hooks(training: Training, scored: tf.Variable) -> list[Hook]:
    """The hooks of the chief worker, without the checkpoints."""
    options, spec = training.options, training.spec
    summaries = SummaryWriter(pathlib.Path(options.run_dir) / "tensorboard")
    best = BestEncoder(
        pathlib.Path(options.run_dir) / checkpoints.ENCODER_FOLDER,
        options.best_metric,
        options.best_metric.removeprefix("dev/") in spec.lower_is_better,
        functools.partial(spec.write_encoder, training.setup, training.objective),
    )
    dev = DevEvaluation(training.setup, training.objective)
    rate = training.trainer.optimizer
    return [
        Evaluate(dev.evaluate, best, options.eval_every, summaries, scored),
        Hyperparameters(options, summaries),
        Report(summaries, options.log_every, options.steps, lambda: float(rate.learning_rate)),
    ]


def _make_controller(
    training: Training,
    hooks: list[Hook],
    scored: tf.Variable,
    signals: StopSignals,
    worker: Worker,
) -> Controller:
    options, optimizer = training.options, training.trainer.optimizer
    state = tf.train.Checkpoint(model=training.list_state(), optimizer=optimizer, scored=scored)
    store = CheckpointStore(pathlib.Path(options.run_dir), state, keep=2)
    return Controller(
        training.trainer,
        training.batches,
        Checkpoints(store, options.save_every, write=worker.is_chief),
        hooks,
        steps=options.steps,
        signals=signals,
        describe_batch=functools.partial(_describe_batch, training, worker),
        several=worker.count > 1,
    )


def _describe_batch(training: Training, worker: Worker, step: int) -> str:
    """Writes the sessions of a step, counted from 0, into a file, and names the first of them."""
    options = training.options
    stream = Stream(options.global_batch_size, options.seed, first_step=step)
    sessions = list(list_sessions(training.setup.corpus, training.spec.samples, stream))
    path = pathlib.Path(options.run_dir) / DIVERGED_FILE
    if worker.is_chief:
        with atomic_file(path) as partial:
            write_json(partial, {"step": step, "sessions": sessions})
    more = f", ... (all are in {path})" if len(sessions) > _SHOWN else ""
    return f"{len(sessions)} samples of the sessions {', '.join(sessions[:_SHOWN])}{more}"


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
