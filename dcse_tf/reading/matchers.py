"""Matching models without a pre-trained language model: DualLSTM and ESIM.

Both have a cross-encoder's input, the table of `dcse_tf.bert.pairs`, and its outputs: a vector
for each row, to which a task applies its head, and a vector for each token.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from dcse_tf.bert import weights
from dcse_tf.bert.checkpoints import MATCHER_FILE
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.matching.equations import masked_mean, zero_padding
from dcse_tf.reading.reranker_files import LEAST_OF_MATCHER, read_matcher_settings

# Far larger than BERT's 0.02: BERT applies a layer norm next, while here nothing scales the vectors
# up. With 0.1, ESIM's first attention is the same everywhere, and it learns nothing for hundreds of
# steps.
_EMBEDDING_STDDEV = 1.0


class SegmentTables:
    """Where the two segments of a table's rows are, and tables of either segment alone.

    From the segment of each token, int32 `[rows, tokens]`, 0 or 1, and bool `[rows, tokens]`, True
    = real token.

    Attributes:
        masks: bool `[rows, n]` and `[rows, m]`, True = real token. A table is as wide as its
            longest segment; if no row has one, it is a single column of padding.
    """

    def __init__(self, segment_ids: tf.Tensor, padding_mask: tf.Tensor):
        self._places = [padding_mask & (segment_ids == number) for number in (0, 1)]
        lengths = [tf.math.count_nonzero(own, axis=1, dtype=tf.int32) for own in self._places]
        # Without rows, the largest length is negative.
        self.masks = [tf.sequence_mask(x, tf.maximum(tf.reduce_max(x), 1)) for x in lengths]

    def split(self, values: tf.Tensor) -> list[tf.Tensor]:
        """Float `[rows, tokens, dim]` to the segments' `[rows, n, dim]` and `[rows, m, dim]`."""
        return [_move(values, *each) for each in zip(self._places, self.masks, strict=True)]

    def join(self, tables: Sequence[tf.Tensor]) -> tf.Tensor:
        """The inverse of `split`: float `[rows, tokens, dim]`, zero at padding."""
        every = zip(tables, self.masks, self._places, strict=True)
        return tf.add_n([_move(*each) for each in every])


def _move(values: tf.Tensor, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """The vectors where `source` is True, in order, at the places where `target` is; else zeros."""
    shape = tf.concat([tf.shape(target), tf.shape(values)[2:]], axis=0)
    found, places = tf.boolean_mask(values, source), tf.where(target)
    return tf.scatter_nd(places, found, tf.cast(shape, places.dtype))


def _read(lstm: keras.layers.Layer, tokens: tf.Tensor, mask: tf.Tensor) -> Any:
    """The outputs of a Keras LSTM on float `[rows, tokens, dim]`, arbitrary at padding."""
    # cuDNN refuses rows without a token, so that an empty segment has one of padding here.
    return lstm(tokens, mask=mask | (tf.range(tf.shape(mask)[1]) == 0))


def _name_lstm(name: str, lstm: keras.layers.LSTM) -> dict[str, keras.Variable]:
    parts = ("kernel", "recurrent_kernel", "bias")
    return {f"{name}.{part}": getattr(lstm.cell, part) for part in parts}


class _LSTMMatcher(keras.layers.Layer):
    """The base of both models: settings, the embedding, and names for the weights.

    Attributes:
        token_embedding: the table of token vectors; `MaskedLMHead` can be tied to it.
        pair_dim, tokens_dim: widths of a call's two outputs.

    A call takes token_ids int32, segment_ids int32 (0 in the first segment and 1 in the second) and
    padding_mask bool (True = real token), all `[rows, tokens]`, and returns

        pair: float32 `[rows, pair_dim]`, a vector of a row's two segments; zero for a row with one.
        tokens: float32 `[rows, tokens, tokens_dim]`, zero at padding.
    """

    def __init__(self, vocabulary_size, embedding_dim, hidden_dim, dropout, seed=0, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.embedding_dim = embedding_dim
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.seed = seed
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size, embedding_dim, dtype=self.dtype_policy, name="token_embedding"
        )
        self.embedding_dropout = self._make_dropout("embedding_dropout", 0)

    def _make_dropout(self, name, position):
        seed = self.seed + position
        return keras.layers.Dropout(self.dropout, seed=seed, dtype=self.dtype_policy, name=name)

    def _make_lstm(self, **settings):
        # Its seed is that of a dropout which is not used.
        settings |= {"return_sequences": True, "dtype": self.dtype_policy, "seed": self.seed}
        return keras.layers.LSTM(self.hidden_dim, **settings)

    def build(self, token_ids_shape=None, segment_ids_shape=None, padding_mask_shape=None):
        self.token_embedding.build()

    def _split(self, token_ids, segment_ids, padding_mask, training):
        """The rows' segments, and the token vectors of either one."""
        segments = SegmentTables(segment_ids, padding_mask)
        embedded = self.embedding_dropout(self.token_embedding(token_ids), training=training)
        return segments, segments.split(embedded)

    def name_weights(self):
        """A dict from every weight's name in the file to its variable."""
        return {"embedding": self.token_embedding.embeddings}

    def settings(self):
        """`build_matcher`'s arguments except the seed, as a dict for a JSON file."""
        sizes = {name: getattr(self, name) for name in LEAST_OF_MATCHER if name != "architecture"}
        return {"architecture": self.name, **sizes}


class DualLSTM(_LSTMMatcher):
    """One LSTM reads each of the two segments separately (Lowe et al. 2015, section 4.3).

    Let c and r be its final states after the two segments. The paper's probability that the pair
    fits is sigma(c^T M r + b). "pair" holds the products (c^T M)_i r_i, whose sum is c^T M r. A
    head of one linear layer with weights w and bias b therefore gives c^T M diag(w) r + b, the
    paper's score with the matrix M diag(w). Without a second segment, r and "pair" are zero.

    "tokens" are the LSTM's outputs, so a token's vector depends on what precedes it in its segment.
    M starts as the identity, as in the authors' code; unlike theirs, the LSTM has no peepholes.

    The arguments are those of `build_matcher`; the seed is that of the dropout on the token vectors
    (the paper has none), unless a trainer sets its state.
    """

    def __init__(self, *sizes, **kwargs):
        super().__init__(*sizes, **kwargs)
        self.pair_dim = self.tokens_dim = self.hidden_dim
        self.lstm = self._make_lstm(return_state=True, name="lstm")

    def build(self, *shapes):
        super().build()
        self.lstm.build((None, None, self.embedding_dim))
        shape = (self.hidden_dim, self.hidden_dim)
        self.matching = self.add_weight(shape, "identity", name="matching")

    def call(self, token_ids, segment_ids, padding_mask, training=None):
        segments, split = self._split(token_ids, segment_ids, padding_mask, training)
        tables, states = [], []
        for table, mask in zip(split, segments.masks, strict=True):
            outputs, state, _ = _read(self.lstm, table, mask)
            tables.append(outputs)
            states.append(zero_padding(state, mask[:, 0]))  # of an empty segment
        pair = tf.matmul(states[0], ops.convert_to_tensor(self.matching)) * states[1]
        return {"pair": pair, "tokens": segments.join(tables)}

    def name_weights(self):
        lstm = _name_lstm("lstm", self.lstm)
        return {**super().name_weights(), **lstm, "matching": self.matching}


class ESIM(_LSTMMatcher):
    """The enhanced sequential inference model (Chen et al. 2017) on whole contexts (Chen and Wang
    2019, "Sequential matching model for end-to-end multi-turn response selection").

    A BiLSTM reads each of the two segments separately, which gives a and b. Every token attends to
    the other segment's tokens, by a softmax over the products e_ij = a_i . b_j, which gives a~ and
    b~. A layer with a ReLU projects [a; a~; a - a~; a * a~] to the hidden width, and likewise for
    b. A second BiLSTM reads the result.

    "pair" concatenates the mean and the maximum of the second BiLSTM's outputs over the first
    segment, then those over the second: 8 times the hidden width. The paper applies an MLP to it.
    A row without a second segment has nothing to attend to, and its "pair" is zero.

    "tokens" are the first BiLSTM's outputs: a token's vector depends on its whole segment, but not
    on the other one.

    The arguments are those of `build_matcher`. The hidden width is that of each direction's state
    and of the ReLU layer; dropout is on the token vectors, after the ReLU and on "pair".
    """

    def __init__(self, *sizes, **kwargs):
        super().__init__(*sizes, **kwargs)
        self.pair_dim, self.tokens_dim = 8 * self.hidden_dim, 2 * self.hidden_dim
        policy = {"dtype": self.dtype_policy}
        self.context_lstm, self.composition_lstm = (
            keras.layers.Bidirectional(self._make_lstm(), name=name, **policy)
            for name in ("context_lstm", "composition_lstm")
        )
        self.projection = keras.layers.Dense(self.hidden_dim, "relu", name="projection", **policy)
        self.projection_dropout = self._make_dropout("projection_dropout", 1)
        self.pair_dropout = self._make_dropout("pair_dropout", 2)

    def build(self, *shapes):
        super().build()
        self.context_lstm.build((None, None, self.embedding_dim))
        self.projection.build((None, 8 * self.hidden_dim))
        self.composition_lstm.build((None, None, self.hidden_dim))

    def call(self, token_ids, segment_ids, padding_mask, training=None):
        segments, split = self._split(token_ids, segment_ids, padding_mask, training)
        tokens = segments.join(
            [_read(self.context_lstm, *each) for each in zip(split, segments.masks, strict=True)]
        )
        aligned = segments.join(_align(*segments.split(tokens), *segments.masks))

        # Only the real tokens of rows with two segments are computed further.
        is_pair = segments.masks[0][:, :1] & segments.masks[1][:, :1]
        places = tf.where(padding_mask & is_pair)
        own, other = tf.gather_nd(tokens, places), tf.gather_nd(aligned, places)
        features = tf.concat([own, other, own - other, own * other], axis=1)
        projected = self.projection_dropout(self.projection(features), training=training)
        shape = tf.concat([tf.shape(token_ids), [self.hidden_dim]], axis=0)
        projected = tf.scatter_nd(places, projected, tf.cast(shape, places.dtype))

        pools = []
        for table, mask in zip(segments.split(projected), segments.masks, strict=True):
            composed = _read(self.composition_lstm, table, mask)
            pools += [pool(composed, mask & is_pair) for pool in (masked_mean, _masked_max)]
        pair = self.pair_dropout(tf.concat(pools, axis=1), training=training)
        return {"pair": pair, "tokens": tokens}

    def name_weights(self):
        names = super().name_weights()
        for name in ("context_lstm", "composition_lstm"):
            lstm = getattr(self, name)
            names |= _name_lstm(f"{name}.forward", lstm.forward_layer)
            names |= _name_lstm(f"{name}.backward", lstm.backward_layer)
        return names | {f"projection.{x}": getattr(self.projection, x) for x in ("kernel", "bias")}


def _align(
    first: tf.Tensor, second: tf.Tensor, first_mask: tf.Tensor, second_mask: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """For every token, the mean of the other segment's tokens weighted by attention to them: float
    `[rows, n, dim]` and `[rows, m, dim]` to the same shapes, arbitrary at padding, where the masks,
    bool `[rows, n]` and `[rows, m]`, are False.
    """
    scores = tf.matmul(first, second, transpose_b=True)  # [rows, n, m]
    masked = tf.constant(scores.dtype.min, scores.dtype)
    to_second = tf.nn.softmax(tf.where(second_mask[:, None, :], scores, masked))
    to_first = tf.nn.softmax(tf.where(first_mask[:, :, None], scores, masked), axis=1)
    return tf.matmul(to_second, second), tf.matmul(to_first, first, transpose_a=True)


def _masked_max(inputs: tf.Tensor, is_real: tf.Tensor) -> tf.Tensor:
    """Like `masked_mean`, the maximum over the marked entries; zero if none is marked."""
    masked = tf.constant(inputs.dtype.min, inputs.dtype)
    largest = tf.reduce_max(tf.where(is_real[..., None], inputs, masked), axis=-2)
    some = tf.reduce_any(is_real, axis=-1, keepdims=True)
    return tf.where(some, largest, tf.zeros_like(largest))


_ARCHITECTURES: dict[str, type[_LSTMMatcher]] = {"dual_lstm": DualLSTM, "esim": ESIM}


def build_matcher(
    architecture: str,
    vocabulary_size: int,
    seed: int,
    embedding_dim: int = 300,
    hidden_dim: int = 300,
    dropout: float = 0.1,
) -> DualLSTM | ESIM:
    """A matching model, "dual_lstm" or "esim", with weights drawn by (seed, position).

    The default sizes, of the token vectors and of an LSTM's state, are those of both papers' code
    (github.com/npow/ubottu and github.com/alibaba/esim-response-selection); the text of Lowe et al.
    has 200 hidden units. That code has no dropout in DualLSTM and drops half in ESIM.
    """
    build, sizes = _ARCHITECTURES[architecture], (vocabulary_size, embedding_dim, hidden_dim)
    matcher = build(*sizes, dropout, seed, dtype="float32", name=architecture)
    matcher.build()
    _initialize(matcher, seed)
    return matcher


def _initialize(matcher: _LSTMMatcher, seed: int) -> None:
    """Draws the weights by (seed, position); biases and M keep their initial values. The recurrent
    matrix of every gate is orthogonal; other kernels are uniform (Glorot and Bengio 2010).
    """
    for position, (name, variable) in enumerate(matcher.name_weights().items()):
        if name == "matching" or name.endswith("bias"):
            continue
        key = tf.random.fold_in(tf.constant([seed, 2], tf.int64), position)
        shape = variable.shape
        if name == "embedding":
            value = tf.random.stateless_truncated_normal(shape, key, 0.0, _EMBEDDING_STDDEV)
        elif name.endswith("recurrent_kernel"):
            units, gates = shape[0], shape[1] // shape[0]
            normal = tf.random.stateless_normal([gates, units, units], key, dtype=tf.float64)
            basis, triangle = tf.linalg.qr(normal)
            # QR does not fix the signs.
            basis *= tf.sign(tf.linalg.diag_part(triangle))[:, None, :]
            value = tf.cast(tf.concat(tf.unstack(basis), axis=1), tf.float32)
        else:
            limit = (6.0 / sum(shape)) ** 0.5
            value = tf.random.stateless_uniform(shape, key, -limit, limit)
        variable.assign(value)


def write_matcher(
    folder: pathlib.Path, matcher: DualLSTM | ESIM, head: Sequence[keras.Variable] = ()
) -> None:
    """Writes `matcher.json` and `model.safetensors`, with a head's weights as "head.0" and on."""
    write_json(folder / MATCHER_FILE, matcher.settings(), sort_keys=True)
    named = {**matcher.name_weights(), **{f"head.{i}": value for i, value in enumerate(head)}}
    weights.write_tensors(folder, {name: value.numpy() for name, value in named.items()})


def read_matcher(folder: pathlib.Path) -> DualLSTM | ESIM:
    """Reads the model that `write_matcher` wrote; raises InputError if a file is missing or broken,
    or the weights do not fit the settings.
    """
    settings, known = read_matcher_settings(folder), " or ".join(_ARCHITECTURES)
    if (name := settings["architecture"]) not in _ARCHITECTURES:
        raise InputError(f"{folder / MATCHER_FILE}: architecture {name!r:.40}, expected {known}")
    matcher = build_matcher(**settings, seed=0)
    named = matcher.name_weights().items()
    pairs = (weights.WeightPair(variable, name) for name, variable in named)
    weights.assign(pairs, weights.read_tensors(folder), str(folder))
    return matcher
