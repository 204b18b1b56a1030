"""The training job."""

import functools
import pathlib

import keras
import tensorflow as tf
from absl import logging

from dcse_tf.data.manifest import FILE_NAME, read_manifest
from dcse_tf.data.records import check_records
from dcse_tf.data.stream import Stream, list_sessions
from dcse_tf.files import lock_folder
from dcse_tf.model import checkpoints
from dcse_tf.tasks.options import TrainOptions
from dcse_tf.training.build import Inputs, Training, build_training, read_inputs
from dcse_tf.training.changes import ShowChanges
from dcse_tf.training.checkpoint_store import BestEncoder, CheckpointStore
from dcse_tf.training.controller import Checkpoints, Controller, Divergence, StopSignals
from dcse_tf.training.dev_evaluation import DevEvaluation, describe_trouble
from dcse_tf.training.hooks import Evaluate, Outcome, Profile, Report
from dcse_tf.training.run_directory import begin_run, describe_inputs
from dcse_tf.training.summaries import SummaryWriter
from dcse_tf.training.tensorboard import TensorBoardShowcase
from dcse_tf.training.trainer import make_strategy


def train(options: TrainOptions) -> Outcome:
    """Trains, from the last checkpoint of the run directory if there is one.

        train(TASKS["simcse"].options(data_dir="data", encoder="package:bert", run_dir="run"))

    Args:
        options: of a task.

    Returns:
        The dev scores of the last step, and where the encoder comes from that the run leaves.

    Raises:
        InputError: data or checkpoint cannot be used.
        OptionError: an option cannot be used, or differs from those the run was begun with.
        TrainingError: the loss diverged.
        LockedError: another job is at work in the run directory.
        Stopped: a signal stopped it.
    """
    with lock_folder(pathlib.Path(options.run_dir), "wait for it, or give another `run_dir`"):
        return _train(options)


def _train(options: TrainOptions) -> Outcome:
    inputs = read_inputs(options)
    resolved = options.resolve(inputs.manifest, inputs.positions)
    strategy = make_strategy(options.logical_cpus, options.deterministic)
    content = describe_inputs(inputs.manifest, _list_files(options, inputs))
    resolved = begin_run(resolved, options, content, strategy.num_replicas_in_sync)

    signals = StopSignals()
    training = build_training(resolved, inputs, strategy=strategy, stop_asked=signals.asked)
    _log_model(training.model, strategy.num_replicas_in_sync)
    summaries = SummaryWriter(pathlib.Path(options.run_dir) / "tensorboard")
    dev = DevEvaluation(training.setup, training.model)
    showcase = TensorBoardShowcase(training.setup, dev, summaries)
    evaluation = Evaluate(
        dev.evaluate, _make_best(training), options.eval_every, summaries, [showcase]
    )
    controller = _make_controller(training, evaluation, showcase, summaries, signals)
    try:
        controller.run()
    except (
        *(tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError),
        UnicodeDecodeError,
    ):
        check_records(training.setup.data_dir, inputs.manifest)
        if pairs := _find_pairs(options):
            check_records(pairs, read_manifest(pairs))
        raise  # the data are whole
    assert evaluation.outcome
    return evaluation.outcome


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
    evaluation: Evaluate,
    showcase: TensorBoardShowcase,
    summaries: SummaryWriter,
    signals: StopSignals,
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
    )
    state = tf.train.Checkpoint(
        model=training.list_state(), optimizer=trainer.optimizer, scored=evaluation.scored
    )
    store = CheckpointStore(run_dir, state, options.keep_checkpoints)
    report = Report(
        summaries,
        options.log_every,
        options.steps,
        lambda: float(trainer.optimizer.learning_rate),
        describe_trouble,
    )
    return Controller(
        trainer,
        training.batches,
        Checkpoints(store, options.save_every, keep_start=divergence.skip),
        [
            *(evaluation, showcase, report),
            Profile(summaries.folder, options.profile_steps),
            ShowChanges(training.setup),
        ],
        steps=options.steps,
        divergence=divergence,
        signals=signals,
    )


def _list_files(options: TrainOptions, inputs: Inputs) -> dict[str, pathlib.Path]:
    """The files besides the corpus that a run starts from, by what they are."""
    files = checkpoints.list_weight_files(inputs.folder) if inputs.folder else []
    found = {f"the encoder's {path.name}": path for path in files}
    for name in ("token_vectors", "token_index"):
        if path := getattr(options, name):
            found[f"`{name}`"] = pathlib.Path(path)
    if pairs := _find_pairs(options):
        found["`neighbours_dir`"] = pairs / FILE_NAME
    return found


def _find_pairs(options: TrainOptions) -> pathlib.Path | None:
    """The corpus of pairs that a task reads beside its own."""
    # Only some tasks have the option.
    name = getattr(options, "neighbours_dir", "")
    return pathlib.Path(name) if name else None


def _log_model(model: keras.Model, replicas: int) -> None:
    trained = sum(int(keras.ops.size(v)) for v in model.trainable_variables)
    logging.info(
        "%s: %d parameters, %d of them trained, on %d device(s)",
        model.name,
        model.count_params(),
        trained,
        replicas,
    )
