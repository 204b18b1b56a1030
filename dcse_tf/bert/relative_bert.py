"""MPNet for training: BERT's layers with an attention bias by distance.

keras-hub has no such model. The layers are named as in its BERT, so that code that handles its
BERT also handles this one.
"""

import keras
import keras_hub
import numpy as np
from keras import ops

from dcse_tf.bert.families import BUCKET_OF, BUCKETS, FARTHEST

_MASKED = -1e9


class RelativeBias(keras.layers.Layer):
    """The bias by distance of attention scores, see `dcse_tf.bert.families`.

    The distance of two tokens is that of their places in the row. This is right in every layout,
    since an utterance's tokens are contiguous and tokens of other utterances are masked.

    Args:
        num_heads: number of attention heads.
    """

    def __init__(self, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads

    def build(self, tokens_shape):
        # The name contains "bias" because weight decay is not applied to such weights.
        self.table = self.add_weight((BUCKETS, self.num_heads), "zeros", name="relative_bias")

    def call(self, tokens):
        """The bias, float `[1, heads, queries, keys]`, for rows of tokens, float `[rows, tokens,
        dim]`, of which only the shape is used.
        """
        places = ops.arange(ops.shape(tokens)[1])
        distances = ops.expand_dims(places, 0) - ops.expand_dims(places, 1)
        # As a product, because the gradient of a look-up would be as large as the attention.
        choice = ops.convert_to_tensor(np.eye(BUCKETS)[BUCKET_OF], self.compute_dtype)
        by_distance = ops.matmul(choice, self.table)
        rows = ops.clip(distances, -FARTHEST, FARTHEST) + FARTHEST
        return ops.expand_dims(ops.transpose(ops.take(by_distance, rows, axis=0), (2, 0, 1)), 0)


class BiasedTransformerLayer(keras_hub.layers.TransformerEncoder):
    """keras-hub's BERT layer with a bias added to the attention scores."""

    def call(self, inputs, attention_mask, bias, training=False):
        """Maps float `[rows, tokens, dim]` to the same shape.

        The mask, bool `[rows, tokens or 1, tokens]`, is True where a token attends to another; the
        bias, float `[1, heads, tokens, tokens]`, is that of `RelativeBias`.
        """
        # Attention with the weights of Keras' layer, which does not accept a bias.
        attention = self._self_attention_layer
        query = attention.query_dense(inputs)
        query = query * query.shape[-1] ** -0.5
        scores = ops.einsum("bqhd,bkhd->bhqk", query, attention.key_dense(inputs)) + bias
        weights = ops.softmax(ops.where(ops.expand_dims(attention_mask, 1), scores, _MASKED))
        weights = attention._dropout_layer(weights, training=training)
        x = ops.einsum("bhqk,bkhd->bqhd", weights, attention.value_dense(inputs))
        x = self._self_attention_dropout(attention.output_dense(x), training=training)
        attended = self._self_attention_layer_norm(inputs + x)
        x = self._feedforward_output_dense(self._feedforward_intermediate_dense(attended))
        x = self._feedforward_dropout(x, training=training)
        return self._feedforward_layer_norm(attended + x)


class RelativeBert(keras_hub.models.Backbone):
    """keras-hub's `BertBackbone` with an attention bias by distance and without a pooler.

    The segment embeddings stay zero, since MPNet has none.

    Args: as for `BertBackbone`.
    """

    def __init__(self, num_layers, **settings):
        below = keras_hub.models.BertBackbone(num_layers=0, **settings)
        dtype = settings["dtype"]
        relative_bias = RelativeBias(settings["num_heads"], dtype=dtype, name="relative_bias")
        layers = [
            BiasedTransformerLayer(
                settings["intermediate_dim"],
                settings["num_heads"],
                settings["dropout"],
                dtype=dtype,
                name=f"transformer_layer_{i}",
            )
            for i in range(num_layers)
        ]
        x = below.output["sequence_output"]
        mask = ops.expand_dims(ops.cast(below.input["padding_mask"], "bool"), 1)
        bias = relative_bias(x)
        for layer in layers:
            x = layer(x, attention_mask=mask, bias=bias)
        super().__init__(inputs=below.input, outputs={"sequence_output": x}, dtype=dtype)
        for name in (
            *("token_embedding", "position_embedding", "segment_embedding", "embeddings_add"),
            *("embeddings_layer_norm", "embeddings_dropout"),
            *("vocabulary_size", "num_heads", "hidden_dim", "max_sequence_length"),
        ):
            setattr(self, name, getattr(below, name))
        self.relative_bias, self.transformer_layers = relative_bias, layers
        self.num_layers = num_layers
        self.segment_embedding.trainable = False
