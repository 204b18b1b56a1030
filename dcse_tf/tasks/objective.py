"""The objective of a training: its terms as one functional model, their batches, what is written.

The model maps a batch of `dcse_tf.data.table` to the objective, summed over a replica's rows, and
to the sums of all metrics. Every term is connected to one reading of the table.
"""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from dcse_tf.bert import bert, checkpoints
from dcse_tf.bert.sentence_modules import SentenceModules, write_modules
from dcse_tf.bert.tokenizer import number_as_written
from dcse_tf.data.stream import Stream, make_dataset
from dcse_tf.data.table import Step
from dcse_tf.files import write_json
from dcse_tf.matching.equations import write_matching
from dcse_tf.matching.head_files import list_head_maps, write_heads
from dcse_tf.reading.cross_encoder import Reader, read_with_bert
from dcse_tf.tasks.spec import Scores, Setup, Term

# The name of the layer of the starting encoder in a training model.
START_ENCODER = "start_encoder"
LOSS = "loss"
# The tensors of a table that an encoder may read.
_READ = ("token_ids", "segments", "positions", "segment_ids", "speaker_ids")


class Encoded:
    """A table as an encoder reads it; all attributes are symbolic.

    Attributes:
        before: the same table as the starting encoder reads it; None unless a term needs it.
        tokens: float32 `[cells, dim]`, the flat list of all tokens that the encoder computes.
        padding_mask: bool `[texts, tokens]`, True = real token.
    """

    def __init__(
        self,
        reader: Reader,
        inputs: Mapping[str, keras.KerasTensor],
        name: str,
        behind: keras.layers.Layer | None = None,
        before: "Encoded | None" = None,
    ):
        table = {x: value for x, value in inputs.items() if x in _READ}
        own = {
            x: keras.Input(value.shape[1:], dtype=value.dtype, name=x) for x, value in table.items()
        }
        found = keras.Model(own, reader.read(own), name=name)(table)
        self.tokens, self._vectors = found["tokens"], found.get("vectors")
        self.padding_mask, self._places = inputs["padding_mask"], inputs["places"]
        self.before = before
        self._behind = behind

    @functools.cached_property
    def table(self) -> keras.KerasTensor:
        """The token embeddings of every text, float32 `[texts, tokens, dim]`, finite at padding."""
        table = ops.take(self.tokens, self._places, axis=0)
        return self._behind(table, self.padding_mask) if self._behind else table

    def take_vectors(self, texts: keras.KerasTensor) -> keras.KerasTensor:
        """The vectors of sequences, int32 `[rows]`: float32 `[rows, vector_dim]`."""
        if self._vectors is not None:
            return ops.take(self._vectors, texts, axis=0)
        return ops.take(self.tokens, ops.take(self._places[:, 0], texts), axis=0)  # of [CLS]


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a training trains, and on what; see `build_objective`.

    Attributes:
        setup: what the model was built from.
        terms: the terms, the first of which is the main one.
        model: the training model: maps a batch to float32 scalars. "loss" is the replica's part of
            the objective; "LABEL/METRIC" are weighted sums over its rows of a term, and
            "LABEL/weight" the sum of their weights; all others are counts.
        reader: the encoder that is trained.
        make_batches: (stream, split) -> the batches of successive steps.
    """

    setup: Setup
    terms: Sequence[Term]
    model: keras.Model
    reader: Reader
    make_batches: Callable[[Stream, str], tf.data.Dataset]

    def find_head(self, name: str) -> Any:
        """The head of the term of a name; KeyError if the objective lacks it."""
        terms: dict[str, Any] = {term.name: term for term in self.terms}
        return terms[name].head

    def _read_config(self) -> dict[str, Any]:
        """The content of config.json for the BERT that is trained."""
        backbone, source = self.setup.backbone, self.setup.source
        if not source:
            sizes = backbone.num_layers, backbone.hidden_dim, backbone.vocabulary_size
            return bert.make_bert_config(*sizes)
        return {**checkpoints.read_config(source), "vocab_size": backbone.vocabulary_size}

    def write_config(self, folder: pathlib.Path, **entries: Any) -> None:
        """Writes config.json for the BERT that is trained, with further entries."""
        write_json(folder / "config.json", {**self._read_config(), **entries}, sort_keys=True)

    def write_tokenization(self, folder: pathlib.Path) -> None:
        """Writes the encoder's vocabulary and the length to which it truncates sentences."""
        number_as_written(self.setup.vocabulary, self._read_config()).write(folder)
        checkpoints.write_max_sequence_length(folder, self.setup.manifest.max_sequence_length)

    def write_sentence_encoder(self, folder: pathlib.Path) -> None:
        """Writes the encoder as an ordinary checkpoint, for the options `encoder` and `model`."""
        parts = self.setup.parts
        mean = parts.centering.mean().numpy() if parts.centering else None
        bert.save_backbone(folder, self.setup.backbone, self._read_config(), mean)
        if parts.dense:
            modules = SentenceModules("mean", parts.dense.maps)
            write_modules(folder, modules, self.setup.backbone.hidden_dim)
        if parts.learns_matching:
            write_matching(folder, parts.attention)
        if parts.heads:
            write_heads(folder, list_head_maps(parts.heads))
        self.write_tokenization(folder)


def build_objective(setup: Setup, stream: Stream) -> Objective:
    """Connects a task's terms to its encoder, for batches like those of the training's stream;
    called under the strategy's scope.
    """
    options = setup.options
    terms = [*options.list_terms(setup), *(term(setup) for term in options.further_terms)]
    terms = [term for term in terms if term.weight > 0.0]

    def draw_rows(step: Step) -> dict[str, Any]:
        drawn: dict[str, Any] = {}
        for term in terms:
            if term.rows not in drawn:
                drawn[term.rows] = term.draw(step)
        return drawn

    @functools.cache
    def make_batches(stream: Stream, split: str) -> tf.data.Dataset:
        folder, of_split = setup.data_dir, setup.manifest.splits[split]
        return make_dataset(folder, of_split, options.make_source(setup), draw_rows, stream)

    # The batches of a new run are those that say which tensors there are.
    inputs = {
        name: keras.Input([None] * (spec.shape.rank - 1), dtype=spec.dtype.name, name=name)
        for name, spec in make_batches(stream, "train").element_spec.items()
    }
    reader = options.make_reader(setup)
    for term in terms:
        term.build(reader)
    before = _read_as_started(setup, inputs) if any(t.needs_start for t in terms) else None
    encoded = Encoded(reader, inputs, "encoder", setup.parts.dense or setup.parts.centering, before)
    outputs = {
        LOSS: ops.zeros(()),
        "samples": ops.sum(inputs["samples"]),
        "tokens": ops.sum(ops.cast(encoded.padding_mask, "float32")),
        "cells": ops.cast(ops.size(inputs["token_ids"]), "float32"),
    }
    for term in terms:
        own = _take_own(term, inputs)
        values: dict[str, Any] = {"weights": own.get("weights"), "total": own.get("weights_total")}
        values |= term.compute(encoded, own)
        weights, total = values.pop("weights"), values.pop("total")
        sums = {name: ops.sum(value * weights) for name, value in values.items()}
        # The trainer adds this up over the replicas; a step without any row that counts adds 0.
        share = term.weight / ops.maximum(ops.sum(total), 1e-9)
        if term.fade < 1.0:
            left = 1.0 - inputs["step"][0] / setup.options.steps
            share = share * ops.minimum(left / (1.0 - term.fade), 1.0)
        outputs[LOSS] = outputs[LOSS] + share * sums[LOSS]
        sums["weight"] = ops.sum(weights)
        outputs |= {f"{term.label}/{name}": value for name, value in sums.items()}
        outputs |= term.count(own)
    model = keras.Model(inputs, outputs, name=options.task)
    return Objective(setup, terms, model, reader, make_batches)


def _take_own(term: Term, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a batch that are of a term's rows, by their names in `Rows`."""
    prefix = f"{term.rows}_"
    return {x.removeprefix(prefix): tensors[x] for x in tensors if x.startswith(prefix)}


def _read_as_started(setup: Setup, inputs: Mapping[str, keras.KerasTensor]) -> Encoded:
    """The table as the starting encoder reads it, without dropout and frozen.

    If the trained encoder's token embeddings are centred, these are too, by their own mean over
    the batch: otherwise an encoder that has not changed would seem to have moved.
    """
    assert setup.source
    vocabulary = setup.vocabulary if setup.options.end_of_turn else None
    backbone = bert.load_backbone(setup.source, 0.0, setup.options.compute_dtype, vocabulary)
    backbone.trainable = False
    behind = bert.TokenCentering(dtype="float32") if setup.parts.centering else setup.parts.dense
    return Encoded(read_with_bert(backbone), inputs, START_ENCODER, behind)


def average(sums: Mapping[str, float]) -> Scores:
    """Means from sums over rows: each of "LABEL/METRIC" is divided by "LABEL/weight".

    Returns:
        The means by "LABEL_METRIC", or "METRIC" without a label. A term without any row that
        counts is left out.
    """
    means = {}
    for name, value in sums.items():
        label, slash, metric = name.rpartition("/")
        if slash and metric != "weight" and sums[f"{label}/weight"] > 0.0:
            means[f"{label}_{metric}" if label else metric] = value / sums[f"{label}/weight"]
    return means


def make_evaluation(objective: Objective) -> Callable[[], Scores]:
    """Makes the evaluation of a task's own dev scores, on the same draws every time.

    It gives the terms' means over dev rows and, where rows have hints, "LABEL_chance": the accuracy
    of the best rule that does not read.
    """
    options = objective.setup.options
    names, split = options.scores, objective.setup.manifest.splits["dev"]
    most = min(options.dev_samples, split.sessions)
    batch_size = min(options.global_batch_size, most)
    if options.samples == "utterances":
        most = min(20 * options.dev_samples, split.utterances)
        batch_size = min(64, most)
    if not names or most < 2:  # a single session has no negatives
        return dict
    if most % batch_size == 1 and options.samples == "sessions":
        most -= 1  # nor has a last batch of one
    row_length = options.row_length if options.layout == "packed" else 0
    stream = Stream(batch_size, options.seed, row_length=row_length, most=most)
    compute = tf.function(functools.partial(objective.model, training=False), reduce_retracing=True)

    @functools.cache
    def read() -> tuple[list[dict[str, np.ndarray]], Scores]:
        """The batches, and what is known of chance."""
        batches, chances = list(objective.make_batches(stream, "dev").as_numpy_iterator()), {}
        for term in objective.terms:
            own = [_take_own(term, batch) for batch in batches]
            if "hints" in own[0]:
                known = ("labels", "weights", "hints")
                arrays = {name: np.concatenate([batch[name] for batch in own]) for name in known}
                if arrays["weights"].any():
                    chances[f"{term.label}_chance"] = score_best_rule(arrays)
        return batches, chances

    def evaluate() -> Scores:
        totals, (batches, chances) = collections.Counter[str](), read()
        for batch in batches:
            found = compute({name: tf.constant(value) for name, value in batch.items()})
            totals.update({name: float(value) for name, value in found.items()})
        means = {**average(totals), **chances}
        unit = 100.0 if options.percent else 1.0
        return {name: unit * means[name] for name in names if name in means}

    return evaluate


def score_best_rule(arrays: Mapping[str, np.ndarray]) -> float:
    """The accuracy of the rule that answers by the more frequent label, 0 or 1, among the examples
    with the same hint: how far they can be told apart without reading them.

    Each half of the examples is answered by the rule made from the other half, so that a rule does
    not gain from what is chance.
    """
    labels, weights, hints = (arrays[name] for name in ("labels", "weights", "hints"))
    votes = (2.0 * labels - 1.0) * weights
    first, right = np.arange(len(hints)) < len(hints) // 2, 0.0
    for own in (first, ~first):
        table = np.bincount(hints[~own], votes[~own], minlength=hints.max() + 1)
        right += weights[own] @ ((table[hints[own]] > 0.0) == (labels[own] > 0.5))
    return float(right / weights.sum())
