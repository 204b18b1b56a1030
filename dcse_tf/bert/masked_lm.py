"""Masked language modelling with the sentence encoder's BERT."""

import keras
import keras_hub
from keras import ops

from dcse_tf.bert import weights
from dcse_tf.bert.bert import make_gelu
from dcse_tf.bert.layout import Layout, build_table_encoder, table_inputs


def build_masked_lm(
    backbone: keras_hub.models.BertBackbone, layout: Layout
) -> tuple[keras.Model, keras_hub.layers.MaskedLMHead]:
    """The encoder with BERT's prediction head, whose output matrix is the token embedding.

    Args:
        backbone: the BERT.
        layout: the layout of the input tables.

    Returns:
        A functional model from the tensors of `lay_out` and mask_positions, int32 `[predictions]`,
        indices into the flattened table, to logits, float32 `[predictions, vocabulary]`; and the
        head.
    """
    inputs = table_inputs(layout)
    mask_positions = keras.Input((), dtype="int32", name="mask_positions")
    head = build_head(backbone.token_embedding, backbone)
    table = build_table_encoder(backbone, layout)(inputs)
    tokens = ops.reshape(table, (1, -1, backbone.hidden_dim))
    logits = head(tokens, mask_positions=ops.expand_dims(mask_positions, 0))
    inputs["mask_positions"] = mask_positions
    return keras.Model(inputs, ops.squeeze(logits, 0), name="masked_lm"), head


def build_head(
    token_embedding: keras_hub.layers.ReversibleEmbedding,
    backbone: keras_hub.models.BertBackbone | None,
) -> keras_hub.layers.MaskedLMHead:
    """BERT's prediction head, whose output matrix is a token embedding.

    Args:
        token_embedding: the encoder's token embedding.
        backbone: the BERT whose activation and epsilon the head uses; None for those of BERT's
            first code.
    """
    activation, epsilon = make_gelu(True), 1e-12
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


def own_variables(head: keras_hub.layers.MaskedLMHead) -> list[keras.Variable]:
    """The head's trainable variables except the token embedding, which is the encoder's."""
    tied = head.token_embedding.embeddings
    return [variable for variable in head.trainable_variables if variable is not tied]


def shrink_logits(head: keras_hub.layers.MaskedLMHead, factor: float) -> None:
    """Multiplies the scale of the head's layer norm, and so its logits except for their bias."""
    for variable in own_variables(head):
        if variable.name == "gamma":
            variable.assign(variable * factor)


def load_head(head: keras_hub.layers.MaskedLMHead, tensors: dict, source: str) -> bool:
    """Loads a checkpoint's prediction head, if it has one, and returns whether it does.

    A sentence encoder's checkpoint has none; the head is then trained from random weights.

    Args:
        head: the head to assign the weights to.
        tensors: the checkpoint's tensors by name.
        source: the checkpoint, for error messages.

    Raises:
        InputError: part of the head is missing or has the wrong shape.
    """
    pairs = list(weights.masked_lm_head_weights(head))
    if not any(pair.name in tensors for pair in pairs):
        return False
    weights.assign(iter(pairs), tensors, source)
    return True
