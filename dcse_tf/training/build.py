"""Builds a training from its options: encoder, model, optimizer, inner loop and batches."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from dcse_tf.bert import bert, checkpoints
from dcse_tf.bert import weights as bert_weights
from dcse_tf.bert.families import is_relative
from dcse_tf.bert.sentence_modules import SentenceModules, read_prefix
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.prepare import VOCABULARY_FOLDER
from dcse_tf.data.stream import Stream
from dcse_tf.encoder.load import resolve_transformer
from dcse_tf.errors import InputError
from dcse_tf.matching.heads import AffineMaps
from dcse_tf.tasks.objective import START_ENCODER, Objective, build_objective
from dcse_tf.tasks.spec import Setup
from dcse_tf.tasks.train_options import ENCODER_SIZES, TrainOptions
from dcse_tf.training import trainer as inner


@dataclasses.dataclass(frozen=True)
class Training(Objective):
    """An objective with all that is needed to follow its gradient; see `build_training`."""

    trainer: inner.Trainer  # the inner loop, with the optimizer and the devices
    stream: Stream

    def list_state(self) -> list[keras.Variable]:
        """The variables to save in a checkpoint: the model's, without frozen weights.

        Those of the backbone and of the copy of the starting encoder are read from `encoder` again.
        """
        backbone = self.setup.backbone
        frozen = [v for v in backbone.variables if not v.trainable] if backbone else []
        copies = [layer for layer in self.model.layers if layer.name == START_ENCODER]
        frozen += [variable for copy in copies for variable in copy.variables]
        there = {id(variable) for variable in frozen}
        return [variable for variable in self.model.variables if id(variable) not in there]

    def dataset(self, first_step: int = 0) -> tf.data.Dataset:
        """The batches from a step (from 0) on; each step has one per device of this process."""
        return self.make_batches(dataclasses.replace(self.stream, first_step=first_step), "train")

    def batches(self, first_step: int = 0) -> Iterator[Any]:
        """An endless iterator over the batches from a step on, as `trainer.train` takes it."""
        # With a dataset known to be infinite, the replicas need not agree at every step on whether
        # all of them have a next batch.
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        distribute = self.trainer.strategy.distribute_datasets_from_function
        return iter(distribute(lambda _: self.dataset(first_step).apply(endless)))


def read_setup(options: TrainOptions) -> Setup:
    """Finds the checkpoint, reads the corpus' manifest and resolves the options for both."""
    data_dir, reads_pairs = pathlib.Path(options.data_dir), options.end_of_turn
    folder, modules, config = None, SentenceModules(), bert.make_bert_config(1, 64, 1)
    if options.encoder:
        folder, modules = resolve_transformer(options.encoder, "encoder", not reads_pairs)
        config = checkpoints.read_config(folder)
    else:
        read_manifest(data_dir)  # says what the folder should be, before its vocabulary is read
    # The encoder must always see the prefix that the corpus was prepared with.
    prefix = read_prefix(data_dir / VOCABULARY_FOLDER)
    vocabulary = read_vocabulary(folder or data_dir / VOCABULARY_FOLDER).with_prefix(prefix)
    manifest = read_manifest(data_dir, vocabulary.fingerprint())
    if reads_pairs and prefix:
        # Turns are read without their prefix, which must not change their tokens.
        with_prefix, without = vocabulary.make_split()([f"{prefix}a", "a"])
        if with_prefix[vocabulary.count_prefix() :] != without:
            why = "after which this vocabulary tokenises a text as within a sentence"
            told = f"was prepared with the prefix {prefix!r}, {why}"
            raise InputError(f"{data_dir}: {told}; a re-ranker needs a corpus without a prefix")
    if reads_pairs:
        vocabulary = vocabulary.with_end_of_turn()
    if reads_pairs and is_relative(config):
        raise InputError(
            f"`encoder`={options.encoder}: is an MPNet, which has no segments to tell a context "
            f"from a response; `task`={options.task} expects another encoder, such as a BERT"
        )
    resolved = options.resolve(manifest, config["max_position_embeddings"])
    return Setup(resolved, manifest, vocabulary, folder, modules)


def build_training(
    options: TrainOptions,
    setup: Setup | None = None,
    *,
    strategy: tf.distribute.Strategy | None = None,
    stop_asked: tf.Variable | None = None,
) -> Training:
    """Builds what `train` runs, for your own loops, tests and measurements.

        training = build_training(options)
        metrics = training.trainer.train(training.batches(), num_steps=10)

    Nothing is written. Equal options give equal training steps.

    Args:
        options: the task's options, resolved or not.
        setup: the result of `read_setup`, if it has been called already; its options count.
        strategy: the devices; by default those that the options ask for.
        stop_asked: see `Trainer`.

    Raises InputError if data or checkpoint cannot be used, and OptionError if an option does not
    fit data, checkpoint or devices.
    """
    setup = setup or read_setup(options)
    options = setup.options
    strategy = strategy or inner.make_strategy(options.logical_cpus, options.deterministic)
    stream = Stream(
        options.global_batch_size,
        options.seed,
        replicas=strategy.num_replicas_in_sync,
        row_length=options.row_length if options.layout == "packed" else 0,
        own=inner.read_worker().own_replicas(strategy.num_replicas_in_sync),
    )
    with strategy.scope():
        if options.has_bert:
            setup = _add_encoder(setup)
        for name in options.divided:
            if getattr(options, name) % stream.replicas:
                options.refuse(name, f"not divisible by {stream.replicas} devices")
        objective = build_objective(setup, stream)
        if not objective.model.trainable_variables:
            # An optimizer without weights would never count a step.
            options.refuse("freeze_layers", "with these settings there is nothing left to train")
        rate = options.learning_rate, options.warmup_steps, options.decay, options.steps
        optimizer = inner.build_optimizer(inner.WarmupDecay(*rate), options.weight_decay)
    asked = tf.Variable(False, trainable=False) if stop_asked is None else stop_asked
    model, clip_norm = objective.model, options.clip_norm
    trainer = inner.Trainer(strategy, model, optimizer, clip_norm, asked, options.seed)
    return Training(**vars(objective), trainer=trainer, stream=stream)


def _add_encoder(setup: Setup) -> Setup:
    """The setup with the BERT to train, what is built on it, and the tensors for heads."""
    options, folder, vocabulary = setup.options, setup.source, setup.vocabulary
    size, tensors = len(vocabulary.tokens), {}
    if folder:
        tensors, added = bert_weights.read_tensors(folder), None
        if options.end_of_turn:
            tensors = bert_weights.extend_vocabulary(tensors, added := vocabulary, folder)
        backbone = bert.load_backbone(folder, options.dropout, options.compute_dtype, added)
    else:
        config = bert.make_bert_config(*ENCODER_SIZES[options.encoder_size], size)
        backbone = bert.build_backbone(config, options.dropout, options.compute_dtype)
        bert.initialize_weights(backbone.trainable_variables, options.seed)

    longest = options.longest_sequence(setup.manifest.max_sequence_length)
    if longest > (positions := backbone.max_sequence_length):
        why = f"with these options and data its sequences have up to {longest} tokens"
        limit = f"but the encoder has {positions} positions; prepare with a smaller"
        options.refuse("task", f"{why}, {limit} `max_sequence_length`")

    bert.freeze(backbone, options.freeze_layers, options.freeze_embeddings)
    if options.lora_rank:
        bert.add_adapters(backbone, options.lora_rank, options.seed)
    if setup.modules.pooling == "cls" and not options.end_of_turn:
        told = "%s pools by [CLS]; what is trained from it pools by the mean, as in dev scores"
        logging.warning(told, folder)
    dense = AffineMaps(setup.modules.maps, name="dense") if setup.modules.maps else None
    parts = options.build_parts(dense.dim if dense else backbone.hidden_dim)
    if dense and parts.centering:
        options.refuse("center_tokens", f"would change the Dense modules of {folder}")
    parts = dataclasses.replace(parts, dense=dense)
    encoder = bert.build_bert_encoder(backbone, dense or parts.centering)
    made = {"tensors": tensors, "backbone": backbone, "encoder": encoder, "parts": parts}
    return dataclasses.replace(setup, **made)
