"""MPNet, of which keras-hub has no model, for training: its BERT with a bias by distance."""

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
        """Maps float `[rows, tokens, dim]` to the same shape; for the mask see `run_layers`, for
        the bias `RelativeBias`.
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


def build_relative_bert(num_layers, **settings):
    """keras-hub's `BertBackbone`, of the same settings, with layers that `run_layers` gives a bias
    by distance. The segment embeddings stay zero, since MPNet has none.
    """
    backbone = keras_hub.models.BertBackbone(num_layers=0, **settings)
    heads, policy = settings["num_heads"], {"dtype": settings["dtype"]}
    sizes = settings["intermediate_dim"], heads, settings["dropout"]
    backbone.relative_bias = RelativeBias(heads, name="relative_bias", **policy)
    backbone.transformer_layers = [
        BiasedTransformerLayer(*sizes, name=f"transformer_layer_{i}", **policy)
        for i in range(num_layers)
    ]
    for layer in (backbone.relative_bias, *backbone.transformer_layers):
        layer.build((None, None, settings["hidden_dim"]))
    backbone.num_layers = num_layers
    backbone.segment_embedding.trainable = False
    return backbone
