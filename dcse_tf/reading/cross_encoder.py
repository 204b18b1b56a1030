"""Response selection as functional models: a reader of sequences, and a head for each task.

A reader computes a vector for every token and one for every sequence of two segments. BERT's
sequence vector is that of [CLS].
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from dcse_tf.bert import weights
from dcse_tf.bert.bert import initialize_weights
from dcse_tf.bert.layout import Layout, run_layers, share_segment, table_inputs
from dcse_tf.bert.tensor_files import read_tensor_file, write_tensor_file
from dcse_tf.bert.weights import CLASSIFIER, POOLER, SPEAKER_TABLE, SPEAKERS
from dcse_tf.matching.losses import JointLoss
from dcse_tf.reading.matchers import ESIM, DualLSTM

if TYPE_CHECKING:
    import keras_hub


@keras.saving.register_keras_serializable(package="dcse_tf")
class PairHead(keras.layers.Layer):
    """A two-layer perceptron on the vector of a sequence (Xu et al. 2020, equation 1).

    With a tanh in between, it is BERT's pooler followed by a classifier, so a checkpoint's pooler
    can initialise it.

    Args:
        dim: width of the hidden layer; 0 for a single layer.
        classes: number of outputs.
    """

    def __init__(self, dim, classes=1, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.classes = classes
        self.hidden: Any = None
        if dim:
            self.hidden = keras.layers.Dense(dim, activation="tanh", dtype=self.dtype_policy)
        self.output_layer = keras.layers.Dense(classes, dtype=self.dtype_policy)

    def build(self, vectors_shape):
        if self.hidden:
            self.hidden.build(vectors_shape)
        self.output_layer.build((None, self.dim or vectors_shape[-1]))

    def call(self, vectors):
        """Maps float `[rows, width]` to `[rows, classes]`, or to `[rows]` for one class."""
        logits = self.output_layer(self.hidden(vectors) if self.hidden else vectors)
        return ops.squeeze(logits, -1) if self.classes == 1 else logits

    def get_config(self):
        return {**super().get_config(), "dim": self.dim, "classes": self.classes}


@keras.saving.register_keras_serializable(package="dcse_tf")
class TurnScores(keras.layers.Layer):
    """Scores for which turn of a dialogue does not belong (Xu et al. 2020, equations 6 and 7).

    A turn's vector concatenates the mean and the maximum of its tokens' vectors.

    Args:
        turns: the largest number of turns in a dialogue.
    """

    def __init__(self, turns, **kwargs):
        super().__init__(**kwargs)
        self.turns = turns

    def build(self, tokens_shape, turn_ids_shape, labels_shape):
        self.kernel = self.add_weight(
            shape=(2 * tokens_shape[-1], 1), initializer="zeros", name="kernel"
        )
        self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def call(self, tokens, turn_ids, labels):
        """Scores the turns of dialogues.

        Args:
            tokens: float `[tokens, dim]`, the tokens of all turns.
            turn_ids: int32 `[tokens]`, each token's dialogue x turns + turn.
            labels: int32 `[dialogues]`; only the number of entries is used.

        Returns:
            float `[dialogues, turns]`; -1e9, to which a softmax gives 0, for a turn that a
            dialogue does not have.
        """
        dialogues = ops.shape(labels)[0]
        segments = dialogues * self.turns
        ones = ops.ones_like(turn_ids, dtype="float32")
        counts = tf.math.unsorted_segment_sum(ones, turn_ids, segments)[:, None]
        total = tf.math.unsorted_segment_sum(tokens, turn_ids, segments)
        largest = tf.math.unsorted_segment_max(tokens, turn_ids, segments)
        largest = ops.where(counts > 0.0, largest, 0.0)
        vectors = ops.concatenate([total / ops.maximum(counts, 1.0), largest], axis=-1)
        scores = ops.matmul(vectors, self.kernel) + self.bias
        scores = ops.where(counts > 0.0, scores, -1e9)
        return ops.reshape(scores, (-1, self.turns))

    def compute_output_shape(self, tokens_shape, turn_ids_shape, labels_shape):
        return (None, self.turns)

    def get_config(self):
        return {**super().get_config(), "turns": self.turns}


@keras.saving.register_keras_serializable(package="dcse_tf")
class TakeRows(keras.layers.Layer):
    """Gathers the vectors of the rows that given tokens of a padded table are in."""

    def call(self, vectors, token_ids, places):
        """Takes a row's vector for each place.

        Args:
            vectors: float `[rows, dim]`, one vector a row.
            token_ids: int32 `[rows, tokens]`; only its shape is used.
            places: int32 `[places]`, indices of tokens in the flattened table.

        Returns:
            float `[places, dim]`.
        """
        return ops.take(vectors, places // ops.shape(token_ids)[1], axis=0)

    def compute_output_shape(self, vectors_shape, token_ids_shape, places_shape):
        return (*places_shape, vectors_shape[-1])


@dataclasses.dataclass(frozen=True)
class Reading:
    """A reader's symbolic inputs and outputs for a table of sequences.

    Attributes:
        inputs: the table's tensors by name.
        tokens: float32 `[cells, dim]`, the flat list of all tokens the reader computes.
        dim: width of a token's vector.
        pair_dim: width of a sequence's vector.
        pairs: maps int32 `[rows]`, the places of [CLS] tokens, to the sequences' vectors
            `[rows, pair_dim]`.
        token_embedding: the reader's embedding layer, to which a token-prediction head is tied.
    """

    inputs: dict[str, keras.KerasTensor]
    tokens: keras.KerasTensor
    dim: int
    pair_dim: int
    pairs: Callable[[keras.KerasTensor], keras.KerasTensor]
    token_embedding: keras.layers.Layer


def build_speaker_embedding(
    dim: int, seed: int, tensors: dict[str, np.ndarray]
) -> keras.layers.Embedding:
    """One vector for the response's speaker and one for all others (Gu et al. 2020, SA-BERT).

    Args:
        dim: width of the token embeddings.
        seed: seed of the initial weights, used if the checkpoint has none.
        tensors: the checkpoint's tensors by name.
    """
    layer = keras.layers.Embedding(SPEAKERS, dim, dtype="float32", name="speaker_embedding")
    layer.build((None, None))
    if SPEAKER_TABLE in tensors:
        layer.embeddings.assign(tensors[SPEAKER_TABLE])
    else:
        initialize_weights(layer.trainable_variables, seed)
    return layer


def read_with_bert(
    backbone: keras_hub.models.BertBackbone,
    layout: Layout,
    speakers: keras.layers.Embedding | None = None,
) -> Reading:
    """BERT as the reader of a laid-out table, padded or packed.

    Args:
        backbone: the BERT.
        layout: the layout of the input tables, which also have segment_ids and, with `speakers`,
            speaker_ids.
        speakers: embedding of the speakers, added to the token embeddings.
    """
    inputs = table_inputs(layout)
    inputs.pop("places", None)
    names = ["segment_ids", *(["speaker_ids"] if speakers else [])]
    inputs |= {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    padding_mask = inputs.pop("padding_mask")
    if layout.kind == "padded":
        inputs["padding_mask"] = padding_mask
        own = share_segment(ops.cast(padding_mask, "int32"))
    else:
        own = share_segment(inputs["segments"])
    tokens = run_layers(
        backbone,
        inputs["token_ids"],
        own,
        positions=inputs.get("positions"),
        segment_ids=inputs["segment_ids"],
        added=speakers(inputs["speaker_ids"]) if speakers else None,
    )
    dim = backbone.hidden_dim
    tokens = ops.cast(ops.reshape(tokens, (-1, dim)), "float32")

    def pairs(places: keras.KerasTensor) -> keras.KerasTensor:
        return ops.take(tokens, places, axis=0)

    return Reading(inputs, tokens, dim, dim, pairs, backbone.token_embedding)


def read_with_matcher(matcher: DualLSTM | ESIM, layout: Layout) -> Reading:
    """DualLSTM or ESIM as the reader of a padded table."""
    inputs = table_inputs(layout)
    inputs["segment_ids"] = keras.Input((None,), dtype="int32", name="segment_ids")
    read = matcher(inputs["token_ids"], inputs["segment_ids"], inputs["padding_mask"])
    tokens = ops.reshape(read["tokens"], (-1, matcher.tokens_dim))

    take = TakeRows(dtype="float32")

    def pairs(places: keras.KerasTensor) -> keras.KerasTensor:
        return take(read["pair"], inputs["token_ids"], places)

    dims = matcher.tokens_dim, matcher.pair_dim
    return Reading(inputs, tokens, *dims, pairs, matcher.token_embedding)


@dataclasses.dataclass(frozen=True)
class HeadShape:
    """The sizes of the tasks' heads.

    Attributes:
        turns: the largest number of turns in a dialogue.
        hidden: width of the hidden layer in heads on sequence vectors.
        linear: whether the matching head is a single layer, initialised as a sum (DualLSTM).
    """

    turns: int
    hidden: int
    linear: bool = False


def build_heads(
    tasks: Sequence[str], reading: Reading, shape: HeadShape, seed: int, tensors: dict[str, Any]
) -> dict[str, keras.layers.Layer]:
    """The heads of all tasks except restoration, by task name.

    Args:
        tasks: "matching" and auxiliary tasks.
        reading: the reader's outputs that the heads are applied to.
        shape: the heads' sizes.
        seed: seed of the initial weights.
        tensors: the checkpoint's tensors; its pooler initialises the heads on sequence vectors.
    """
    heads: dict[str, keras.layers.Layer] = {}
    for number, name in enumerate(("matching", "next_session", "consistency", "incoherence")):
        if name not in tasks:
            continue
        if name == "incoherence":
            head: keras.layers.Layer = TurnScores(shape.turns, dtype="float32", name=name)
            head.build((None, reading.dim), (None,), (None,))
            initialize_weights(head.trainable_variables, seed + number)
        else:
            hidden = 0 if shape.linear and name == "matching" else shape.hidden
            sizes = reading.pair_dim, hidden
            head = build_pair_head(name, sizes, 1, seed + number, tensors)
        heads[name] = head
    return heads


def _start_from_pooler(head: PairHead, tensors: dict[str, Any]) -> None:
    kernel, bias = (tensors.get(f"{POOLER}.{name}") for name in ("weight", "bias"))
    if kernel is not None and bias is not None and kernel.shape == (head.dim, head.dim):
        head.hidden.kernel.assign(kernel.T)
        head.hidden.bias.assign(bias)
    kernel, bias = (tensors.get(f"{CLASSIFIER}.{name}") for name in ("weight", "bias"))
    if head.name == "matching" and kernel is not None and kernel.shape == (1, head.dim):
        head.output_layer.kernel.assign(kernel.T)
        head.output_layer.bias.assign(bias)


def build_pair_head(
    name: str, sizes: tuple[int, int], classes: int, seed: int, tensors: dict[str, Any]
) -> PairHead:
    """A head on sequence vectors, initialised from a checkpoint's pooler if there is one.

    A head with a single layer is initialised as a sum.

    Args:
        name: the head's name.
        sizes: width of a sequence's vector and of the hidden layer (0: a single layer).
        classes: number of outputs.
        seed: seed of the initial weights.
        tensors: the checkpoint's tensors by name.
    """
    dim, hidden = sizes
    head = PairHead(hidden, classes, dtype="float32", name=name)
    head.build((None, dim))
    initialize_weights(head.trainable_variables, seed)
    if hidden:
        _start_from_pooler(head, tensors)
    else:
        head.output_layer.kernel.assign(ops.ones_like(head.output_layer.kernel))
    return head


def predict_tokens(
    head: keras.layers.Layer, reading: Reading, places: keras.KerasTensor
) -> keras.KerasTensor:
    """Token predictions at places, int32 `[tokens]`: logits, float32 `[tokens, vocabulary]`."""
    tokens, places = ops.expand_dims(reading.tokens, 0), ops.expand_dims(places, 0)
    return ops.squeeze(head(tokens, mask_positions=places), 0)


_TARGETS = {
    "matching": {"labels": "float32", "weights": "float32"},
    "next_session": {"labels": "float32", "weights": "float32"},
    "restoration": {"ids": "int32", "weights": "float32"},
    "incoherence": {"labels": "int32", "weights": "float32", "turns": "int32"},
    "consistency": {"weights": "float32"},
}


def build_selection_model(
    reading: Reading,
    heads: dict[str, keras.layers.Layer],
    restoration: keras.layers.Layer | None,
    loss: JointLoss,
) -> keras.Model:
    """The training model: maps a batch of `make_selection_batches` to the sums of `JointLoss`.

    Args:
        reading: the reader's inputs and outputs for the batch's table.
        heads: heads of the other tasks, see `build_heads`.
        restoration: head of the restoration task, see `masked_lm.build_head`; None without it.
        loss: the joint loss of all tasks.
    """
    inputs, logits, targets = dict(reading.inputs), {}, {}
    layers = {**heads, **({"restoration": restoration} if restoration else {})}
    for name, head in layers.items():
        places = keras.Input((), dtype="int32", name=f"{name}_places")
        inputs[places.name] = places
        for target, kind in _TARGETS[name].items():
            inputs[f"{name}_{target}"] = keras.Input((), dtype=kind, name=f"{name}_{target}")
            targets[f"{name}_{target}"] = inputs[f"{name}_{target}"]

        if name == "restoration":
            logits[name] = predict_tokens(head, reading, places)
        elif name == "incoherence":
            tokens = ops.take(reading.tokens, places, axis=0)
            turns, labels = targets["incoherence_turns"], targets["incoherence_labels"]
            logits[name] = head(tokens, turns, labels)
        else:
            logits[name] = head(reading.pairs(places))
    return keras.Model(inputs, loss(logits, targets), name="response_selection")


class LiveScorer:
    """Scores sequences with weights that are being trained.

    Args:
        reading: the reader's inputs and outputs for padded tables.
        head: the matching head.
    """

    def __init__(self, reading: Reading, head: PairHead):
        places = keras.Input((), dtype="int32", name="matching_places")
        inputs = {**reading.inputs, places.name: places}
        self._model = keras.Model(inputs, head(reading.pairs(places)), name="scorer")

    def score(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Scores a padded table.

        Args:
            inputs: token_ids, segment_ids, padding_mask and, if the reader has speaker embeddings,
                speaker_ids, each `[rows, tokens]`.

        Returns:
            Logits, float32 `[rows]`.
        """
        rows, tokens = tf.unstack(tf.shape(inputs["token_ids"]))
        given = {**inputs, "matching_places": tf.range(rows) * tokens}
        return self._model({name: given[name] for name in self._model.input}, training=False)


def name_tensors(
    backbone: keras_hub.models.BertBackbone,
    head: PairHead,
    speakers: keras.layers.Embedding | None,
) -> dict[str, np.ndarray]:
    """The tensors of a BERT, with a head's hidden layer as its pooler, by HuggingFace's names.

    Args:
        backbone: the BERT.
        head: a head on its sequence vectors.
        speakers: saved as the tensor `bert.embeddings.speaker_embeddings.weight`, if given.
    """
    tensors = weights.to_tensors(weights.backbone_weights(backbone))
    if speakers:
        tensors[SPEAKER_TABLE] = speakers.embeddings.numpy()
    tensors |= {
        f"{POOLER}.weight": head.hidden.kernel.numpy().T,
        f"{POOLER}.bias": head.hidden.bias.numpy(),
    }
    return {f"bert.{name}": np.ascontiguousarray(value) for name, value in tensors.items()}


def write_cross_encoder(
    folder: pathlib.Path,
    backbone: keras_hub.models.BertBackbone,
    head: PairHead,
    speakers: keras.layers.Embedding | None,
) -> None:
    """Writes `model.safetensors` with the names of HuggingFace's BertForSequenceClassification.

    Args:
        folder: an existing folder.
        backbone: the BERT.
        head: the matching head.
        speakers: written as `bert.embeddings.speaker_embeddings.weight`, a tensor which that class
            lacks.
    """
    named = name_tensors(backbone, head, speakers)
    named[f"{CLASSIFIER}.weight"] = np.ascontiguousarray(head.output_layer.kernel.numpy().T)
    named[f"{CLASSIFIER}.bias"] = head.output_layer.bias.numpy()
    weights.write_tensors(folder, named)


_HEAD_FILE = "model_head.safetensors"


def write_head(folder: pathlib.Path, head: PairHead) -> None:
    """Writes the matching head beside a matcher's own weights."""
    tensors = {str(place): variable.numpy() for place, variable in enumerate(head.weights)}
    write_tensor_file(folder / _HEAD_FILE, tensors)


def read_head_tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads what `write_head` wrote, under names that begin with "head."."""
    return {f"head.{name}": value for name, value in read_tensor_file(folder / _HEAD_FILE).items()}


def build_head(tensors: Mapping[str, np.ndarray]) -> PairHead:
    """Builds the matching head from the tensors of `read_head_tensors`."""
    weights = [
        tensors[f"head.{place}"] for place in range(len(tensors)) if f"head.{place}" in tensors
    ]
    linear = len(weights) == 2
    head = PairHead(0 if linear else weights[0].shape[1], dtype="float32", name="matching")
    head.build((None, weights[0].shape[0]))
    head.set_weights(weights)
    return head
