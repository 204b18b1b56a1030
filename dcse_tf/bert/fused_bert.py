"""BERT for inference: token embeddings and scores of pairs, faster than with Keras layers."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.bert.checkpoints import approximates_gelu
from dcse_tf.bert.families import BUCKET_OF, FARTHEST, RELATIVE_BIAS
from dcse_tf.bert.weights import CLASSIFIER, POOLER, SPEAKER_TABLE

_MASKED = -1e9
Hold = Callable[[np.ndarray, tf.DType], Any]


class FusedBert(tf.Module):
    """Computes the same as keras-hub's BERT, faster, from the tensors of a checkpoint.

    All tokens are rows of one matrix, so that TensorFlow fuses a product, its bias and GELU into
    one oneDNN operation, which it does not do for Keras' three-dimensional products. Query, key
    and value are one product. With bfloat16, matrix products, attention and GELU are computed in
    bfloat16; residuals, layer norms and the output stay float32.

    For `tensors` and `config` see `read_bert_tensors`, for those that `score` needs `head_shapes`.
    `hold` makes a weight from an array and a dtype: a constant by default, or variables if a
    SavedModel is to be written.
    """

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        config: dict[str, Any],
        compute_dtype: str = "float32",
        hold: Hold | None = None,
    ):
        super().__init__()
        hold = hold or tf.constant
        self.dim: int = config["hidden_size"]
        self._heads = config["num_attention_heads"]
        self._epsilon = float(config["layer_norm_eps"])
        self._approximate = approximates_gelu(config)
        self._dtype = tf.as_dtype(compute_dtype)

        words, places, segments = (
            tensors[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        self._tokens = hold(words, tf.float32)
        # The first segment's embedding is added to every position; tokens of other segments then
        # add the difference.
        self._positions = hold(places + segments[0], tf.float32)
        self._segments = hold(segments - segments[0], tf.float32)
        relative, speakers = tensors.get(RELATIVE_BIAS), tensors.get(SPEAKER_TABLE)
        self._relative = None if relative is None else hold(relative[BUCKET_OF].T, self._dtype)
        self._speakers = None if speakers is None else hold(speakers, tf.float32)

        def hold_dense(
            *names: str, scale: np.ndarray | float = 1.0, dtype: tf.DType = self._dtype
        ) -> tuple[Any, Any]:
            kernel = np.concatenate([tensors[f"{name}.weight"].T for name in names], 1) * scale
            bias = np.concatenate([tensors[f"{name}.bias"] for name in names]) * scale
            return hold(kernel, dtype), hold(bias, dtype)

        def hold_norm(name: str) -> tuple[Any, Any]:
            gamma, beta = (tensors[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
            return hold(gamma, tf.float32), hold(beta, tf.float32)

        # The query includes the scale of attention's scores.
        scale = np.repeat([(self.dim // self._heads) ** -0.5, 1.0, 1.0], self.dim)
        self._norm = hold_norm("embeddings")
        self._layers = []
        for prefix in (f"encoder.layer.{i}" for i in range(config["num_hidden_layers"])):
            parts = [f"{prefix}.attention.self.{name}" for name in ("query", "key", "value")]
            layer = {
                "query_key_value": hold_dense(*parts, scale=scale),
                "attended": hold_dense(f"{prefix}.attention.output.dense"),
                "attended_norm": hold_norm(f"{prefix}.attention.output"),
                "intermediate": hold_dense(f"{prefix}.intermediate.dense"),
                "output": hold_dense(f"{prefix}.output.dense"),
                "output_norm": hold_norm(f"{prefix}.output"),
            }
            self._layers.append(layer)

        # Always in float32, since the head computes only one row for each sequence.
        heads = [name for name in (POOLER, CLASSIFIER) if f"{name}.weight" in tensors]
        self._head = [hold_dense(name, dtype=tf.float32) for name in heads]

    def __call__(
        self, inputs: dict[str, tf.Tensor], training: bool = False, first_only: bool = False
    ) -> tf.Tensor:
        """Token embeddings, those of `build_bert_encoder`'s model: float32 `[utterances, tokens,
        dim]`, or `[utterances, 1, dim]` if the last layer is computed for the first tokens alone.

        The inputs are token_ids int32 and padding_mask bool (True = real token), both `[utterances,
        tokens]`, and in the same shape, int32, segment_ids (all 0 if missing) and, if the BERT has
        speaker embeddings, speaker_ids.
        """
        if training:
            raise ValueError("FusedBert is for inference")
        token_ids = inputs["token_ids"]
        texts, tokens = tf.unstack(tf.shape(token_ids))
        x = tf.gather(self._tokens, token_ids) + self._positions[:tokens]
        if "segment_ids" in inputs:
            x += tf.gather(self._segments, inputs["segment_ids"])
        if self._speakers is not None:
            x += tf.gather(self._speakers, inputs["speaker_ids"])
        x = self._layer_norm(tf.reshape(x, [-1, self.dim]), self._norm)  # [all tokens, dim]

        # What attention adds to its scores: [utterances, heads or 1, tokens or 1, tokens].
        bias = tf.cast(tf.where(inputs["padding_mask"], 0.0, _MASKED), self._dtype)
        bias = bias[:, tf.newaxis, tf.newaxis, :]
        if self._relative is not None:
            places = tf.range(tokens)
            distances = tf.clip_by_value(places - places[:, tf.newaxis], -FARTHEST, FARTHEST)
            bias += tf.gather(self._relative, distances + FARTHEST, axis=1)

        shape = tf.stack([-1, tokens, 3, self._heads, self.dim // self._heads])
        for layer in self._layers:
            parts = tf.reshape(_dense(x, layer["query_key_value"]), shape)
            query, key, value = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
            if first_only and layer is self._layers[-1]:
                query, bias, x = query[:, :, :1], bias[:, :, :1], x[::tokens]
            weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + bias)
            attended = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
            attended = _dense(tf.reshape(attended, [-1, self.dim]), layer["attended"])
            x = self._layer_norm(x + tf.cast(attended, tf.float32), layer["attended_norm"])
            hidden = tf.nn.gelu(_dense(x, layer["intermediate"]), approximate=self._approximate)
            x = x + tf.cast(_dense(hidden, layer["output"]), tf.float32)
            x = self._layer_norm(x, layer["output_norm"])
        # Not -1: of an empty batch that is 1.
        return tf.reshape(x, tf.stack([texts, 1 if first_only else tokens, self.dim]))

    def score(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Logits of sequences by BertForSequenceClassification's head of one output, on [CLS]:
        float32 `[sequences]`; for the inputs, see `__call__`.
        """
        pooler, classifier = self._head
        pooled = tf.tanh(_dense(self(inputs, first_only=True)[:, 0], pooler))
        return tf.squeeze(_dense(pooled, classifier), 1)

    def _layer_norm(self, x: tf.Tensor, weights: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        gamma, beta = weights
        x = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x), -1, keepdims=True)
        return x * tf.math.rsqrt(variance + self._epsilon) * gamma + beta


def _dense(x: tf.Tensor, weights: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    kernel, bias = weights
    return tf.nn.bias_add(tf.matmul(tf.cast(x, kernel.dtype), kernel), bias)
