"""Masked language modelling on the same encoder."""

import keras
import keras_hub

from dcse_tf.models import bert_weights


def build_masked_lm(
    backbone: keras_hub.models.BertBackbone, encoder: keras.Model
) -> tuple[keras.Model, keras_hub.layers.MaskedLMHead]:
    """BERT's prediction head on the encoder, its output matrix tied to the token embedding.

    Args:
        backbone: the BERT, for its token embedding.
        encoder: the encoder made from it, see `build_bert_encoder`.

    Returns:
        A functional model from token_ids, padding_mask `[batch, tokens]` and mask_positions int32
        `[batch, predictions]` to logits float32 `[batch, predictions, vocabulary]`; and the head.
    """
    inputs = {
        "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
        "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        "mask_positions": keras.Input((None,), dtype="int32", name="mask_positions"),
    }
    head = keras_hub.layers.MaskedLMHead(
        token_embedding=backbone.token_embedding,
        intermediate_activation=lambda x: keras.activations.gelu(x, approximate=True),
        layer_norm_epsilon=1e-12,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        dtype="float32",
        name="masked_lm_head",
    )
    embeddings = encoder({k: inputs[k] for k in ("token_ids", "padding_mask")})
    logits = head(embeddings, mask_positions=inputs["mask_positions"])
    return keras.Model(inputs, logits, name="masked_lm"), head


def load_head(head: keras_hub.layers.MaskedLMHead, tensors: dict, source: str) -> bool:
    """Gives the head a checkpoint's weights, if the checkpoint has a head. Returns whether it had.

    A sentence encoder's checkpoint has none; the head is then trained from random weights.
    """
    pairs = list(bert_weights.masked_lm_head_weights(head))
    if not any(pair.name in tensors for pair in pairs):
        return False
    bert_weights.assign(iter(pairs), tensors, source)
    return True
