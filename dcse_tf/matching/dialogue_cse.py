"""DialogueCSE as functional models: the matching of contexts and candidates, and its loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
from keras import ops

from dcse_tf.bert.bert import TokenCentering
from dcse_tf.bert.layout import (
    Layout,
    build_table_encoder,
    index_inputs,
    table_inputs,
)
from dcse_tf.matching.losses import NTXent
from dcse_tf.matching.matching import (
    AttentiveTurnAggregation,
    CosineSimilarity,
    MaskedMeanPooling,
    MatchingGuidedEmbedding,
    TurnAggregation,
)
from dcse_tf.matching.matching_files import PAPER, MatchingForm
from dcse_tf.matching.pair_similarity import GramSimilarity, MeanCosineSimilarity
from dcse_tf.matching.projection import ProjectedCosineSimilarity, ProjectionHead
from dcse_tf.matching.rehearsal import rehearsal_inputs, rehearse
from dcse_tf.matching.start import StartObjective, encode_as_started

if TYPE_CHECKING:
    import keras_hub


@dataclasses.dataclass(frozen=True)
class Objective:
    """The training objective. Only `temperature` and the default matching are the paper's.

    Attributes:
        temperature: temperature of the loss (equation 8).
        matching: the form of the matching.
        cosine_weight: share of the loss, from 0 to 1, that contrasts the plain cosine instead of
            the matching similarity; 0 is the paper's objective.
        start: the objectives that use the starting encoder; None for none.
        heads: projection heads of contexts and of responses, applied before the plain cosine;
            empty for none.
        projection_share: share, from 0 to 1, of the plain cosine's contrast that is behind the
            heads; the rest contrasts the embeddings themselves.
        matryoshka_dims: the plain cosine of the first so many dimensions is contrasted too, for
            each of these numbers; these losses and that of all dimensions have equal weight.
    """

    temperature: float
    matching: MatchingForm = PAPER
    cosine_weight: float = 0.0
    start: StartObjective | None = None
    heads: Sequence[ProjectionHead] = ()
    projection_share: float = 1.0
    matryoshka_dims: Sequence[int] = ()


def build_matching(dim: int, form: MatchingForm = PAPER) -> keras.Model:
    """The similarity of contexts and candidates from encoded utterances, equation by equation.

    See sections 4.2 to 4.4 of the paper.

    Args:
        dim: width of the token embeddings.
        form: the form of the matching.

    Returns:
        A functional model from
            token_embeddings: float `[utterances, tokens, dim]`, the encoded table;
            padding_mask: bool `[utterances, tokens]`, True = real token;
            context_index: int32 `[batch, turns]` and candidate_index: int32
                `[batch, candidates]`, both into the table;
            turn_mask: bool `[batch, turns]`, True = real turn;
        to the similarity of each context and candidate, float32 `[batch, candidates]`.
    """
    token_embeddings = keras.Input((None, dim), name="token_embeddings")
    padding_mask = keras.Input((None,), dtype="bool", name="padding_mask")
    context_index = keras.Input((None,), dtype="int32", name="context_index")
    turn_mask = keras.Input((None,), dtype="bool", name="turn_mask")
    candidate_index = keras.Input((None,), dtype="int32", name="candidate_index")

    context = ops.take(token_embeddings, context_index, axis=0)
    candidates = ops.take(token_embeddings, candidate_index, axis=0)
    masks = (
        ops.take(padding_mask, context_index, axis=0),
        ops.take(padding_mask, candidate_index, axis=0),
    )
    refined = MatchingGuidedEmbedding(dtype="float32", name="matching_guided_embedding")(
        context, candidates, *masks
    )
    aggregation = (
        AttentiveTurnAggregation(form.attention, dtype="float32", name="turn_aggregation")
        if form.attention
        else TurnAggregation(dtype="float32", name="turn_aggregation")
    )
    context_aware = aggregation(refined, masks[0], turn_mask)
    context_free = MaskedMeanPooling(dtype="float32", name="pooling")(candidates, masks[1])
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
    backbone: keras_hub.models.BertBackbone,
    layout: Layout,
    objective: Objective,
    centering: TokenCentering | None = None,
) -> keras.Model:
    """The training model: maps a batch of `dcse_tf.data.batch` to similarities and losses.

    The similarity is that of `build_matching`, computed in a cheaper way (`GramSimilarity`); with a
    cosine weight of 1 it is the plain cosine.

    Args:
        backbone: the BERT.
        layout: the layout of the input tables.
        objective: the training objective.
        centering: applied to the token embeddings, if given.

    Returns:
        A functional model from the tensors of `lay_out`, context_index, turn_mask,
        candidate_index and candidate_mask to {"similarity": float32 `[batch, candidates]`, "loss":
        float32 `[batch]`}; with a prediction also "prediction_loss", float32 `[batch]`. With
        rehearsal, also from the tensors of `share_rehearsed` to the outputs of `rehearse`, whose
        share is not in "loss".
    """
    inputs, index = table_inputs(layout), index_inputs()
    table = build_table_encoder(backbone, layout, centering)(dict(inputs))
    used = (table, inputs["padding_mask"], index["context_index"], index["turn_mask"])
    start, outputs, further = objective.start, dict[str, keras.KerasTensor](), {}

    nt_xent = NTXent(objective.temperature, dtype="float32", name="nt_xent")
    weights, all_pairs = zip(*((w, layer(*used)) for w, layer in _similarities(objective)))
    similarities = [ops.take_along_axis(x, index["candidate_index"], axis=1) for x in all_pairs]
    loss = _mix(weights, [nt_xent(x, index["candidate_mask"]) for x in similarities])
    if start:
        before = encode_as_started(start, layout, inputs, centered=centering is not None)
        if predict := start.prediction:
            response = index["candidate_index"][:, 0]
            around = (index["context_index"], index["turn_mask"])
            predicted = predict(table, before, inputs["padding_mask"], response, *around)
            share = start.prediction_weight
            loss = _mix((1.0 - share, share), (loss, predicted))
            outputs["prediction_loss"] = predicted
        if start.rehearsal_weight:
            further = rehearsal_inputs()
            weight, padding_mask = start.rehearsal_weight, inputs["padding_mask"]
            outputs |= rehearse(table, before, padding_mask, further, weight)
    outputs |= {"similarity": similarities[_find_main(weights)], "loss": loss}
    return keras.Model({**inputs, **index, **further}, outputs, name="dialogue_cse")


def _mix(weights: Sequence[float], losses: Sequence[keras.KerasTensor]) -> keras.KerasTensor:
    return sum(weight * loss for weight, loss in zip(weights, losses, strict=True))


def _find_main(weights: Sequence[float]) -> int:
    """The index of the similarity that training metrics describe: the one with most weight."""
    return max(range(len(weights)), key=lambda place: weights[place])


def _similarities(objective: Objective) -> list[tuple[float, keras.layers.Layer]]:
    """The similarities that an objective contrasts, each with its loss's weight."""
    share = objective.cosine_weight
    layers: list[tuple[float, keras.layers.Layer]] = []
    if share < 1.0:
        attention = objective.matching.attention
        matching = GramSimilarity(attention, dtype="float32", name="similarity")
        layers.append((1.0 - share, matching))
    if share > 0.0 and objective.heads:
        projected = ProjectedCosineSimilarity(*objective.heads, dtype="float32", name="projected")
        layers.append((share * objective.projection_share, projected))
        share *= 1.0 - objective.projection_share
    if share > 0.0:
        dims = objective.matryoshka_dims
        share /= 1 + len(dims)
        layers.append((share, MeanCosineSimilarity(dtype="float32", name="cosine")))
        layers += [
            (share, MeanCosineSimilarity(dim, dtype="float32", name=f"cosine_{dim}"))
            for dim in dims
        ]
    return layers
