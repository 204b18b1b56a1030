"""Readers of sequences of two segments, the heads on them, and the files of a cross-encoder.

A reader computes a vector for every token and one for every sequence of two segments. BERT's
sequence vector is that of [CLS].
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from dcse_tf.bert import weights
from dcse_tf.bert.bert import initialize_weights, run_layers
from dcse_tf.reading.matchers import ESIM, DualLSTM

if TYPE_CHECKING:
    import keras_hub

Table = dict[str, keras.KerasTensor]


@dataclasses.dataclass(frozen=True)
class Reader:
    """What reads tables of sequences.

    Attributes:
        read: maps a table, see `lay_out`, to "tokens", the flat list of all tokens that the reader
            computes, float32 `[cells, dim]`, and, unless these are the vectors of their first
            tokens, to "vectors", those of the sequences, `[texts, vector_dim]`.
        token_embedding: the reader's embedding layer, to which a token-prediction head is tied.
        layer: the layer that holds its further weights: the embedding of speakers, or a matcher;
            None for a BERT without.
    """

    read: Callable[[Table], Table]
    dim: int
    vector_dim: int
    token_embedding: keras.layers.Layer
    layer: Any = None


def read_with_bert(
    backbone: keras_hub.models.BertBackbone, speakers: keras.layers.Embedding | None = None
) -> Reader:
    """BERT as the reader of tables, padded or packed; with `speakers`, whose embedding is added to
    the tokens', they also have speaker_ids.
    """
    dim = backbone.hidden_dim

    def read(table: Table) -> Table:
        token_ids = table["token_ids"]
        segments = table.get("segments", ops.not_equal(token_ids, 0))
        # Tokens of one utterance attend to one another. So do empty cells, so that no row of the
        # attention is fully masked.
        tokens = run_layers(
            backbone,
            token_ids,
            ops.equal(ops.expand_dims(segments, 2), ops.expand_dims(segments, 1)),
            positions=table.get("positions"),
            segment_ids=table.get("segment_ids"),
            added=speakers(table["speaker_ids"]) if speakers else None,
        )
        return {"tokens": ops.cast(ops.reshape(tokens, (-1, dim)), "float32")}

    return Reader(read, dim, dim, backbone.token_embedding, speakers)


def read_with_matcher(matcher: DualLSTM | ESIM) -> Reader:
    """DualLSTM or ESIM as the reader of padded tables."""

    def read(table: Table) -> Table:
        real = ops.not_equal(table["token_ids"], 0)
        found = matcher(table["token_ids"], table["segment_ids"], real)
        tokens = ops.reshape(found["tokens"], (-1, matcher.tokens_dim))
        return {"tokens": tokens, "vectors": found["pair"]}

    return Reader(read, matcher.tokens_dim, matcher.pair_dim, matcher.token_embedding, matcher)


def build_speaker_embedding(
    dim: int, seed: int, tensors: dict[str, np.ndarray]
) -> keras.layers.Embedding:
    """One vector for the response's speaker and one for all others (Gu et al. 2020, SA-BERT), from
    a checkpoint's tensors or, if it has none, drawn by the seed.
    """
    layer = keras.layers.Embedding(weights.SPEAKERS, dim, dtype="float32", name="speaker_embedding")
    layer.build((None, None))
    if weights.SPEAKER_TABLE in tensors:
        layer.embeddings.assign(tensors[weights.SPEAKER_TABLE])
    else:
        initialize_weights(layer.trainable_variables, seed)
    return layer


class PairHead(keras.layers.Layer):
    """A two-layer perceptron on the vector of a sequence (Xu et al. 2020, equation 1).

    With a tanh in between, it is BERT's pooler followed by a classifier, so a checkpoint's pooler
    can initialise it. `dim` is the width of the hidden layer; 0 for a single layer.
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


def build_pair_head(
    name: str, sizes: tuple[int, int], classes: int, seed: int, tensors: dict[str, Any]
) -> PairHead:
    """A head on sequence vectors, with weights drawn by the seed, or those of a checkpoint's pooler
    if its tensors have one; that called "matching" also starts from the classifier.

    `sizes` are the widths of a sequence's vector and of the hidden layer; without one, the only
    layer starts as a sum.
    """
    dim, hidden = sizes
    head = PairHead(hidden, classes, dtype="float32", name=name)
    head.build((None, dim))
    initialize_weights(head.trainable_variables, seed)
    if not hidden:
        head.output_layer.kernel.assign(ops.ones_like(head.output_layer.kernel))
        return head
    starts = [(weights.POOLER, head.hidden, (hidden, hidden))]
    starts += [(weights.CLASSIFIER, head.output_layer, (1, hidden))] if name == "matching" else []
    for source, layer, shape in starts:
        kernel, bias = (tensors.get(f"{source}.{part}") for part in ("weight", "bias"))
        if kernel is not None and bias is not None and kernel.shape == shape:
            layer.kernel.assign(kernel.T)
            layer.bias.assign(bias)
    return head


class TurnScores(keras.layers.Layer):
    """Scores for which of a dialogue's turns, at most `turns`, does not belong (Xu et al. 2020,
    equations 6 and 7). A turn's vector is the mean and the maximum of its tokens' vectors.
    """

    def __init__(self, turns, **kwargs):
        super().__init__(**kwargs)
        self.turns = turns

    def build(self, tokens_shape, turn_ids_shape, labels_shape):
        shape = (2 * tokens_shape[-1], 1)
        self.kernel = self.add_weight(shape=shape, initializer="zeros", name="kernel")
        self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def call(self, tokens, turn_ids, labels):
        """Scores the turns of dialogues: float `[dialogues, turns]`, with -1e9, to which a softmax
        gives 0, for a turn that a dialogue does not have; from the tokens of all turns, float
        `[tokens, dim]`, int32 `[tokens]`, each token's dialogue x turns + turn, and int32
        `[dialogues]`, of which only the number of entries is used.
        """
        segments = ops.shape(labels)[0] * self.turns
        ones = ops.ones_like(turn_ids, dtype="float32")
        counts = tf.math.unsorted_segment_sum(ones, turn_ids, segments)[:, None]
        total = tf.math.unsorted_segment_sum(tokens, turn_ids, segments)
        largest = tf.math.unsorted_segment_max(tokens, turn_ids, segments)
        largest = ops.where(counts > 0.0, largest, 0.0)
        vectors = ops.concatenate([total / ops.maximum(counts, 1.0), largest], axis=-1)
        scores = ops.matmul(vectors, self.kernel) + self.bias
        scores = ops.where(counts > 0.0, scores, -1e9)
        return ops.reshape(scores, (-1, self.turns))


def predict_tokens(
    head: keras.layers.Layer, tokens: keras.KerasTensor, places: keras.KerasTensor
) -> keras.KerasTensor:
    """Token predictions at places, int32 `[tokens]`: logits, float32 `[tokens, vocabulary]`."""
    tokens, places = ops.expand_dims(tokens, 0), ops.expand_dims(places, 0)
    return ops.squeeze(head(tokens, mask_positions=places), 0)


class ReaderScorer(tf.Module):
    """Scores sequences by a reader of padded tables and its matching head."""

    def __init__(self, reader: Reader, head: PairHead):
        super().__init__()
        self._reader = reader
        self._head = head
        self._layer = reader.layer  # so that a SavedModel finds a matcher's weights

    def score(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Logits, float32 `[rows]`, of token_ids, segment_ids and, if the reader has speaker
        embeddings, speaker_ids, each int32 `[rows, tokens]`.
        """
        found = self._reader.read(inputs)
        rows, width = tf.unstack(tf.shape(inputs["token_ids"]))
        return self._head(found.get("vectors", tf.gather(found["tokens"], tf.range(rows) * width)))


def _name_dense(name: str, layer: keras.layers.Dense) -> dict[str, np.ndarray]:
    kernel = np.ascontiguousarray(layer.kernel.numpy().T)
    return {f"{name}.weight": kernel, f"{name}.bias": layer.bias.numpy()}


def write_cross_encoder(
    folder: pathlib.Path,
    backbone: keras_hub.models.BertBackbone,
    head: PairHead,
    speakers: keras.layers.Embedding | None,
    masked_lm: keras_hub.layers.MaskedLMHead | None = None,
) -> None:
    """Writes `model.safetensors` with the names of HuggingFace's BertForSequenceClassification, or
    with a prediction head those of BertForMaskedLM and a pooler: the output layer of `head`, whose
    classes are then specific to post-training, is left out.

    The pooler is the hidden layer of `head`. No class of HuggingFace has the speakers' name.
    """
    tensors = weights.to_tensors(weights.backbone_weights(backbone))
    if speakers:
        tensors[weights.SPEAKER_TABLE] = speakers.embeddings.numpy()
    tensors |= _name_dense(weights.POOLER, head.hidden)
    tensors = {f"bert.{name}": value for name, value in tensors.items()}
    if masked_lm:
        tensors |= weights.to_tensors(weights.masked_lm_head_weights(masked_lm))
    else:
        tensors |= _name_dense(weights.CLASSIFIER, head.output_layer)
    weights.write_tensors(folder, tensors)


def build_head(tensors: Mapping[str, np.ndarray]) -> PairHead:
    """Builds the matching head that `write_matcher` wrote, from a file's tensors."""
    names = sorted(name for name in tensors if name.startswith("head."))
    values = [tensors[name] for name in names]
    head = PairHead(0 if len(values) == 2 else len(values[1]), dtype="float32", name="matching")
    head.build((None, len(values[0])))
    head.set_weights(values)
    return head
