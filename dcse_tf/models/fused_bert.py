"""BERT's forward pass for inference alone, in few and large operations."""

import keras_hub
import numpy as np
import tensorflow as tf

from dcse_tf.models import bert_encoder, bert_weights

_MASKED = -1e9


class FusedBert:
    """Computes what keras-hub's BERT computes, faster; its weights are copies and stay as they are.

    Tokens are rows of one matrix, so that TensorFlow joins a product, its bias and GELU into one
    oneDNN operation, which it does not do for the three axes that Keras multiplies; query, key and
    value are one product. With bfloat16 the matrix products and what lies between them (attention,
    GELU) are in bfloat16; residuals, layer norms and the output stay float32.

    Args:
        backbone: the BERT to copy.
        compute_dtype: "float32" or "bfloat16".
    """

    def __init__(self, backbone: keras_hub.models.BertBackbone, compute_dtype: str = "float32"):
        self.dim: int = backbone.hidden_dim
        self._heads = backbone.num_heads
        self._epsilon = bert_encoder.epsilon_of(backbone)
        self._dtype = tf.as_dtype(compute_dtype)
        tensors = {p.name: p.to_huggingface() for p in bert_weights.backbone_weights(backbone)}
        tables = [tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position")]
        segment = tensors["embeddings.token_type_embeddings.weight"][0]
        self._tokens = tf.constant(tables[0])
        self._positions = tf.constant(tables[1] + segment)  # a sentence is one segment
        self._norm = _norm_weights(tensors, "embeddings")
        self._layers = [
            self._layer_weights(tensors, f"encoder.layer.{i}") for i in range(backbone.num_layers)
        ]

    def _layer_weights(
        self, tensors: dict[str, np.ndarray], prefix: str
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        def dense(*names: str) -> tuple[tf.Tensor, tf.Tensor]:
            kernel = np.concatenate([tensors[f"{prefix}.{name}.weight"].T for name in names], 1)
            bias = np.concatenate([tensors[f"{prefix}.{name}.bias"] for name in names])
            if len(names) == 3:  # the query carries the scale of the attention's products
                scale = np.repeat([(self.dim // self._heads) ** -0.5, 1, 1], self.dim)
                kernel, bias = kernel * scale, bias * scale
            return tf.constant(kernel, self._dtype), tf.constant(bias, self._dtype)

        return {
            "query_key_value": dense(*(f"attention.self.{x}" for x in ("query", "key", "value"))),
            "attended": dense("attention.output.dense"),
            "attended_norm": _norm_weights(tensors, f"{prefix}.attention.output"),
            "intermediate": dense("intermediate.dense"),
            "output": dense("output.dense"),
            "output_norm": _norm_weights(tensors, f"{prefix}.output"),
        }

    def __call__(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """Token embeddings, as `build_bert_encoder`'s model gives them.

        Args:
            inputs: token_ids int32 `[utterances, tokens]` and padding_mask bool of that shape,
                True = real.
            training: False; there is no dropout here.

        Returns:
            float32 `[utterances, tokens, dim]`.
        """
        if training:
            raise ValueError("FusedBert is for inference")
        token_ids, padding_mask = inputs["token_ids"], inputs["padding_mask"]
        tokens = tf.shape(token_ids)[1]
        x = tf.gather(self._tokens, token_ids) + self._positions[:tokens]
        x = self._layer_norm(tf.reshape(x, [-1, self.dim]), self._norm)
        bias = tf.where(padding_mask, 0.0, _MASKED)
        bias = tf.cast(bias, self._dtype)[:, tf.newaxis, tf.newaxis, :]
        for layer in self._layers:
            attended = self._attend(_dense(x, layer["query_key_value"]), bias, tokens)
            x = x + tf.cast(_dense(attended, layer["attended"]), tf.float32)
            x = self._layer_norm(x, layer["attended_norm"])
            hidden = tf.nn.gelu(_dense(x, layer["intermediate"]), approximate=True)
            x = x + tf.cast(_dense(hidden, layer["output"]), tf.float32)
            x = self._layer_norm(x, layer["output_norm"])
        return tf.reshape(x, tf.stack([-1, tokens, self.dim]))

    def _attend(self, query_key_value: tf.Tensor, bias: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
        """Attention of every token to its own utterance; `[all tokens, 3 dim]` to `[.., dim]`."""
        width = self.dim // self._heads
        x = tf.reshape(query_key_value, tf.stack([-1, tokens, 3, self._heads, width]))
        query, key, value = tf.unstack(tf.transpose(x, [2, 0, 3, 1, 4]))
        weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + bias)
        x = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
        return tf.reshape(x, [-1, self.dim])

    def _layer_norm(self, x: tf.Tensor, weights: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        gamma, beta = weights
        x = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x), -1, keepdims=True)
        return x * tf.math.rsqrt(variance + self._epsilon) * gamma + beta


def _norm_weights(tensors: dict[str, np.ndarray], prefix: str) -> tuple[tf.Tensor, tf.Tensor]:
    weights = (tensors[f"{prefix}.LayerNorm.{name}"] for name in ("weight", "bias"))
    gamma, beta = map(tf.constant, weights)
    return gamma, beta


def _dense(x: tf.Tensor, weights: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    kernel, bias = weights
    return tf.nn.bias_add(tf.matmul(tf.cast(x, kernel.dtype), kernel), bias)
