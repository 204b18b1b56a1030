"""The training job."""

import contextlib
import functools
import pathlib

import keras
import tensorflow as tf
from absl import logging

from dcse_tf.bert.checkpoints import ENCODER_FOLDER
from dcse_tf.data.records import check_records
from dcse_tf.files import lock_folder
from dcse_tf.tasks.train_options import TrainOptions
from dcse_tf.training.best_encoder import BestEncoder
from dcse_tf.training.build import Training, build_training, read_inputs
from dcse_tf.training.checkpoint_store import CheckpointStore
from dcse_tf.training.controller import Controller, Hook, StopSignals, name_lost_workers
from dcse_tf.training.dev_evaluation import DevEvaluation
from dcse_tf.training.hooks import Evaluate, Outcome, Report, SummaryWriter
from dcse_tf.training.run_directory import begin_run, describe_inputs, record_corpus
from dcse_tf.training.trainer import divide_cpu, make_strategy
from dcse_tf.worker import Worker, read_worker


def train(options: TrainOptions) -> Outcome | None:
    """Trains, from the last checkpoint of the run directory if there is one.

        train(TASKS["simcse"].options(data_dir="data", encoder="package:bert", run_dir="run"))

    Args:
        options: the options of a task.

    Returns:
        The dev scores of the last step, and the step and score of the kept encoder. None on workers
        other than the chief, which alone evaluates and writes.

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
    resolved = begin_run(resolved, options, content, worker.is_chief)

    signals = StopSignals()
    training = build_training(resolved, inputs, strategy=strategy, stop_asked=signals.asked)
    run_dir, optimizer = pathlib.Path(resolved.run_dir), training.trainer.optimizer
    scored = tf.Variable(-1, trainable=False, dtype=tf.int64)
    state = tf.train.Checkpoint(model=training.list_state(), optimizer=optimizer, scored=scored)
    # Another worker's steps are interrupted where the chief's are.
    hooks = [Hook(resolved.eval_every), Hook(resolved.log_every)]
    if worker.is_chief:
        record_corpus(run_dir, inputs.manifest)
        _log_plan(training)
        hooks = _make_hooks(training, run_dir, scored)
    controller = Controller(
        training.trainer,
        training.batches,
        CheckpointStore(run_dir, state, every=resolved.save_every, write=worker.is_chief),
        hooks,
        steps=resolved.steps,
        signals=signals,
        several=worker.count > 1,
    )
    try:
        controller.run()
    except (
        *(tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError),
        UnicodeDecodeError,
    ):
        check_records(training.setup.corpus.folder, inputs.manifest)
        raise  # the data are intact
    return next((hook.outcome for hook in hooks if isinstance(hook, Evaluate)), None)


def _make_hooks(training: Training, run_dir: pathlib.Path, scored: tf.Variable) -> list[Hook]:
    """The hooks of the chief worker, without the checkpoints."""
    options, spec = training.options, training.spec
    summaries = SummaryWriter(run_dir / "tensorboard")
    best = BestEncoder(
        run_dir / ENCODER_FOLDER,
        options.best_metric,
        options.best_metric.removeprefix("dev/") in spec.lower_is_better,
        functools.partial(spec.write_encoder, training.setup, training.objective),
    )
    dev = DevEvaluation(training.setup, training.objective)
    rate = training.trainer.optimizer
    return [
        Evaluate(options.eval_every, dev.evaluate, best, summaries, scored),
        Report(options.log_every, summaries, options, lambda: float(rate.learning_rate)),
    ]


def _log_plan(training: Training) -> None:
    model, options = training.model, training.options
    logging.info(
        "%s: %d parameters, %d of them trained, on %d device(s)",
        model.name,
        model.count_params(),
        sum(int(keras.ops.size(v)) for v in model.trainable_variables),
        training.stream.replicas,
    )
    logging.info(
        "%d steps of %d samples: %.3g passes over the train split",
        *(options.steps, options.global_batch_size, options.epochs),
    )
    for warning in options.list_warnings(training.setup.manifest):
        logging.warning("%s", warning)
