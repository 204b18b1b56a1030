"""The training job."""

import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import keras_hub
import tensorflow as tf
from absl import logging

from dcse_tf.baselines.files import refuse_baseline
from dcse_tf.data.manifest import Manifest, read_manifest
from dcse_tf.data.prepare import VOCABULARY_FOLDER
from dcse_tf.data.records import check_records
from dcse_tf.data.stream import Stream, list_sessions
from dcse_tf.errors import InputError
from dcse_tf.files import lock_folder
from dcse_tf.model import bert, checkpoints
from dcse_tf.model import weights as bert_weights
from dcse_tf.model.bert import TokenCentering
from dcse_tf.model.checkpoints import refuse_maps
from dcse_tf.model.dialogue_cse import build_turn_attention, write_turn_attention
from dcse_tf.model.tokenizer import Vocabulary, read_vocabulary, write_vocabulary
from dcse_tf.model.vectors import fold_case, read_word_vectors
from dcse_tf.model.weights import compute_token_embeddings
from dcse_tf.options import OptionError
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.task import Setup
from dcse_tf.training.checkpoint_store import BestEncoder
from dcse_tf.training.controller import (
    Controller,
    Divergence,
    Outcome,
    Schedule,
    SkippedBatches,
    StopSignals,
)
from dcse_tf.training.dev_evaluation import DevEvaluation, describe_trouble
from dcse_tf.training.options import BEST_METRICS, ENCODER_SIZES, LOWER_IS_BETTER, TrainOptions
from dcse_tf.training.run_directory import begin_run, describe_inputs
from dcse_tf.training.tensorboard import TensorBoardShowcase
from dcse_tf.training.trainer import Trainer, WarmupDecay, build_optimizer, make_strategy


def train(config: TrainOptions) -> Outcome:
    """Trains, from the last checkpoint of the run directory if there is one.

    Raises:
        InputError: data or checkpoint cannot be used.
        OptionError: a setting cannot be used, or differs from those the run was begun with.
        TrainingError: the loss diverged.
        LockedError: another job is at work in the run directory.
        Stopped: a signal stopped it.
    """
    with lock_folder(pathlib.Path(config.run_dir), "wait for it, or give another `run_dir`"):
        return _train(config)


def _train(config: TrainOptions) -> Outcome:
    data_dir = pathlib.Path(config.data_dir)
    folder = checkpoints.resolve_checkpoint(config.encoder, "encoder") if config.encoder else None
    if folder:
        refuse_baseline(folder, "encoder")
        refuse_maps(folder, "encoder")
    vocabulary = read_vocabulary(folder or data_dir / VOCABULARY_FOLDER)
    manifest = read_manifest(data_dir, vocabulary.fingerprint())
    task = TASKS[config.task]
    given, config = config, fill_in(config, manifest)
    strategy = make_strategy(config.logical_cpus, config.deterministic)
    _check_devices(config, strategy.num_replicas_in_sync)
    inputs = describe_inputs(manifest, _list_files(config, folder))
    config = begin_run(config, given, inputs, strategy.num_replicas_in_sync)
    with strategy.scope():
        setup = _make_setup(config, data_dir, manifest, vocabulary, folder)
        model = task.build_model(setup)
        optimizer = build_optimizer(_make_schedule(config), config.weight_decay)
    signals = StopSignals()
    trainer = Trainer(
        strategy,
        model,
        optimizer,
        task.compute_loss,
        task.metric_names,
        config.clip_norm,
        config.jit_compile,
        signals.asked,
        config.seed,
    )
    _log_model(model, strategy.num_replicas_in_sync)
    controller = _make_controller(setup, trainer, signals, folder)
    try:
        return controller.run(f"```\n{json.dumps(config.to_dict(), indent=2, sort_keys=True)}\n```")
    except (
        *(tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError),
        UnicodeDecodeError,
    ):
        check_records(data_dir, manifest)
        raise  # the data are whole


def _check_devices(config: TrainOptions, replicas: int) -> None:
    if (config.global_batch_size or 0) % replicas:
        raise OptionError(
            f"`global_batch_size`={config.global_batch_size}: not divisible by {replicas} devices"
        )
    if config.center_tokens and config.jit_compile and replicas > 1:
        raise OptionError(
            f"`center_tokens` with `jit_compile` on {replicas} devices: the mean is over all of "
            "them, which a compiled step cannot ask; leave one of the flags out"
        )


def _make_controller(
    setup: Setup, trainer: Trainer, signals: StopSignals, folder: pathlib.Path | None
) -> Controller:
    config, strategy = setup.config, trainer.strategy
    task, run_dir = TASKS[config.task], pathlib.Path(config.run_dir)

    def start_at(step: int) -> Iterator[Any]:
        return iter(
            strategy.distribute_datasets_from_function(
                lambda _: task.make_dataset(setup, step, strategy.num_replicas_in_sync)
            )
        )

    def list_batch(step: int) -> list[str]:
        stream = Stream(config.global_batch_size or 0, config.seed, first_step=step)
        return list_sessions(setup.corpus, task.samples, stream)

    evaluation = DevEvaluation(setup, trainer.model)
    metric = config.best_metric or BEST_METRICS[config.task]
    best = BestEncoder(
        run_dir / checkpoints.ENCODER_FOLDER,
        metric,
        metric in LOWER_IS_BETTER,
        functools.partial(_write_encoder, setup, folder),
    )
    return Controller(
        trainer,
        start_at,
        evaluate=evaluation.evaluate,
        best=best,
        advise=describe_trouble,
        schedule=_outer_schedule(config),
        divergence=Divergence(
            config.loss_limit, config.on_divergence == "skip", config.max_skipped
        ),
        skipped=SkippedBatches(run_dir, list_batch),
        signals=signals,
        run_dir=run_dir,
        showcase=TensorBoardShowcase(setup, evaluation),
    )


def fill_in(config: TrainOptions, manifest: Manifest) -> TrainOptions:
    """The configuration with every default, as this corpus has it."""
    return config.with_defaults(
        TASKS[config.task].epoch_size(manifest.splits["train"]),
        manifest.max_sequence_length,
    )


def _list_files(config: TrainOptions, folder: pathlib.Path | None) -> dict[str, pathlib.Path]:
    """The files besides the corpus that a run starts from, by what they are."""
    files = checkpoints.list_weight_files(folder) if folder else []
    found = {f"the encoder's {path.name}": path for path in files}
    for name in ("token_vectors", "token_index"):
        if path := getattr(config, name):
            found[f"`{name}`"] = pathlib.Path(path)
    return found


def _make_setup(
    config: TrainOptions,
    data_dir: pathlib.Path,
    manifest: Manifest,
    vocabulary: Vocabulary,
    folder: pathlib.Path | None,
) -> Setup:
    tensors = bert_weights.read_tensors(folder) if folder else {}
    if folder:
        backbone = bert.load_backbone(folder, config.dropout, config.compute_dtype)
    else:
        layers, dim = ENCODER_SIZES[config.encoder_size]
        bert_config = bert.make_bert_config(layers, dim, len(vocabulary.tokens))
        backbone = bert.build_backbone(bert_config, config.dropout, config.compute_dtype)
        bert.initialize_weights(backbone.trainable_variables, config.seed)
        if config.token_vectors:
            _start_from_vectors(backbone, vocabulary, config)
    if manifest.max_sequence_length > backbone.max_sequence_length:
        raise InputError(
            f"`data_dir`={data_dir}: utterances of up to {manifest.max_sequence_length} tokens, "
            f"but the encoder has {backbone.max_sequence_length} positions"
        )
    if config.longest_context(manifest.max_sequence_length) > backbone.max_sequence_length:
        raise OptionError(
            f"`context_tokens`={config.context_tokens}: the encoder has "
            f"{backbone.max_sequence_length} positions"
        )
    if backbone.vocabulary_size < len(vocabulary.tokens):
        raise InputError(
            f"{folder}: {backbone.vocabulary_size} token embeddings for "
            f"{len(vocabulary.tokens)} entries of vocab.txt"
        )
    bert.freeze(backbone, config.freeze_layers or 0, bool(config.freeze_embeddings))
    centering = TokenCentering(dtype="float32") if config.center_tokens else None
    attention = None
    if config.task == "dialogue_cse" and config.aggregation != "mean":
        attention = build_turn_attention(config.aggregation, backbone.hidden_dim, config.seed + 2)
    encoder = bert.build_bert_encoder(backbone, centering)
    return Setup(
        config, data_dir, manifest, vocabulary, backbone, encoder, tensors, centering, attention
    )


def _start_from_vectors(
    backbone: keras_hub.models.BertBackbone, vocabulary: Vocabulary, config: TrainOptions
) -> None:
    """Sets the token embeddings from a file of word or character vectors."""
    path = pathlib.Path(config.token_vectors)
    index = pathlib.Path(config.token_index) if config.token_index else None
    weights = backbone.get_layer("token_embedding").embeddings
    vectors = read_word_vectors(path, index)
    if vocabulary.lowercase:
        vectors = fold_case(vectors)
    try:
        embeddings, count = compute_token_embeddings(vectors, vocabulary, weights.numpy())
    except InputError as error:
        raise InputError(f"`token_vectors`={path}: {error}") from error
    weights.assign(embeddings)
    total = len(vocabulary.tokens)
    logging.info(
        "%d of %d entries of the vocabulary (%.1f%%) start from a vector of %s (%d wide, the "
        "encoder %d)",
        count,
        total,
        100.0 * count / total,
        path,
        vectors.matrix.shape[1],
        embeddings.shape[1],
    )


def _make_schedule(config: TrainOptions) -> WarmupDecay:
    assert config.learning_rate is not None
    assert config.warmup_steps is not None
    return WarmupDecay(config.learning_rate, config.warmup_steps, config.decay, config.steps)


def _outer_schedule(config: TrainOptions) -> Schedule:
    assert config.steps is not None
    return Schedule(
        steps=config.steps,
        log_every=config.log_every,
        save_every=config.save_every,
        eval_every=config.eval_every,
        keep_checkpoints=config.keep_checkpoints,
        profile_steps=config.profile_steps,
    )


def _log_model(model: keras.Model, replicas: int) -> None:
    trained = sum(int(keras.ops.size(v)) for v in model.trainable_variables)
    logging.info(
        "%s: %d parameters, %d of them trained, on %d device(s)",
        model.name,
        model.count_params(),
        trained,
        replicas,
    )


def _write_encoder(setup: Setup, source: pathlib.Path | None, target: pathlib.Path) -> None:
    """Writes the encoder as a checkpoint folder like any other, for `encoder` and `model`.

    Args:
        setup: of the run.
        source: the checkpoint that it started from, if any.
        target: an empty folder.
    """
    backbone = setup.backbone
    if source:
        bert_config = checkpoints.read_config(source)
    else:
        bert_config = bert.make_bert_config(
            backbone.num_layers, backbone.hidden_dim, backbone.vocabulary_size
        )
    mean = setup.centering.mean().numpy() if setup.centering else None
    bert.save_backbone(target, backbone, bert_config, mean)
    if setup.attention:
        write_turn_attention(target, setup.attention)
    write_vocabulary(target, setup.vocabulary)
    checkpoints.write_max_sequence_length(target, setup.manifest.max_sequence_length)
