"""Splits the similarity of a response and its context into contributions of token pairs."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from dcse_tf.encoder.graph import GraphBackend
from dcse_tf.matching.matching import TurnAttention
from dcse_tf.matching.matching_files import MatchingForm

# Lower bound of the product of squared norms, as in the model's own cosine.
_FLOOR = 1e-24


@dataclasses.dataclass(frozen=True)
class Matching:
    """A response matched with the turns of its context.

    Attributes:
        matrices: for each turn, float64 `[turn tokens, response tokens]`: the matching matrix M.
        weights: the weight of each turn, float64 `[turns]`.
        contributions: arrays of the same shapes as `matrices`, whose total is the similarity.
        similarity: the similarity by the model's form of the matching.
    """

    matrices: list[np.ndarray]
    weights: np.ndarray
    contributions: list[np.ndarray]
    similarity: float


@dataclasses.dataclass(frozen=True)
class Pair:
    """A token of a context turn, a token of the response, and their contribution."""

    turn: int
    context_token: int
    response_token: int
    contribution: float


def mean_weights(pooled: np.ndarray) -> np.ndarray:
    """The weights of I2, which are equal for all turns; float `[turns, dim]` to `[turns]`."""
    return np.full(len(pooled), 1.0 / len(pooled))


def decompose(
    context: Sequence[np.ndarray],
    response: np.ndarray,
    weigh: Callable[[np.ndarray], np.ndarray] = mean_weights,
) -> Matching:
    """Splits the matching similarity into contributions of token pairs.

    With M_t = U_t R^T / sqrt(d) the context-aware embedding is

        r~ = sum_t w_t / n_t sum_i (M_t R)_i = sum_t sum_i sum_j w_t / n_t M_t[i, j] R_j,

    which is a sum over pairs (i, j) of tokens. So is its product with rbar, the mean of the R_j.
    With the two norms taken as constants, pair (i, j) of turn t contributes

        c_t[i, j] = w_t / n_t M_t[i, j] (R_j . rbar) / (|r~| |rbar|),

    and the sum of all c_t[i, j] is the cosine of r~ and rbar. The norms and, with attention, the
    weights depend on all tokens. So a contribution says what the similarity consists of, not
    what the similarity would be without that pair.

    Args:
        context: token embeddings of each turn, float `[tokens, dim]`, without padding; at least
            one turn.
        response: token embeddings, float `[tokens, dim]`, without padding.
        weigh: maps the refined embeddings, pooled over each turn's tokens, float `[turns, dim]`, to
            weights `[turns]`.
    """
    rows = response.astype(np.float64)
    scale = rows.shape[1] ** -0.5
    matrices = [turn.astype(np.float64) @ rows.T * scale for turn in context]
    pooled = np.stack([matrix.mean(axis=0) @ rows for matrix in matrices])
    weights = np.asarray(weigh(pooled), np.float64)
    aware = weights @ pooled
    compared = rows.mean(axis=0)
    norms = np.sqrt(max(float(aware @ aware) * float(compared @ compared), _FLOOR))
    toward = rows @ compared / norms
    contributions = [
        weight / len(matrix) * matrix * toward
        for weight, matrix in zip(weights, matrices, strict=True)
    ]
    similarity = float(aware @ compared) / float(norms)
    return Matching(matrices, weights, contributions, similarity)


def top_pairs(matching: Matching, count: int) -> list[Pair]:
    """The pairs with the largest absolute contributions, the largest first."""
    pairs = [
        Pair(turn, int(i), int(j), float(value))
        for turn, cells in enumerate(matching.contributions)
        for (i, j), value in np.ndenumerate(cells)
    ]
    return sorted(pairs, key=lambda pair: -abs(pair.contribution))[:count]


@dataclasses.dataclass(frozen=True)
class Text:
    """A turn of a session as the model reads it.

    Attributes:
        turn: its index in the session, from 0.
        text: its text.
        tokens: its tokens, including [CLS] and [SEP].
    """

    turn: int
    text: str
    tokens: list[str]


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What the similarity of a response and its context consists of.

    Attributes:
        session_id: the session.
        response: the response.
        context: the turns around the response, in order.
        matching: the matching of the response with these turns.
        scored: the similarity that the backend computes, in float32.
    """

    session_id: str
    response: Text
    context: list[Text]
    matching: Matching
    scored: float


def explain_response(
    backend: GraphBackend,
    tokens: tuple[str, ...],
    session: tuple[str, list[str]],
    response: int,
    context: list[int],
) -> Explanation:
    """Explains the similarity of a response and other turns of its session.

    Args:
        backend: the model.
        tokens: the tokens of its vocabulary, by id.
        session: the session's id and the texts of its turns.
        response: index of the turn that is the response.
        context: indices of the context turns, at least one.
    """
    session_id, texts = session
    chosen = [texts[turn] for turn in (*context, response)]
    encoded = backend.embed_tokens(chosen)
    ids = backend.graph.tokenize(tf.constant(chosen)).to_list()
    read = [
        Text(turn, text, [tokens[entry] for entry in row])
        for turn, text, row in zip((*context, response), chosen, ids, strict=True)
    ]
    turns, answer = [encoded[text] for text in chosen[:-1]], encoded[chosen[-1]]
    matching = _decompose_by(backend.graph.matching, turns, answer)
    scored = float(backend.score([chosen[:-1]], [chosen[-1:]])[0, 0])
    return Explanation(session_id, read[-1], read[:-1], matching, scored)


def _decompose_by(form: MatchingForm, context: list[np.ndarray], response: np.ndarray) -> Matching:
    weigh = _attend(form.attention) if form.attention else mean_weights
    return decompose(context, response, weigh)


def _attend(attention: TurnAttention) -> Callable[[np.ndarray], np.ndarray]:
    def weigh(pooled: np.ndarray) -> np.ndarray:
        turns = tf.constant(pooled, tf.float32)
        return attention(turns, tf.ones([len(pooled)], tf.bool)).numpy()

    return weigh
