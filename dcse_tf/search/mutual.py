"""Finds similar turns in similar contexts: mutual nearest neighbours from different dialogues.

Compare MTP-CLNN (Zhang et al. 2022, "New Intent Discovery with Pre-training and Contrastive
Learning"), whose neighbours are of single sentences and need not be mutual.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from dcse_tf.evaluation.nearest import BLOCK_ROWS, Neighbours, find_neighbours
from dcse_tf.search.index import scale_to_unit_length
from dcse_tf.search.nearest import ApproximateIndex
from dcse_tf.search.options import ApproximateOptions

_ROWS_AT_A_TIME = 8192


def average_rows(embeddings: np.ndarray) -> np.ndarray:
    """The mean of the rows of a matrix `[rows, dim]`, possibly on disk; float32 `[dim]`."""
    total = np.zeros(embeddings.shape[1], np.float64)
    for start in range(0, len(embeddings), _ROWS_AT_A_TIME):
        total += embeddings[start : start + _ROWS_AT_A_TIME].sum(axis=0, dtype=np.float64)
    return (total / len(embeddings)).astype(np.float32)


def make_keys(
    embeddings: np.ndarray,
    mean: np.ndarray,
    text: np.ndarray,
    around: tuple[np.ndarray, np.ndarray],
    weight: float,
) -> np.ndarray:
    """Keys of turns: unit(u) + weight x mean(unit(turn before), unit(turn after)), of length 1.

    Args:
        embeddings: float32 `[texts, dim]`, possibly on disk.
        mean: float32 `[dim]`, subtracted from every embedding first.
        text: the row of each turn's text, int64 `[turns]`.
        around: the rows of the turn before each and of the turn after it, int64 `[turns]` each; -1
            if there is none.
        weight: weight of the context.

    Returns:
        float32 `[turns, dim]`.
    """

    def embed(rows: np.ndarray) -> np.ndarray:
        units = scale_to_unit_length(np.asarray(embeddings[np.maximum(rows, 0)]) - mean)
        return np.where(rows[:, None] >= 0, units, 0.0)

    neighbours = np.add(*(embed(rows) for rows in around))
    count = np.add(*(rows >= 0 for rows in around), dtype=np.float64)
    context = neighbours / np.maximum(count, 1.0)[:, None]
    return scale_to_unit_length(embed(text) + weight * context).astype(np.float32)


_QUERIES = 1024
Tell = Callable[[int], object]


def find_others(
    keys: np.ndarray,
    dialogue: np.ndarray,
    text: np.ndarray,
    count: int,
    tell: Tell = lambda done: None,
    sizes: tuple[int, int] = (_QUERIES, BLOCK_ROWS),
) -> Neighbours:
    """For every row, the nearest rows with another dialogue and another text.

    Args:
        keys: float32 `[rows, dim]`, of length 1 each; possibly an array on disk.
        dialogue, text: ids of each row's dialogue and text, int `[rows]`; rows that share one are
            not neighbours.
        count: how many neighbours to find for each row, at least 1.
        tell: called with the number of rows that are done.
        sizes: numbers of rows processed at a time, as queries and as candidates.
    """
    found = Neighbours.none(len(keys), count)
    for start in range(0, len(keys), sizes[0]):
        own = slice(start, start + sizes[0])

        def refuse(others: slice, own: slice = own) -> np.ndarray:
            same = (column[own, None] == column[None, others] for column in (dialogue, text))
            return np.logical_or(*same)

        near = find_neighbours(keys, np.asarray(keys[own]), count, refuse, sizes[1])
        found.rows[own], found.cosines[own] = near.rows, near.cosines
        tell(min(start + sizes[0], len(keys)))
    return found


# An index does not know which rows are not allowed; it is asked for this many times the neighbours
# wanted.
_ASKED = 8


def find_others_by_index(
    keys: np.ndarray,
    dialogue: np.ndarray,
    text: np.ndarray,
    count: int,
    kind: str,
    options: ApproximateOptions,
    tell: Tell = lambda done: None,
) -> Neighbours:
    """`find_others` with a FAISS index, which misses some neighbours; its recall is logged.

    Args:
        keys, dialogue, text, count, tell: see `find_others`.
        kind, options: see `ApproximateIndex.build`.
    """
    index = ApproximateIndex.build(keys, kind, options)
    index.measure_recall(options, count)
    found = Neighbours.none(len(keys), count)
    for start in range(0, len(keys), _QUERIES):
        queries = np.asarray(keys[start : start + _QUERIES])
        answers = index.find_nearest(queries, _ASKED * count, options)
        for row, near in enumerate(answers, start):
            other = (dialogue[near.rows] != dialogue[row]) & (text[near.rows] != text[row])
            kept = np.flatnonzero(other)[:count]
            found.rows[row, : len(kept)] = near.rows[kept]
            found.cosines[row, : len(kept)] = near.cosines[kept]
        tell(start + len(queries))
    return found


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of rows.

    Attributes:
        first, second: the rows, int64 `[pairs]`.
        cosines: their cosines, float64 `[pairs]`.
    """

    first: np.ndarray
    second: np.ndarray
    cosines: np.ndarray

    def __len__(self) -> int:
        return len(self.cosines)

    def __getitem__(self, chosen: np.ndarray | slice) -> "Pairs":
        return Pairs(self.first[chosen], self.second[chosen], self.cosines[chosen])


def pair_mutually(found: Neighbours) -> Pairs:
    """The pairs of rows that are among each other's neighbours.

    Each pair occurs once, with `first` the smaller row; pairs are sorted by (first, second).
    """
    total = len(found.rows)
    row, place = np.nonzero(found.rows >= 0)
    other, cosines = found.rows[row, place], found.cosines[row, place]
    up = row < other
    codes = row[up] * total + other[up]
    mutual = np.isin(codes, other[~up] * total + row[~up])
    order = np.argsort(codes[mutual])
    return Pairs(row[up][mutual], other[up][mutual], cosines[up][mutual])[order]


def keep_best(pairs: Pairs, text: np.ndarray, share: float, least: float) -> tuple[Pairs, Pairs]:
    """Keeps the most similar pairs, at most one for any two texts.

    Args:
        pairs: pairs of turns.
        text: the text of each turn, int64 `[turns]`.
        share: share of the distinct pairs of texts to keep, the most similar ones.
        least: pairs with a cosine below this are left out.

    Returns:
        The most similar pair for any two texts, by descending similarity and then in their order;
        and those of them that are kept.
    """
    falling = pairs[np.lexsort((pairs.second, pairs.first, -pairs.cosines))]
    low, high = np.sort([text[falling.first], text[falling.second]], axis=0)
    _, first = np.unique(low * len(text) + high, return_index=True)
    distinct = falling[np.sort(first)]
    kept = distinct[: math.ceil(len(distinct) * share)]
    return distinct, kept[np.flatnonzero(kept.cosines >= least)]
