"""DialogueCSE as functional models: the matching of contexts and candidates, and its loss."""

import keras
import keras_hub
from keras import ops

from dcse_tf.data.layouts import Layout
from dcse_tf.layers import (
    CosineSimilarity,
    GramSimilarity,
    MaskedMeanPooling,
    MatchingGuidedEmbedding,
    NTXent,
    TurnAggregation,
)
from dcse_tf.models.table_encoder import build_table_encoder, table_inputs


def build_matching(dim: int) -> keras.Model:
    """The similarity of contexts and candidates (section 4.2 to 4.4), from encoded utterances.

    Args:
        dim: width of the token embeddings.

    Returns:
        A functional model from
            token_embeddings: float `[utterances, tokens, dim]`, the encoded table;
            padding_mask: bool `[utterances, tokens]`, True = real token;
            context_index: int32 `[batch, turns]` and candidate_index: int32
                `[batch, candidates]`, both into the table;
            turn_mask: bool `[batch, turns]`, True = real turn;
        to the cosine of each candidate's context-aware and context-free embeddings, float32
        `[batch, candidates]`.
    """
    token_embeddings = keras.Input((None, dim), name="token_embeddings")
    padding_mask = keras.Input((None,), dtype="bool", name="padding_mask")
    context_index = keras.Input((None,), dtype="int32", name="context_index")
    turn_mask = keras.Input((None,), dtype="bool", name="turn_mask")
    candidate_index = keras.Input((None,), dtype="int32", name="candidate_index")

    context = ops.take(token_embeddings, context_index, axis=0)
    candidates = ops.take(token_embeddings, candidate_index, axis=0)
    context_padding_mask = ops.take(padding_mask, context_index, axis=0)
    candidate_padding_mask = ops.take(padding_mask, candidate_index, axis=0)

    refined = MatchingGuidedEmbedding(dtype="float32", name="matching_guided_embedding")(
        context, candidates, context_padding_mask, candidate_padding_mask
    )
    context_aware = TurnAggregation(dtype="float32", name="turn_aggregation")(
        refined, context_padding_mask, turn_mask
    )
    context_free = MaskedMeanPooling(dtype="float32", name="pooling")(
        candidates, candidate_padding_mask
    )
    similarity = CosineSimilarity(dtype="float32", name="similarity")(context_aware, context_free)
    inputs = {
        "token_embeddings": token_embeddings,
        "padding_mask": padding_mask,
        "context_index": context_index,
        "turn_mask": turn_mask,
        "candidate_index": candidate_index,
    }
    return keras.Model(inputs, similarity, name="matching")


def build_dialogue_cse(
    backbone: keras_hub.models.BertBackbone, layout: Layout, temperature: float
) -> keras.Model:
    """The training model: a batch as `dcse_tf.data.batches` makes it, to similarities and losses.

    The similarity is that of `build_matching`, by its shorter way (`GramSimilarity`).

    Args:
        backbone: the BERT.
        layout: of the tables that come.
        temperature: of the loss.

    Returns:
        A functional model from the tensors of `lay_out`, context_index, turn_mask,
        candidate_index and candidate_mask to {"similarity": float32 `[batch, candidates]`,
        "loss": float32 `[batch]`}.
    """
    inputs = table_inputs(layout)
    table = build_table_encoder(backbone, layout)(dict(inputs))
    index = {
        "context_index": keras.Input((None,), dtype="int32", name="context_index"),
        "turn_mask": keras.Input((None,), dtype="bool", name="turn_mask"),
        "candidate_index": keras.Input((None,), dtype="int32", name="candidate_index"),
        "candidate_mask": keras.Input((None,), dtype="bool", name="candidate_mask"),
    }
    all_pairs = GramSimilarity(dtype="float32", name="gram_similarity")(
        table, inputs["padding_mask"], index["context_index"], index["turn_mask"]
    )
    similarity = ops.take_along_axis(all_pairs, index["candidate_index"], axis=1)
    loss = NTXent(temperature, dtype="float32", name="nt_xent")(similarity, index["candidate_mask"])
    return keras.Model(
        {**inputs, **index}, {"similarity": similarity, "loss": loss}, name="dialogue_cse"
    )
