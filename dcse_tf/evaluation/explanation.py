"""Which pairs of tokens make up the similarity of a response and its context."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from dcse_tf.encoder.graph import GraphBackend
from dcse_tf.model.matching import TurnAttention

# The smallest product of squared norms, as in the model's own cosine.
_FLOOR = 1e-24


@dataclasses.dataclass(frozen=True)
class Matching:
    """A response matched with the turns of its context.

    Attributes:
        matrices: the matching matrix M of each turn, float64 `[turn tokens, response tokens]`.
        weights: float64 `[turns]`, how much each turn counts.
        contributions: in the shapes of `matrices`; their total is the similarity.
        similarity: the cosine of the context-aware and the context-free embedding.
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
    """The weights of I2, in which each turn counts the same; float `[turns, dim]` to `[turns]`."""
    return np.full(len(pooled), 1.0 / len(pooled))


def decompose(
    context: Sequence[np.ndarray],
    response: np.ndarray,
    weigh: Callable[[np.ndarray], np.ndarray] = mean_weights,
) -> Matching:
    """Splits the matching similarity (equations 3 to 7) into contributions of token pairs.

    With M_t = U_t R^T / sqrt(d) the context-aware embedding is

        r~ = sum_t w_t / n_t sum_i (M_t R)_i = sum_t sum_i sum_j w_t / n_t M_t[i, j] R_j,

    linear in the pairs (i, j) of tokens, and so is its product with the context-free embedding
    rbar, the mean of the R_j. With the two norms taken as given, pair (i, j) of turn t contributes

        c_t[i, j] = w_t / n_t M_t[i, j] (R_j . rbar) / (|r~| |rbar|),

    and all c add up to the cosine of r~ and rbar. The norms and, with attention, the weights depend
    on all tokens: c says what the similarity consists of, not what it would be without a pair.

    Args:
        context: float `[tokens, dim]` for each turn, without padding, at least one.
        response: float `[tokens, dim]`, without padding.
        weigh: R_hat pooled over each turn's tokens, float `[turns, dim]`, to weights `[turns]`.
    """
    rows = response.astype(np.float64)
    scale = rows.shape[1] ** -0.5
    matrices = [turn.astype(np.float64) @ rows.T * scale for turn in context]
    pooled = np.stack([matrix.mean(axis=0) @ rows for matrix in matrices])
    weights = np.asarray(weigh(pooled), np.float64)
    aware, free = weights @ pooled, rows.mean(axis=0)
    norms = np.sqrt(max(float(aware @ aware) * float(free @ free), _FLOOR))
    toward = rows @ free / norms
    contributions = [
        weight / len(matrix) * matrix * toward
        for weight, matrix in zip(weights, matrices, strict=True)
    ]
    return Matching(matrices, weights, contributions, float(aware @ free) / float(norms))


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
        tokens: with [CLS] and [SEP].
    """

    turn: int
    text: str
    tokens: list[str]


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What the similarity of a response and its context consists of.

    Attributes:
        context: the turns around the response, in order.
        matching: of these turns' tokens with the response's.
        scored: the similarity that the backend gives, float32.
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
    """Matches a response with turns of its session.

    Args:
        backend: the model.
        tokens: the entries of its vocabulary.
        session: id, and texts of the turns.
        response: index of the turn that is the response.
        context: indices of its context turns, at least one.
    """
    session_id, texts = session
    chosen = [texts[turn] for turn in (*context, response)]
    encoded = backend.encode_texts(sorted(set(chosen)))
    ids = backend.graph.tokenize(tf.constant(chosen)).to_list()
    read = [
        Text(turn, text, [tokens[entry] for entry in row])
        for turn, text, row in zip((*context, response), chosen, ids, strict=True)
    ]
    attention = backend.graph.attention
    weigh = _attend(attention) if attention else mean_weights
    matching = decompose([encoded[text] for text in chosen[:-1]], encoded[chosen[-1]], weigh)
    scored = float(backend.score([chosen[:-1]], [chosen[-1:]])[0, 0])
    return Explanation(session_id, read[-1], read[:-1], matching, scored)


def _attend(attention: TurnAttention) -> Callable[[np.ndarray], np.ndarray]:
    def weigh(pooled: np.ndarray) -> np.ndarray:
        turns = tf.constant(pooled, tf.float32)
        return attention(turns, tf.ones([len(pooled)], tf.bool)).numpy()

    return weigh
