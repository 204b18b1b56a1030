"""Masked language modelling with the sentence encoder's BERT."""

import keras
import keras_hub

from dcse_tf.bert import weights
from dcse_tf.bert.bert import make_gelu


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
