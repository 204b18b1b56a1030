"""Every layer with random inputs, padded in several ways, and the reference's answer."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import keras
import ml_dtypes
import numpy as np
import reference

from dcse_tf.matching import equations

DIM, TEMPERATURE = 8, 0.2
# Tokens of every turn and candidate of a row. The second row has one turn only.
_TURNS = ((3, 1, 4), (2,))
_CANDIDATES = ((2, 5, 1), (4, 1, 3))

Arrays = list[np.ndarray]
Groups = list[Arrays]


@dataclasses.dataclass(frozen=True)
class Padding:
    """How a batch is padded: what is added beyond need, and what padded places hold."""

    extra: int = 0
    fill_seed: int = 0

    def pad(self, groups: Groups, absent: bool = False) -> tuple[np.ndarray, ...]:
        """[batch][group] arrays `[tokens, dim]` to one array, its token mask and group mask; with
        `absent`, extra padding adds groups too, as it does with turns.
        """
        width = max(len(group) for group in groups) + (self.extra if absent else 0)
        tokens = max(len(rows) for group in groups for rows in group) + self.extra
        shape = (len(groups), width, tokens)
        array = self.fill((*shape, DIM))
        token_mask, group_mask = np.zeros(shape, bool), np.zeros(shape[:2], bool)
        for i, group in enumerate(groups):
            # Absent groups have real-looking tokens: only their own mask says that they are none.
            token_mask[i, len(group) :] = True
            for j, rows in enumerate(group):
                array[i, j, : len(rows)] = rows
                token_mask[i, j, : len(rows)] = True
                group_mask[i, j] = True
        return array, token_mask, group_mask

    def fill(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(self.fill_seed).normal(scale=1e4, size=shape)


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch without padding: `[tokens, dim]` arrays of every row's turns and candidates."""

    context: Groups
    candidates: Groups
    refined: list[Groups]  # [batch][candidate][turn]
    similarity: Arrays


def make_batch(rounded: bool = False) -> Batch:
    """A random batch; `rounded` to what bfloat16 can hold."""
    rng = np.random.default_rng(1)

    def draw(*shape: int) -> np.ndarray:
        values = rng.normal(size=shape)
        return values.astype(ml_dtypes.bfloat16).astype(np.float64) if rounded else values

    context = [[draw(n, DIM) for n in row] for row in _TURNS]
    candidates = [[draw(n, DIM) for n in row] for row in _CANDIDATES]
    refined = [[[draw(n, DIM) for n in row] for _ in range(3)] for row in _TURNS]
    return Batch(context, candidates, refined, [draw(3) / 4, draw(2) / 4])


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, its inputs from a padded batch, and its outputs from the unpadded one."""

    name: str
    build: Callable[..., keras.layers.Layer]
    inputs: Callable[[Batch, Padding], Arrays]
    expected: Callable[[Batch], np.ndarray]
    has_padding: bool = True


def _pooling_inputs(batch: Batch, padding: Padding) -> Arrays:
    return list(padding.pad(batch.candidates)[:2])


def _pooling_expected(batch: Batch) -> np.ndarray:
    return np.array([list(map(reference.mean_of_rows, group)) for group in batch.candidates])


def _matching_inputs(batch: Batch, padding: Padding) -> Arrays:
    context, context_mask, turn_mask = padding.pad(batch.context, absent=True)
    candidates, candidate_mask, _ = padding.pad(batch.candidates)
    # Rows of absent turns are left to the aggregation: here their tokens are none.
    return [context, candidates, context_mask & turn_mask[..., None], candidate_mask]


def _matching_expected(batch: Batch) -> np.ndarray:
    """[batch, candidates, turns, tokens, dim], zero where there is no token."""
    result = np.zeros((2, 3, 3, 4, DIM))
    for b, (turns, candidates) in enumerate(zip(batch.context, batch.candidates, strict=True)):
        for c, response in enumerate(candidates):
            for t, utterance in enumerate(turns):
                rows = reference.refined_embedding(utterance, response)
                result[b, c, t, : len(rows)] = rows
    return result


def _aggregation_inputs(batch: Batch, padding: Padding) -> Arrays:
    _, context_mask, turn_mask = padding.pad(batch.context, absent=True)
    padded = [padding.pad([row[c] for row in batch.refined], absent=True)[0] for c in range(3)]
    return [np.stack(padded, axis=1), context_mask, turn_mask]


def _aggregation_expected(batch: Batch) -> np.ndarray:
    return np.array([[reference.aggregate_turns(turns) for turns in row] for row in batch.refined])


def attention_weights(kind: str) -> Arrays:
    """Kernel and bias of both layers of a `TurnAttention`; large enough for uneven weights."""
    rng = np.random.default_rng(7)
    width = 256 if kind == "additive_attention" else DIM
    shapes = ((DIM, width), (width,), (width, 1), (1,))
    weights = [rng.normal(scale=0.5, size=shape) for shape in shapes]
    if kind == "additive_attention":
        weights[3][:] = 0.0  # it has no bias there
    return weights


def build_attention(kind: str, **kwargs) -> equations.TurnAttention:
    attention = equations.TurnAttention(kind, **kwargs)
    attention.build((None, DIM))
    attention.set_weights(attention_weights(kind)[: len(attention.weights)])
    return attention


def _attentive_case(kind: str) -> Case:
    weights, released = attention_weights(kind), kind == "additive_attention"
    weigh = functools.partial(reference.weighted_turns, weights=weights, released=released)

    def build(dtype="float32", **kwargs) -> keras.layers.Layer:
        return equations.TurnAggregation(build_attention(kind, dtype=dtype), dtype=dtype, **kwargs)

    def expected(batch: Batch) -> np.ndarray:
        return np.array([list(map(weigh, row)) for row in batch.refined])

    return Case(kind, build, _aggregation_inputs, expected)


def _cosine_inputs(batch: Batch, padding: Padding) -> Arrays:
    first, second = (np.stack([rows[:1] for rows in row]) for row in batch.candidates)
    return [first, second]


def _cosine_expected(batch: Batch) -> np.ndarray:
    pairs = zip(*batch.candidates, strict=True)
    return np.array([[reference.cosine(first[0], second[0])] for first, second in pairs])


def _loss_inputs(batch: Batch, padding: Padding) -> Arrays:
    width = 3 + padding.extra
    similarity, mask = np.tanh(padding.fill((2, width))), np.zeros((2, width), bool)
    for row, values in enumerate(batch.similarity):
        similarity[row, : len(values)] = values
        mask[row, : len(values)] = True
    return [similarity, mask]


def _loss_expected(batch: Batch) -> np.ndarray:
    return np.array([reference.nt_xent(values, TEMPERATURE) for values in batch.similarity])


_build_loss = functools.partial(equations.NTXent, TEMPERATURE)
CASES: Sequence[Case] = (
    Case("pooling", equations.MaskedMeanPooling, _pooling_inputs, _pooling_expected),
    Case("matching", equations.MatchingGuidedEmbedding, _matching_inputs, _matching_expected),
    Case("aggregation", equations.TurnAggregation, _aggregation_inputs, _aggregation_expected),
    Case("cosine", equations.CosineSimilarity, _cosine_inputs, _cosine_expected, has_padding=False),
    _attentive_case("attention"),
    _attentive_case("additive_attention"),
    Case("loss", _build_loss, _loss_inputs, _loss_expected),
)
