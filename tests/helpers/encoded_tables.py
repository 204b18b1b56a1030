"""Tables as a training reads them: the models of an encoder, and of its predictions of tokens."""

import keras
from keras import ops

from dcse_tf.bert.bert import build_masked_lm_head
from dcse_tf.reading.cross_encoder import predict_tokens, read_with_bert
from dcse_tf.tasks.objective import Encoded


def _read(backbone, row_length: int, centering=None):
    packed = ("segments", "positions") if row_length else ()
    inputs = {
        name: keras.Input((None,), dtype="bool" if "mask" in name else "int32", name=name)
        for name in ("token_ids", "padding_mask", "places", *packed)
    }
    return inputs, Encoded(read_with_bert(backbone), inputs, "encoder", centering)


def build_table_encoder(backbone, row_length: int, centering=None) -> keras.Model:
    """From the tensors of `lay_out` to token embeddings, `[utterances, tokens, dim]`."""
    inputs, encoded = _read(backbone, row_length, centering)
    return keras.Model(inputs, encoded.table)


def build_masked_lm(backbone, row_length: int):
    """From these and mask_positions, indices into the flattened utterances, to logits; the head."""
    inputs, encoded = _read(backbone, row_length)
    positions = keras.Input((), dtype="int32", name="mask_positions")
    head = build_masked_lm_head(backbone.token_embedding, backbone)
    places = ops.take(ops.reshape(inputs["places"], (-1,)), positions)
    logits = predict_tokens(head, encoded.tokens, places)
    return keras.Model({**inputs, "mask_positions": positions}, logits), head
