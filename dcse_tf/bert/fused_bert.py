"""BERT for inference: token embeddings and scores of pairs, faster than with Keras layers."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.bert.checkpoints import approximates_gelu
from dcse_tf.bert.families import BUCKET_OF, FARTHEST, RELATIVE_BIAS
from dcse_tf.bert.weights import CLASSIFIER, POOLER, SPEAKER_TABLE, SPEAKERS

_MASKED = -1e9
Hold = Callable[[np.ndarray, tf.DType], Any]


class FusedBert(tf.Module):
    """Computes the same as keras-hub's BERT, faster, from the tensors of a checkpoint.

    All tokens are rows of one matrix, so that TensorFlow fuses a product, its bias and GELU into
    one oneDNN operation, which it does not do for Keras' three-dimensional products. Query, key
    and value are one product. With bfloat16, matrix products, attention and GELU are computed in
    bfloat16; residuals, layer norms and the output stay float32.

    Args:
        tensors: the weights, see `read_bert_tensors`; with `SPEAKER_TABLE` if the BERT has speaker
            embeddings, and with `RELATIVE_BIAS` for an MPNet.
        config: the configuration, see `read_config`.
        compute_dtype: "float32" or "bfloat16".
        hold: makes a weight from an array and a dtype: constants, or variables if a SavedModel is
            to be written.
    """

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        config: dict[str, Any],
        compute_dtype: str = "float32",
        hold: Hold = tf.constant,
    ):
        super().__init__()
        self.dim: int = config["hidden_size"]
        self._heads = config["num_attention_heads"]
        self._epsilon = float(config["layer_norm_eps"])
        self._approximate = approximates_gelu(config)
        self._dtype = tf.as_dtype(compute_dtype)
        self._hold = hold
        words, places, segments = (
            tensors[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        self._tokens = hold(words, tf.float32)
        # The first segment's embedding is added to every position; tokens of other segments then
        # add the difference.
        self._positions = hold(places + segments[0], tf.float32)
        self._segments = hold(segments - segments[0], tf.float32)
        relative = tensors.get(RELATIVE_BIAS)
        self._relative = None if relative is None else hold(relative[BUCKET_OF].T, self._dtype)
        speakers = tensors.get(SPEAKER_TABLE)
        self._speakers = None if speakers is None else hold(speakers, tf.float32)
        self._norm = self._norm_weights(tensors, "embeddings")
        self._layers = self._make_layers(tensors, config["num_hidden_layers"])

    def _make_layers(self, tensors: Mapping[str, np.ndarray], count: int) -> list[dict[str, Any]]:
        return [self._layer_weights(tensors, f"encoder.layer.{i}") for i in range(count)]

    def _layer_weights(self, tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, Any]:
        return {
            "query_key_value": self._attention_weights(tensors, prefix, "query", "key", "value"),
            "attended": self._dense_weights(tensors, f"{prefix}.attention.output.dense"),
            "attended_norm": self._norm_weights(tensors, f"{prefix}.attention.output"),
            "intermediate": self._dense_weights(tensors, f"{prefix}.intermediate.dense"),
            "output": self._dense_weights(tensors, f"{prefix}.output.dense"),
            "output_norm": self._norm_weights(tensors, f"{prefix}.output"),
        }

    def _attention_weights(
        self, tensors: Mapping[str, np.ndarray], prefix: str, *names: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Some of query, key and value as one product; the query includes the scores' scale."""
        scales = [(self.dim // self._heads) ** -0.5 if name == "query" else 1.0 for name in names]
        paths = [f"{prefix}.attention.self.{name}" for name in names]
        return self._dense_weights(tensors, *paths, scale=np.repeat(scales, self.dim))

    def _dense_weights(
        self,
        tensors: Mapping[str, np.ndarray],
        *names: str,
        scale: np.ndarray | float = 1.0,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        kernel = np.concatenate([tensors[f"{name}.weight"].T for name in names], 1) * scale
        bias = np.concatenate([tensors[f"{name}.bias"] for name in names]) * scale
        return self._hold(kernel, self._dtype), self._hold(bias, self._dtype)

    def _norm_weights(
        self, tensors: Mapping[str, np.ndarray], prefix: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        gamma, beta = (tensors[f"{prefix}.LayerNorm.{name}"] for name in ("weight", "bias"))
        return self._hold(gamma, tf.float32), self._hold(beta, tf.float32)

    def __call__(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """Token embeddings, the same as those of `build_bert_encoder`'s model.

        Args:
            inputs: token_ids int32 and padding_mask bool (True = real token), both
                `[utterances, tokens]`. In the same shape, int32: segment_ids (all 0 if missing)
                and, if the BERT has speaker embeddings, speaker_ids.
            training: must be False, since there is no dropout.

        Returns:
            float32 `[utterances, tokens, dim]`.

        Raises:
            ValueError: `training` is True.
        """
        if training:
            raise ValueError("FusedBert is for inference")
        tokens = tf.shape(inputs["token_ids"])[1]
        x, bias = self._embed(inputs)
        for layer in self._layers:
            x = self._run_layer(x, layer, bias, tokens)
        return tf.reshape(x, tf.stack([-1, tokens, self.dim]))

    def _embed(self, inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """The first layer's input and the bias that attention adds to its scores.

        Returns:
            float32 `[all tokens, dim]`; and `[utterances, 1, 1, tokens]` or, for an MPNet,
            `[utterances, heads, tokens, tokens]`.
        """
        token_ids = inputs["token_ids"]
        x = tf.gather(self._tokens, token_ids) + self._positions[: tf.shape(token_ids)[1]]
        if "segment_ids" in inputs:
            x += tf.gather(self._segments, inputs["segment_ids"])
        if self._speakers is not None:
            x += tf.gather(self._speakers, inputs["speaker_ids"])
        x = self._layer_norm(tf.reshape(x, [-1, self.dim]), self._norm)
        bias = tf.cast(tf.where(inputs["padding_mask"], 0.0, _MASKED), self._dtype)
        bias = bias[:, tf.newaxis, tf.newaxis, :]
        if self._relative is not None:
            places = tf.range(tf.shape(token_ids)[1])
            distances = tf.clip_by_value(places - places[:, tf.newaxis], -FARTHEST, FARTHEST)
            bias += tf.gather(self._relative, distances + FARTHEST, axis=1)
        return x, bias

    def _run_layer(
        self, x: tf.Tensor, layer: dict[str, Any], bias: tf.Tensor, tokens: tf.Tensor
    ) -> tf.Tensor:
        width = self.dim // self._heads
        parts = tf.reshape(
            _dense(x, layer["query_key_value"]), tf.stack([-1, tokens, 3, self._heads, width])
        )
        query, key, value = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        return self._finish_layer(x, self._attend(query, key, value, bias), layer)

    def _attend(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, bias: tf.Tensor
    ) -> tf.Tensor:
        """Attention within each utterance.

        Args:
            query, key, value: `[utterances, heads, tokens, width]`; the query may have fewer
                tokens.
            bias: see `_embed`.

        Returns:
            `[all query tokens, dim]`.
        """
        weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + bias)
        x = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
        return tf.reshape(x, [-1, self.dim])

    def _finish_layer(self, x: tf.Tensor, attended: tf.Tensor, layer: dict[str, Any]) -> tf.Tensor:
        """The part of a layer after attention, token by token: `[tokens, dim]`."""
        x = x + tf.cast(_dense(attended, layer["attended"]), tf.float32)
        x = self._layer_norm(x, layer["attended_norm"])
        hidden = tf.nn.gelu(_dense(x, layer["intermediate"]), approximate=self._approximate)
        x = x + tf.cast(_dense(hidden, layer["output"]), tf.float32)
        return self._layer_norm(x, layer["output_norm"])

    def _layer_norm(self, x: tf.Tensor, weights: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        gamma, beta = weights
        x = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x), -1, keepdims=True)
        return x * tf.math.rsqrt(variance + self._epsilon) * gamma + beta


def _dense(x: tf.Tensor, weights: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    kernel, bias = weights
    return tf.nn.bias_add(tf.matmul(tf.cast(x, kernel.dtype), kernel), bias)


class FusedCrossEncoder(FusedBert):
    """A BERT with BertForSequenceClassification's head of one output.

    The head only reads [CLS], so the last layer computes keys and values for all tokens, but the
    query and everything after it for [CLS] alone. The scores are exact.

    Args: as for `FusedBert`; the tensors include those of the head, see `head_shapes`.
    """

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        config: dict[str, Any],
        compute_dtype: str = "float32",
        hold: Hold = tf.constant,
    ):
        super().__init__(tensors, config, compute_dtype, hold)
        # Always in float32, since the head computes only one row for each sequence.
        self._pooler, self._classifier = (
            (
                hold(tensors[f"{name}.weight"].T, tf.float32),
                hold(tensors[f"{name}.bias"], tf.float32),
            )
            for name in (POOLER, CLASSIFIER)
        )

    def _make_layers(self, tensors: Mapping[str, np.ndarray], count: int) -> list[dict[str, Any]]:
        layers = super()._make_layers(tensors, count)
        prefix = f"encoder.layer.{count - 1}"
        del layers[-1]["query_key_value"]
        layers[-1]["query"] = self._attention_weights(tensors, prefix, "query")
        layers[-1]["key_value"] = self._attention_weights(tensors, prefix, "key", "value")
        return layers

    def score(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Logits of sequences; see `FusedBert.__call__` for the inputs.

        Returns:
            float32 `[sequences]`.
        """
        tokens = tf.shape(inputs["token_ids"])[1]
        x, bias = self._embed(inputs)
        for layer in self._layers[:-1]:
            x = self._run_layer(x, layer, bias, tokens)
        first = self._run_last(x, self._layers[-1], bias, tokens)
        pooled = tf.tanh(_dense(first, self._pooler))
        return tf.squeeze(_dense(pooled, self._classifier), 1)

    def _run_last(
        self, x: tf.Tensor, layer: dict[str, Any], bias: tf.Tensor, tokens: tf.Tensor
    ) -> tf.Tensor:
        """The last layer at [CLS], `[sequences, dim]`."""
        width = self.dim // self._heads
        parts = tf.reshape(
            _dense(x, layer["key_value"]), tf.stack([-1, tokens, 2, self._heads, width])
        )
        key, value = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        first = tf.reshape(x, tf.stack([-1, tokens, self.dim]))[:, 0]
        query = tf.reshape(_dense(first, layer["query"]), [-1, self._heads, 1, width])
        return self._finish_layer(first, self._attend(query, key, value, bias), layer)


def head_shapes(dim: int, speakers: bool) -> dict[str, tuple[int, ...]]:
    """The shapes of a re-ranker's tensors other than its BERT's, by name."""
    shapes: dict[str, tuple[int, ...]] = {
        f"{POOLER}.weight": (dim, dim),
        f"{POOLER}.bias": (dim,),
        f"{CLASSIFIER}.weight": (1, dim),
        f"{CLASSIFIER}.bias": (1,),
    }
    return shapes | ({SPEAKER_TABLE: (SPEAKERS, dim)} if speakers else {})
