"""Candidate pairs for a dialogue STS set (paper, section 5.1.2; heuristics of Cer et al. 2017).

Pairs drawn at random are nearly all unlike each other. So candidates are nearest neighbours by
unigrams and by word vectors, and sentences of one intent; and of each kind, pairs are drawn evenly
over similarity.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse

from dcse_tf.evaluation import metrics

STRATEGIES = ("unigram", "word2vec", "intent")
_NEIGHBOURS = 20  # of a sentence; the far ones fill the lower degrees
_BINS = 5  # one a degree
_ROWS = 512  # sentences whose similarities to all others are held at a time


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two sentences by index, why they were chosen, and how alike that found them."""

    first: int
    second: int
    strategy: str
    similarity: float


def unigram_vectors(words: Sequence[Sequence[str]]) -> scipy.sparse.csr_matrix:
    """Rows of length 1 that say which words a sentence has: `[sentences, words]`, sparse."""
    index: dict[str, int] = {}
    columns = [sorted({index.setdefault(word, len(index)) for word in row}) for row in words]
    starts = np.cumsum([0, *map(len, columns)])
    places = np.array([place for row in columns for place in row], np.int64)
    weights = np.repeat([1.0 / np.sqrt(max(1, len(row))) for row in columns], np.diff(starts))
    return scipy.sparse.csr_matrix((weights, places, starts), shape=(len(words), len(index)))


def neighbour_pairs(
    vectors: scipy.sparse.csr_matrix | np.ndarray, strategy: str
) -> list[tuple[int, int, str, float]]:
    """Every sentence with its nearest ones, by the dot product of rows.

    Args:
        vectors: `[sentences, dim]`, rows of length 1; a row of zeros has no neighbours.
        strategy: what the pairs are called.
    """
    pairs = {}
    count = vectors.shape[0]
    wanted = min(_NEIGHBOURS, count - 1)
    for start in range(0, count, _ROWS):
        block = vectors[start : start + _ROWS] @ vectors.T
        similarity = np.asarray(block.todense() if scipy.sparse.issparse(block) else block)
        similarity[np.arange(len(similarity)), start + np.arange(len(similarity))] = -np.inf
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :wanted]
        for row, others in enumerate(nearest.tolist()):
            for other in others:
                value = float(similarity[row, other])
                if value > 0.0:
                    pairs[min(start + row, other), max(start + row, other)] = value
    return [(first, second, strategy, value) for (first, second), value in sorted(pairs.items())]


def intent_pairs(
    intents: Sequence[str], vectors: scipy.sparse.csr_matrix, count: int, seed: int
) -> list[tuple[int, int, str, float]]:
    """Random pairs of one intent, every intent as likely as any other.

    Args:
        intents: of each sentence; "" for none.
        vectors: rows of length 1, for the similarity.
        count: how many to draw; equal ones are kept once.
        seed: the seed.
    """
    groups: dict[str, list[int]] = {}
    for place, intent in enumerate(intents):
        if intent:
            groups.setdefault(intent, []).append(place)
    choices = [group for _, group in sorted(groups.items()) if len(group) > 1]
    rng = np.random.default_rng(seed)
    drawn = set()
    for _ in range(count if choices else 0):
        group = choices[rng.integers(len(choices))]
        first, second = sorted(rng.choice(group, 2, replace=False).tolist())
        drawn.add((first, second))
    ordered = sorted(drawn)
    rows, columns = ([pair[side] for pair in ordered] for side in (0, 1))
    values = np.asarray(vectors[rows].multiply(vectors[columns]).sum(axis=1)).ravel()
    return [(*pair, "intent", float(v)) for pair, v in zip(ordered, values, strict=True)]


def draw_evenly(
    candidates: Sequence[tuple[int, int, str, float]],
    count: int,
    seed: int,
    *,
    taken: set[tuple[int, int]],
    uses: dict[int, int],
    max_uses: int,
) -> list[Pair]:
    """Draws pairs evenly over five equal spans of similarity, as far as the spans have them.

    Args:
        candidates: (first, second, strategy, similarity).
        count: how many to draw.
        seed: the seed.
        taken: pairs that may not be drawn; those drawn are added.
        uses: how often each sentence has been used; counted on.
        max_uses: of a sentence.
    """
    rng = np.random.default_rng(seed)
    values = np.array([value for *_, value in candidates])
    if not len(values):
        return []
    edges = np.linspace(values.min(), values.max(), _BINS + 1)[1:-1]
    spans = np.digitize(values, edges)
    queues = [rng.permutation(np.flatnonzero(spans == span)).tolist() for span in range(_BINS)]
    drawn: list[Pair] = []
    while len(drawn) < count and any(queues):
        for queue in queues:
            while queue and len(drawn) < count:
                first, second, strategy, value = candidates[queue.pop()]
                fresh = (first, second) not in taken
                if fresh and max(uses.get(first, 0), uses.get(second, 0)) < max_uses:
                    taken.add((first, second))
                    for place in (first, second):
                        uses[place] = uses.get(place, 0) + 1
                    drawn.append(Pair(first, second, strategy, value))
                    break
    return drawn


def choose_pairs(
    words: Sequence[Sequence[str]],
    intents: Sequence[str],
    vectors: np.ndarray | None,
    *,
    strategies: Sequence[str],
    count: int,
    max_uses: int,
    seed: int,
) -> list[Pair]:
    """Pairs of all strategies, an even share of each as far as there are, in random order.

    Args:
        words: of each sentence.
        intents: of each sentence; "" for none. Asked for by "intent".
        vectors: float `[sentences, dim]`, mean word vectors. Asked for by "word2vec".
        strategies: some of STRATEGIES.
        count: pairs in all.
        max_uses: most pairs that a sentence is in.
        seed: the seed.
    """
    unigrams = unigram_vectors(words)
    candidates = {}
    for strategy in strategies:
        if strategy == "unigram":
            candidates[strategy] = neighbour_pairs(unigrams, strategy)
        elif strategy == "word2vec":
            assert vectors is not None
            candidates[strategy] = neighbour_pairs(metrics.normalize(vectors), strategy)
        else:
            candidates[strategy] = intent_pairs(intents, unigrams, 20 * count, seed)
    taken: set[tuple[int, int]] = set()
    uses: dict[int, int] = {}
    pairs: list[Pair] = []
    # What one strategy lacks, another may have: so each is asked once more for the rest.
    turns = [*strategies, *strategies]
    for number, strategy in enumerate(turns):
        left = len(strategies) - number if number < len(strategies) else 1
        pairs += draw_evenly(
            candidates[strategy],
            (count - len(pairs)) // left,
            seed + number,
            taken=taken,
            uses=uses,
            max_uses=max_uses,
        )
    rng = np.random.default_rng(seed)
    return [pairs[place] for place in rng.permutation(len(pairs))]
