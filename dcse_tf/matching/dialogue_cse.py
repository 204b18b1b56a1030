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
    given_inputs,
    index_inputs,
    table_inputs,
)
from dcse_tf.matching.losses import Distillation, NTXent
from dcse_tf.matching.matching import (
    AttentiveTurnAggregation,
    CosineSimilarity,
    MaskedMeanPooling,
    MatchingGuidedEmbedding,
    TurnAggregation,
)
from dcse_tf.matching.matching_files import PAPER, MatchingForm
from dcse_tf.matching.matching_forms import ContextAggregation, LateInteraction, ResidualRefinement
from dcse_tf.matching.neighbours import contrast_neighbours, neighbour_inputs
from dcse_tf.matching.pair_similarity import (
    ContextGramSimilarity,
    GramSimilarity,
    MaxSimSimilarity,
    MeanCosineSimilarity,
    PairSimilarity,
    ResidualGramSimilarity,
)
from dcse_tf.matching.projection import ProjectedCosineSimilarity, ProjectionHead
from dcse_tf.matching.rehearsal import rehearsal_inputs, rehearse
from dcse_tf.matching.start import (
    StartObjective,
    compare_with_start,
    encode_as_started,
    mask_neighbours,
)

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
        distillation_weight: share of the loss, from 0 to 1, that distils a teacher's scores of
            given candidates instead of contrasting the response with negatives.
        teacher_temperature: temperature of the teacher's logits.
        both_directions: whether a response's context is also contrasted with the contexts that
            its negatives are responses to; the two losses have equal weight.
        start: the objectives that use the starting encoder; None for none.
        heads: projection heads of contexts and of responses, applied before the plain cosine;
            empty for none.
        projection_share: share, from 0 to 1, of the plain cosine's contrast that is behind the
            heads; the rest contrasts the embeddings themselves.
        neighbour_weight: share of the loss, from 0 to 1, of the contrast of neighbours.
        matryoshka_dims: the plain cosine of the first so many dimensions is contrasted too, for
            each of these numbers; these losses and that of all dimensions have equal weight.
    """

    temperature: float
    matching: MatchingForm = PAPER
    cosine_weight: float = 0.0
    distillation_weight: float = 0.0
    teacher_temperature: float = 1.0
    both_directions: bool = False
    start: StartObjective | None = None
    heads: Sequence[ProjectionHead] = ()
    projection_share: float = 1.0
    neighbour_weight: float = 0.0
    matryoshka_dims: Sequence[int] = ()


def build_matching(dim: int, form: MatchingForm = PAPER) -> keras.Model:
    """The similarity of contexts and candidates from encoded utterances, equation by equation.

    The paper's form is in its sections 4.2 to 4.4, the others are in docs/matching.md.

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
    if form.kind == "maxsim":
        late_interaction = LateInteraction(dtype="float32", name="late_interaction")
        similarity = late_interaction(context, candidates, *masks, turn_mask)
    else:
        similarity = _match(form, context, candidates, *masks, turn_mask)
    inputs = {
        "token_embeddings": token_embeddings,
        "padding_mask": padding_mask,
        "context_index": context_index,
        "turn_mask": turn_mask,
        "candidate_index": candidate_index,
    }
    return keras.Model(inputs, similarity, name="matching")


def _match(
    form: MatchingForm,
    context: keras.KerasTensor,
    candidates: keras.KerasTensor,
    context_padding_mask: keras.KerasTensor,
    candidate_padding_mask: keras.KerasTensor,
    turn_mask: keras.KerasTensor,
) -> keras.KerasTensor:
    """The cosine of the context-aware embedding and the embedding it is compared with.

    Args:
        form: any form except maxsim.
        context: float `[batch, turns, context_tokens, dim]`.
        candidates: float `[batch, candidates, tokens, dim]`.
        context_padding_mask, candidate_padding_mask, turn_mask: bool masks of the context's
            tokens, the candidates' tokens and the turns; True = real.
    """
    refined = MatchingGuidedEmbedding(dtype="float32", name="matching_guided_embedding")(
        context, candidates, context_padding_mask, candidate_padding_mask
    )
    if form.residual:
        refined = ResidualRefinement(form.residual, dtype="float32", name="residual")(
            refined, context, context_padding_mask
        )
    if form.kind == "context":
        aggregation = ContextAggregation(form.attention, dtype="float32", name="turn_aggregation")
        pair = aggregation(refined, context, context_padding_mask, turn_mask)
        return CosineSimilarity(dtype="float32", name="similarity")(*pair)
    aggregation = (
        AttentiveTurnAggregation(form.attention, dtype="float32", name="turn_aggregation")
        if form.attention
        else TurnAggregation(dtype="float32", name="turn_aggregation")
    )
    context_aware = aggregation(refined, context_padding_mask, turn_mask)
    context_free = MaskedMeanPooling(dtype="float32", name="pooling")(
        candidates, candidate_padding_mask
    )
    return CosineSimilarity(dtype="float32", name="similarity")(context_aware, context_free)


def build_pair_similarity(form: MatchingForm, **settings: str) -> PairSimilarity:
    """The layer that computes `build_matching`'s similarity for all pairs of a table.

    Args:
        form: the form of the matching.
        settings: the layer's dtype and name.
    """
    if form.kind == "maxsim":
        return MaxSimSimilarity(**settings)
    if form.kind == "context":
        return ContextGramSimilarity(form.attention, **settings)
    if form.residual:
        return ResidualGramSimilarity(form.residual, attention=form.attention, **settings)
    return GramSimilarity(form.attention, **settings)


def build_dialogue_cse(
    backbone: keras_hub.models.BertBackbone,
    layout: Layout,
    objective: Objective,
    centering: TokenCentering | None = None,
) -> keras.Model:
    """The training model: maps a batch of `dcse_tf.data.batch` to similarities and losses.

    The similarity is that of `build_matching`, computed in a cheaper way
    (`build_pair_similarity`); with a cosine weight of 1 it is the plain cosine.

    Args:
        backbone: the BERT.
        layout: the layout of the input tables.
        objective: the training objective.
        centering: applied to the token embeddings, if given.

    Returns:
        A functional model from the tensors of `lay_out`, context_index, turn_mask,
        candidate_index, candidate_mask and, in both directions, candidate_context, to
        {"similarity": float32 `[batch, candidates]`, "loss": float32 `[batch]`} and the outputs of
        `compare_with_start`. Further inputs and outputs depend on the objective:

        - distillation: from given_index, given_mask and teacher_scores to {"given_similarity":
          float32 `[batch, given]`, "distillation_loss": float32 `[batch]`};
        - neighbours: from the tensors of `share_pairs` to the outputs of `contrast_neighbours`;
        - rehearsal: from the tensors of `share_rehearsed` to the outputs of `rehearse`.

        "loss" does not include the shares of the last two.
    """
    inputs, index = table_inputs(layout), index_inputs(objective.both_directions)
    given = given_inputs() if objective.distillation_weight else {}
    table = build_table_encoder(backbone, layout, centering)(dict(inputs))
    used = (table, inputs["padding_mask"], index["context_index"], index["turn_mask"])
    mask, outputs, before = index["candidate_mask"], dict[str, keras.KerasTensor](), None
    start, temperature = objective.start, objective.temperature
    if start:
        before = encode_as_started(start, layout, inputs, centered=centering is not None)
        mask, outputs = compare_with_start(start, temperature, table, before, inputs, index)

    nt_xent = NTXent(temperature, dtype="float32", name="nt_xent")
    weights, all_pairs = zip(*((w, layer(*used)) for w, layer in _similarities(objective)))
    own_pairs = [_take_own_contexts(x, index) for x in all_pairs]
    similarities = [ops.take_along_axis(x, index["candidate_index"], axis=1) for x in own_pairs]
    loss = _mix(weights, [nt_xent(x, mask) for x in similarities])
    if objective.both_directions:
        contexts = [_compare_contexts(x, index) for x in all_pairs]
        loss = _mix((0.5, 0.5), (loss, _mix(weights, [nt_xent(x, mask) for x in contexts])))
    outputs |= {"similarity": similarities[_find_main(weights)], "loss": loss}
    if given:
        outputs |= _teach(objective, weights, own_pairs, given)
    outputs["loss"] = _add_losses(objective, outputs)
    if objective.neighbour_weight:
        outputs["loss"] = (1.0 - objective.neighbour_weight) * outputs["loss"]
    more_inputs, more_outputs = _build_further(objective, table, before, inputs)
    every_input = {**inputs, **index, **given, **more_inputs}
    return keras.Model(every_input, outputs | more_outputs, name="dialogue_cse")


def _build_further(
    objective: Objective,
    table: keras.KerasTensor,
    before: keras.KerasTensor | None,
    inputs: dict[str, keras.KerasTensor],
) -> tuple[dict[str, keras.KerasTensor], dict[str, keras.KerasTensor]]:
    """Inputs and outputs for texts other than the dialogues: neighbours and rehearsed texts."""
    start, padding_mask = objective.start, inputs["padding_mask"]
    further, outputs = dict[str, keras.KerasTensor](), dict[str, keras.KerasTensor]()
    if share := objective.neighbour_weight:
        further = neighbour_inputs()
        pairs = dict(further)
        if start:
            pairs["neighbour_mask"] = mask_neighbours(start, before, inputs, pairs)
        outputs = contrast_neighbours(table, padding_mask, pairs, objective.temperature, share)
    if start and start.rehearsal_weight:
        texts = rehearsal_inputs()
        further |= texts
        outputs |= rehearse(table, before, padding_mask, texts, start.rehearsal_weight)
    return further, outputs


def _teach(
    objective: Objective,
    weights: Sequence[float],
    own_pairs: Sequence[keras.KerasTensor],
    given: dict[str, keras.KerasTensor],
) -> dict[str, keras.KerasTensor]:
    """The outputs of distillation: the given candidates' similarities and the loss."""
    similarities = [ops.take_along_axis(x, given["given_index"], axis=1) for x in own_pairs]
    teach = Distillation(
        objective.temperature, objective.teacher_temperature, dtype="float32", name="distillation"
    )
    taught = [teach(x, given["teacher_scores"], given["given_mask"]) for x in similarities]
    similarity = similarities[_find_main(weights)]
    return {"given_similarity": similarity, "distillation_loss": _mix(weights, taught)}


def _add_losses(objective: Objective, outputs: dict[str, keras.KerasTensor]) -> keras.KerasTensor:
    """The loss with the terms of the teacher and of the starting encoder added."""
    loss, share, start = outputs["loss"], objective.distillation_weight, objective.start
    if share:
        loss = _mix((1.0 - share, share), (loss, outputs["distillation_loss"]))
    if start and start.anchor_weight:
        loss = loss + start.anchor_weight * outputs["anchor_loss"]
    if start and start.prediction:
        share = start.prediction_weight
        loss = _mix((1.0 - share, share), (loss, outputs["prediction_loss"]))
    return loss


def _take_own_contexts(
    all_pairs: keras.KerasTensor, index: dict[str, keras.KerasTensor]
) -> keras.KerasTensor:
    """Selects each row's own context from the similarities of all contexts."""
    if "candidate_context" not in index:
        return all_pairs
    return ops.take(all_pairs, index["candidate_context"][:, 0], axis=0)


def _compare_contexts(
    all_pairs: keras.KerasTensor, index: dict[str, keras.KerasTensor]
) -> keras.KerasTensor:
    """The similarity of each row's response with its own and its negatives' contexts.

    Args:
        all_pairs: float `[contexts, utterances]`, the similarities of all pairs.
        index: the batch's index into the table.

    Returns:
        float `[batch, candidates]`.
    """
    of_response = ops.transpose(ops.take(all_pairs, index["candidate_index"][:, 0], axis=1))
    return ops.take_along_axis(of_response, index["candidate_context"], axis=1)


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
        matching = build_pair_similarity(objective.matching, dtype="float32", name="similarity")
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
