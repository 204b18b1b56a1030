"""BERT: the backbone, its head for masked language modelling, and the functional encoder."""

from __future__ import annotations

import functools
import math
import pathlib
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from dcse_tf.bert import weights as bert_weights
from dcse_tf.bert.checkpoints import approximates_gelu, read_config
from dcse_tf.bert.families import is_relative
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.errors import InputError

if TYPE_CHECKING:
    import keras_hub


class TokenCentering(keras.layers.Layer):
    """Subtracts the mean token embedding (not in the paper).

    If all token embeddings point in almost the same direction, every candidate's context-aware
    embedding is parallel to its context-free one, and the objective has nothing to learn from.
    Removing the common component avoids this. As in batch normalisation, the mean is that of the
    batch (over all devices) while training, and a running average afterwards, over about a hundred
    steps by default. Subtracting a constant from the output of the last layer norm equals changing
    its bias, so a trained encoder includes the centring in its weights.
    """

    def __init__(self, momentum=0.99, **kwargs):
        super().__init__(**kwargs)
        self.momentum = momentum

    def build(self, tokens_shape, padding_mask_shape):
        settings = {"initializer": "zeros", "trainable": False, "aggregation": "mean"}
        self.average = self.add_weight(shape=tokens_shape[-1:], name="average", **settings)
        # The total weight of the steps in the average, which tends to 1.
        self.weight = self.add_weight(shape=(), name="weight", **settings)

    def call(self, tokens, padding_mask, training=False):
        """Centres token embeddings, float `[utterances, tokens, dim]`, by the mean over the real
        tokens, where bool `[utterances, tokens]` is True; in training it is the batch's.
        """
        if not training:
            return tokens - self.mean()
        # Not a product with the mask: padding may hold NaN.
        real = ops.where(ops.expand_dims(padding_mask, -1), tokens, ops.zeros((), tokens.dtype))
        total = ops.sum(real, axis=(0, 1))
        count = ops.sum(ops.cast(padding_mask, tokens.dtype))
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            total, count = replica.all_reduce(tf.distribute.ReduceOp.SUM, [total, count])
        mean = total / ops.maximum(count, ops.ones((), tokens.dtype))

        rest = 1.0 - self.momentum
        self.average.assign(self.momentum * self.average + rest * ops.stop_gradient(mean))
        self.weight.assign(self.momentum * self.weight + rest)
        return tokens - mean

    def mean(self):
        """The running average, float `[dim]`; zero before the first step."""
        return self.average / ops.maximum(self.weight, keras.config.epsilon())


def make_bert_config(num_layers: int, hidden_dim: int, vocabulary_size: int) -> dict[str, Any]:
    """A config.json for random weights: BERT's proportions, with 64 dimensions in each head."""
    return {
        "architectures": ["BertModel"],
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": hidden_dim,
        "intermediate_size": 4 * hidden_dim,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "bert",
        "num_attention_heads": hidden_dim // 64,
        "num_hidden_layers": num_layers,
        "type_vocab_size": 2,
        "vocab_size": vocabulary_size,
    }


def build_backbone(
    config: dict[str, Any], dropout: float, compute_dtype: str = "float32"
) -> keras_hub.models.BertBackbone:
    """A BERT of the shape given by config.json, whose weights are still to be set; they are float32
    also if `compute_dtype` is "bfloat16". `dropout` is the probability while training.
    """
    # Not at the top: keras-hub takes half a second to import, and `FusedBert` does not need it.
    import keras_hub

    build = keras_hub.models.BertBackbone
    if is_relative(config):
        from dcse_tf.bert.relative_bert import build_relative_bert as build
    backbone = build(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        max_sequence_length=config["max_position_embeddings"],
        num_segments=config["type_vocab_size"],
        dropout=dropout,
        dtype="mixed_bfloat16" if compute_dtype == "bfloat16" else "float32",
    )
    # The constructor accepts neither epsilon nor activation, but layers read both when called.
    backbone.embeddings_layer_norm.epsilon = config["layer_norm_eps"]
    gelu = functools.partial(keras.activations.gelu, approximate=approximates_gelu(config))
    for layer in backbone.transformer_layers:
        layer._self_attention_layer_norm.epsilon = config["layer_norm_eps"]
        layer._feedforward_layer_norm.epsilon = config["layer_norm_eps"]
        layer._feedforward_intermediate_dense.activation = gelu
        attention = layer._self_attention_layer
        for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
            getattr(attention, name).__class__ = ProjectionOfAllTokens
    return backbone


class ProjectionOfAllTokens(keras.layers.EinsumDense):
    """A projection of Keras' attention, computed as one product for the tokens of all rows: from
    float `[rows, tokens, dim]` to heads, `[rows, tokens, heads, width]`, or back.

    Keras multiplies every row with the kernel by itself, which on CPUs took half as long again, and
    the kernel's gradient is then the sum of one for each row.
    """

    def call(self, inputs, training=None):
        summed = len(inputs.shape) - 2
        ends = self.kernel.shape[summed:]
        size = math.prod(self.kernel.shape[:summed])
        product = ops.matmul(
            ops.reshape(inputs, (-1, size)), ops.reshape(self.kernel, (size, math.prod(ends)))
        )
        x = ops.add(product, ops.reshape(self.bias, (-1,)))
        return ops.reshape(x, (*ops.shape(inputs)[:2], *ends))


def load_backbone(
    folder: pathlib.Path,
    dropout: float = 0.0,
    compute_dtype: str = "float32",
    vocabulary: Vocabulary | None = None,
) -> keras_hub.models.BertBackbone:
    """Loads a BERT with the weights of a checkpoint folder; see `build_backbone`. Entries that a
    given vocabulary has beyond the checkpoint's start as copies of [SEP]'s. Raises InputError if
    the folder does not hold a complete BERT.
    """
    config = read_config(folder)
    tensors = bert_weights.read_bert_tensors(folder, config)
    if vocabulary:
        size = max(config["vocab_size"], len(vocabulary.tokens))
        tensors = bert_weights.extend_vocabulary(tensors, vocabulary, folder)
        config = {**config, "vocab_size": size}
    backbone = build_backbone(config, dropout, compute_dtype)
    bert_weights.assign(bert_weights.backbone_weights(backbone), tensors, str(folder))
    return backbone


def save_backbone(
    folder: pathlib.Path,
    backbone: keras_hub.models.BertBackbone,
    config: dict[str, Any],
    token_mean: np.ndarray | None = None,
) -> None:
    """Writes config.json and model.safetensors, as `load_backbone` and HuggingFace read them, to an
    existing folder. A `token_mean`, float `[dim]`, is subtracted from its token embeddings.
    """
    tensors = bert_weights.to_tensors(bert_weights.backbone_weights(backbone))
    if token_mean is not None:
        # From the last layer norm's bias, so that it applies in any software that reads the files.
        name = f"encoder.layer.{backbone.num_layers - 1}.output.LayerNorm.bias"
        tensors[name] = (tensors[name] - token_mean).astype(tensors[name].dtype)
    bert_weights.write_bert(folder, config, tensors)


def initialize_weights(weights: list[keras.Variable], seed: int, stddev: float = 0.02) -> None:
    """Draws matrices from a truncated normal by (seed, position); leaves vectors and biases.

    Keras draws initial weights from global state; this way, a seed gives the same model anywhere.
    """
    for position, weight in enumerate(weights):
        if len(weight.shape) < 2 or "bias" in weight.name:
            continue
        key = tf.random.fold_in(tf.constant([seed, 0], tf.int64), position)
        weight.assign(tf.random.stateless_truncated_normal(weight.shape, key, 0.0, stddev))


def freeze(backbone: keras_hub.models.BertBackbone, layers: int, embeddings: bool) -> None:
    """Marks the bottom of a BERT as not trainable (paper, section 5.3): a number of transformer
    layers, -1 for half of them, and, if asked for, the embedding layers. Raises InputError if the
    BERT has fewer layers.
    """
    most = backbone.num_layers
    count = most // 2 if layers < 0 else layers
    if count > most:
        raise InputError(f"`freeze_layers`={count}: the encoder has only {most} layers")
    frozen = backbone.transformer_layers[:count]
    if embeddings:
        frozen += [backbone.token_embedding, backbone.position_embedding]
        frozen += [backbone.segment_embedding, backbone.embeddings_layer_norm]
        frozen += [backbone.relative_bias] if hasattr(backbone, "relative_bias") else []
    for layer in frozen:
        layer.trainable = False


def add_adapters(backbone: keras_hub.models.BertBackbone, rank: int, seed: int) -> None:
    """Adds low-rank adapters to the layers that are trained, and freezes everything else.

    They initially change nothing, since their second factor is zero; the first is drawn by the
    seed. Reading a kernel, also to write a checkpoint folder, gives it with the adapter merged in.
    """
    layers = [x._self_attention_layer for x in backbone.transformer_layers if x.trainable]
    for variable in backbone.variables:
        variable.trainable = False
    adapted = [dense for layer in layers for dense in (layer.query_dense, layer.value_dense)]
    for dense in adapted:
        dense.enable_lora(rank)
    initialize_weights([dense.lora_kernel_a for dense in adapted], seed)


def run_layers(
    backbone: keras_hub.models.BertBackbone,
    token_ids: keras.KerasTensor,
    attention_mask: keras.KerasTensor,
    positions: keras.KerasTensor | None = None,
    segment_ids: keras.KerasTensor | None = None,
    added: keras.KerasTensor | None = None,
) -> keras.KerasTensor:
    """Runs a BERT, without its pooler, on rows of tokens, to float `[rows, tokens, dim]`.

    Args:
        backbone, token_ids: the BERT, and int32 `[rows, tokens]`.
        attention_mask: bool `[rows, tokens or 1, tokens]`, True where a token attends to another.
        positions: int32 `[rows, tokens]`; None for positions counted along the row.
        segment_ids: int32 `[rows, tokens]`, 0 or 1; None for all 0.
        added: float `[rows, tokens, dim]`, added to the embeddings before the layer norm.
    """
    tokens = backbone.token_embedding(token_ids)
    places = backbone.position_embedding(tokens, positions=positions)
    segment_ids = ops.zeros_like(token_ids) if segment_ids is None else segment_ids
    x = backbone.embeddings_add((tokens, places, backbone.segment_embedding(segment_ids)))
    if added is not None:
        x = x + added
    x = backbone.embeddings_dropout(backbone.embeddings_layer_norm(x))
    relative_bias = getattr(backbone, "relative_bias", None)
    bias = {"bias": relative_bias(x)} if relative_bias else {}
    for layer in backbone.transformer_layers:
        x = layer(x, attention_mask=attention_mask, **bias)
    return x


def build_bert_encoder(
    backbone: keras_hub.models.BertBackbone, behind: keras.layers.Layer | None = None
) -> keras.Model:
    """The encoder of equations 1 and 2, with a layer `behind` it, such as `TokenCentering`: a
    functional model from token_ids int32 `[utterances, tokens]` and padding_mask bool `[utterances,
    tokens]` (True = real token) to float `[utterances, tokens, dim]`.
    """
    token_ids = keras.Input(shape=(None,), dtype="int32", name="token_ids")
    padding_mask = keras.Input(shape=(None,), dtype="bool", name="padding_mask")
    embeddings = run_layers(backbone, token_ids, ops.expand_dims(padding_mask, 1))
    if behind:
        embeddings = behind(embeddings, padding_mask)
    inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
    return keras.Model(inputs, embeddings, name="bert_encoder")


def build_masked_lm_head(
    token_embedding: keras_hub.layers.ReversibleEmbedding,
    backbone: keras_hub.models.BertBackbone | None,
) -> keras_hub.layers.MaskedLMHead:
    """BERT's prediction head, whose output matrix is a token embedding, with the BERT's activation
    and epsilon; without a BERT, with those of BERT's first code.
    """
    import keras_hub

    activation, epsilon = functools.partial(keras.activations.gelu, approximate=True), 1e-12
    if backbone:
        activation = backbone.transformer_layers[0]._feedforward_intermediate_dense.activation
        epsilon = float(backbone.embeddings_layer_norm.epsilon)
    return keras_hub.layers.MaskedLMHead(
        token_embedding=token_embedding,
        intermediate_activation=activation,
        layer_norm_epsilon=epsilon,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        dtype="float32",
        name="masked_lm_head",
    )


def load_masked_lm_head(head: keras_hub.layers.MaskedLMHead, tensors: dict, source: str) -> bool:
    """Loads the prediction head of a checkpoint's tensors, which errors call `source`, and returns
    whether there is one. A sentence encoder has none; the head is then trained from random weights.
    Raises InputError if part of the head is missing or has the wrong shape.
    """
    pairs = list(bert_weights.masked_lm_head_weights(head))
    if not any(pair.name in tensors for pair in pairs):
        return False
    bert_weights.assign(pairs, tensors, source)
    return True
