"""Builds a training from its options: encoder, model, optimizer, inner loop and batches."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import keras_hub
import tensorflow as tf

from dcse_tf.baselines.registry import refuse_baseline
from dcse_tf.bert import bert, checkpoints, sentence_modules
from dcse_tf.bert import weights as bert_weights
from dcse_tf.bert.families import is_relative
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.data.manifest import Manifest, read_manifest
from dcse_tf.data.prepare import VOCABULARY_FOLDER
from dcse_tf.data.stream import Stream
from dcse_tf.errors import InputError
from dcse_tf.options import OptionError
from dcse_tf.tasks import TASKS
from dcse_tf.tasks.objective import START_ENCODER, Objective, build_objective, make_layout
from dcse_tf.tasks.spec import Setup, TaskSpec
from dcse_tf.tasks.train_options import ENCODER_SIZES, TrainOptions
from dcse_tf.training.trainer import Trainer, WarmupDecay, build_optimizer, make_strategy
from dcse_tf.worker import read_worker


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What training reads before it builds anything."""

    folder: pathlib.Path | None  # of the checkpoint; None for random weights
    vocabulary: Vocabulary  # the checkpoint's or, without one, the corpus'; if needed with [EOT]
    positions: int  # the longest sequence that the encoder can read, in tokens
    manifest: Manifest  # of the corpus, which was made with this vocabulary


@dataclasses.dataclass(frozen=True)
class Training:
    """Everything needed to train, ready for the first step; see `build_training`."""

    spec: TaskSpec
    setup: Setup  # what the model was built from, with resolved options
    objective: Objective
    trainer: Trainer  # the inner loop, with the optimizer and the devices
    stream: Stream

    @property
    def model(self) -> keras.Model:
        """The training model."""
        return self.objective.model

    @property
    def options(self) -> TrainOptions:
        """The resolved options."""
        return self.setup.options

    def list_state(self) -> list[keras.Variable]:
        """The variables to save in a checkpoint: the model's, without frozen weights.

        Those of the backbone and of the copy of the starting encoder are read from `encoder` again.
        """
        backbone = self.setup.backbone
        frozen = [v for v in backbone.variables if not v.trainable] if backbone else []
        for layer in self.model.layers:
            if layer.name == START_ENCODER:
                frozen += layer.variables
        there = {id(variable) for variable in frozen}
        return [variable for variable in self.model.variables if id(variable) not in there]

    def dataset(self, first_step: int = 0) -> tf.data.Dataset:
        """The batches from a step (from 0) on; each step has one per device of this process."""
        stream = dataclasses.replace(self.stream, first_step=first_step)
        return self.objective.make_batches(stream, "train")

    def batches(self, first_step: int = 0) -> Iterator[Any]:
        """An endless iterator over the batches from a step on, as `trainer.train` takes it."""
        # With a dataset known to be infinite, the replicas need not agree at every step on whether
        # all of them have a next batch.
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        distribute = self.trainer.strategy.distribute_datasets_from_function
        return iter(distribute(lambda _: self.dataset(first_step).apply(endless)))


def read_inputs(options: TrainOptions) -> Inputs:
    """Finds the checkpoint and reads the corpus' manifest.

    Raises:
        InputError: checkpoint or corpus cannot be used, or they do not fit together.
    """
    folder, positions = None, bert.make_bert_config(1, 64, 1)["max_position_embeddings"]
    data_dir, reads_pairs = pathlib.Path(options.data_dir), TASKS[options.task].end_of_turn
    if options.encoder:
        folder = checkpoints.resolve_checkpoint(options.encoder, "encoder")
        refuse_baseline(folder, "encoder")
        sentence_modules.refuse_maps(folder, "encoder")
    # The encoder must always see the prefix that the corpus was prepared with.
    prefix = sentence_modules.read_prefix(data_dir / VOCABULARY_FOLDER)
    vocabulary = read_vocabulary(folder or data_dir / VOCABULARY_FOLDER).with_prefix(prefix)
    manifest = read_manifest(data_dir, vocabulary.fingerprint())
    if reads_pairs and prefix:
        # Turns are read without their prefix, which must not change their tokens.
        with_prefix, without = vocabulary.make_split()([f"{prefix}a", "a"])
        if with_prefix[vocabulary.count_prefix() :] != without:
            raise InputError(
                f"{data_dir}: was prepared with the prefix {prefix!r}, after which this vocabulary "
                "tokenises a text as it does within a sentence; for a re-ranker, expected a corpus "
                "prepared without a prefix"
            )
    if reads_pairs:
        vocabulary = vocabulary.with_end_of_turn()
    if folder:
        config = checkpoints.read_config(folder)
        positions = config["max_position_embeddings"]
        if reads_pairs and is_relative(config):
            raise InputError(
                f"`encoder`={options.encoder}: is an MPNet, which has no segments to tell a "
                f"context from a response; `task`={options.task} expects another encoder, such as "
                "a BERT"
            )
    return Inputs(folder, vocabulary, positions, manifest)


def build_training(
    options: TrainOptions,
    inputs: Inputs | None = None,
    *,
    strategy: tf.distribute.Strategy | None = None,
    backbone: keras_hub.models.BertBackbone | None = None,
    stop_asked: tf.Variable | None = None,
) -> Training:
    """Builds what `train` runs, for your own loops, tests and measurements.

        training = build_training(options)
        metrics = training.trainer.train(training.batches(), num_steps=10)

    Nothing is written. Equal options give equal training steps.

    Args:
        options: the task's options, resolved or not.
        inputs: the result of `read_inputs`, if it has been called already.
        strategy: the devices; by default those that the options ask for.
        backbone: a BERT to train instead of the one that the options name; it must have been made
            in the strategy's scope.
        stop_asked: see `Trainer`.

    Raises:
        InputError: data or checkpoint cannot be used.
        OptionError: an option does not fit data, checkpoint or devices.
    """
    inputs = inputs or read_inputs(options)
    options = options.resolve(inputs.manifest, inputs.positions)
    strategy = strategy or make_strategy(options.logical_cpus, options.deterministic)
    spec = TASKS[options.task]
    stream = Stream(
        options.global_batch_size,
        options.seed,
        replicas=strategy.num_replicas_in_sync,
        layout=make_layout(options),
        own=_list_own_replicas(strategy),
    )
    with strategy.scope():
        setup = _make_setup(options, inputs, backbone)
        for name in options.divided:
            if getattr(options, name) % stream.replicas:
                options.refuse(name, f"not divisible by {stream.replicas} devices")
        objective = build_objective(spec, setup, stream)
        if not objective.model.trainable_variables:
            # An optimizer without weights would never count a step.
            options.refuse("freeze_layers", "with these settings there is nothing left to train")
        schedule = WarmupDecay(
            options.learning_rate, options.warmup_steps, options.decay, options.steps
        )
        optimizer = build_optimizer(schedule, options.weight_decay)
    clip_norm, seed = options.clip_norm, options.seed
    trainer = Trainer(strategy, objective.model, optimizer, clip_norm, stop_asked, seed)
    return Training(spec, setup, objective, trainer, stream)


def _make_setup(
    options: TrainOptions, inputs: Inputs, backbone: keras_hub.models.BertBackbone | None
) -> Setup:
    folder, vocabulary = inputs.folder, inputs.vocabulary
    if not options.has_bert:
        return Setup(options, inputs.manifest, vocabulary)
    tensors = {}
    if folder:
        size = max(checkpoints.read_config(folder)["vocab_size"], len(vocabulary.tokens))
        tensors = bert_weights.read_tensors(folder)
        tensors = bert_weights.extend_vocabulary(tensors, size, vocabulary.sep_id)
    backbone = backbone or _build_backbone(options, inputs)
    _check_lengths(options, inputs, backbone)
    bert.freeze(backbone, options.freeze_layers, options.freeze_embeddings)
    if options.lora_rank:
        bert.add_adapters(backbone, options.lora_rank, options.seed)
    parts = TASKS[options.task].build_parts(options, backbone.hidden_dim)
    encoder = bert.build_bert_encoder(backbone, parts.centering)
    return Setup(options, inputs.manifest, vocabulary, folder, tensors, backbone, encoder, parts)


def _build_backbone(options: TrainOptions, inputs: Inputs) -> keras_hub.models.BertBackbone:
    if inputs.folder:
        vocabulary = inputs.vocabulary if TASKS[options.task].end_of_turn else None
        return bert.load_backbone(inputs.folder, options.dropout, options.compute_dtype, vocabulary)
    layers, dim = ENCODER_SIZES[options.encoder_size]
    config = bert.make_bert_config(layers, dim, len(inputs.vocabulary.tokens))
    backbone = bert.build_backbone(config, options.dropout, options.compute_dtype)
    bert.initialize_weights(backbone.trainable_variables, options.seed)
    return backbone


def _check_lengths(
    options: TrainOptions, inputs: Inputs, backbone: keras_hub.models.BertBackbone
) -> None:
    """Checks that the encoder has enough positions and an embedding for every token."""
    longest, positions = inputs.manifest.max_sequence_length, backbone.max_sequence_length
    if longest > positions:
        raise InputError(
            f"`data_dir`={options.data_dir}: utterances of up to {longest} tokens, but the encoder "
            f"has {positions} positions"
        )
    if (longest := options.longest_sequence(longest)) > positions:
        raise OptionError(
            f"`task`={options.task}: with these options its sequences have up to {longest} tokens, "
            f"but the encoder has {positions} positions"
        )
    if backbone.vocabulary_size < len(inputs.vocabulary.tokens):
        raise InputError(
            f"{inputs.folder}: {backbone.vocabulary_size} token embeddings for "
            f"{len(inputs.vocabulary.tokens)} entries of vocab.txt"
        )


def _list_own_replicas(strategy: tf.distribute.Strategy) -> range | None:
    """The numbers of this worker's replicas, which are consecutive; None for a single worker."""
    worker = read_worker()
    if worker.count == 1:
        return None
    count = strategy.num_replicas_in_sync // worker.count
    return range(worker.index * count, (worker.index + 1) * count)
