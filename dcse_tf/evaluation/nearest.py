"""Exact search for the nearest rows of a matrix.

Candidates are found by float32 products of blocks and then compared in float64, so that the result
depends neither on the size of the blocks nor on the other queries.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from dcse_tf.evaluation.metrics import quantize

BLOCK_ROWS = 16_384
_COMPARED = 32_768  # pairs of rows compared in float64 at a time
# Larger than float32's error in a cosine. Rows whose cosine is at most this far below the last of
# the best are compared again in float64, so that none of the nearest is lost.
SLACK = 1e-5


@dataclasses.dataclass(frozen=True)
class Nearest:
    """The rows nearest to a query, best first.

    Attributes:
        rows: row indices, int64 `[found]`; rows of equal cosine are in ascending order.
        cosines: float64 `[found]`, rounded to `metrics.TIE_TOLERANCE`, because smaller
            differences are meaningless.
    """

    rows: np.ndarray
    cosines: np.ndarray


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """The rows nearest to each of several queries, as in `Nearest`.

    Attributes:
        rows: row indices, int64 `[queries, count]`; filled up with -1.
        cosines: float64 `[queries, count]`; filled up with minus infinity.
    """

    rows: np.ndarray
    cosines: np.ndarray

    @staticmethod
    def none(queries: int, count: int) -> "Neighbours":
        """An empty result, with no rows found yet."""
        return Neighbours(
            np.full([queries, count], -1, np.int64), np.full([queries, count], -np.inf)
        )

    def split(self) -> list[Nearest]:
        """The results query by query."""
        found = (self.rows >= 0).sum(axis=1)
        parts = zip(self.rows, self.cosines, found, strict=True)
        return [Nearest(rows[:count], cosines[:count]) for rows, cosines, count in parts]


def find_nearest(
    matrix: np.ndarray, queries: np.ndarray, top: int, block_rows: int = BLOCK_ROWS
) -> list[Nearest]:
    """The `top` nearest rows of each query, or all if there are fewer.

    Args, Raises: see `find_neighbours`.
    """
    return find_neighbours(matrix, queries, min(top, len(matrix)), block_rows=block_rows).split()


def find_neighbours(
    matrix: np.ndarray,
    queries: np.ndarray,
    count: int,
    refuse: Callable[[slice], np.ndarray] | None = None,
    block_rows: int = BLOCK_ROWS,
) -> Neighbours:
    """The nearest rows of each query.

    Args:
        matrix: float32 `[rows, dim]`, of length 1 each; possibly an array on disk.
        queries: float32 `[queries, dim]`, of length 1 each.
        count: number of rows to find for each query.
        refuse: maps a slice of rows to bool `[queries, rows]`, True for rows that must not be
            found for a query; None to allow all rows.
        block_rows: number of rows read and compared at a time.

    Raises:
        InputError: a cosine is not finite.
    """
    near = Neighbours.none(len(queries), count)
    for start in range(0, len(matrix), block_rows):
        rows = slice(start, start + block_rows)
        block = np.asarray(matrix[rows])
        products = np.asarray(queries @ block.T)
        if not np.isfinite(products).all():
            quantize(products)  # raises the InputError
        if refuse:
            products[refuse(rows)] = -np.inf
        places, found = _pick(products, near)
        near = _merge(near, places, found + start, _compare(queries, block, places, found))
    return near


def rank_rows(matrix: np.ndarray, rows: np.ndarray, query: np.ndarray, top: int) -> Nearest:
    """The `top` nearest to a query `[dim]` among some rows of the matrix, int64 `[candidates]`."""
    places, order = np.zeros(len(rows), np.int64), np.arange(len(rows))
    cosines = _compare(query[None], matrix[rows], places, order)
    (nearest,) = _merge(Neighbours.none(1, top), places, rows, cosines).split()
    return nearest


def _pick(products: np.ndarray, near: Neighbours) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of a query and a row of the block that may belong to the result; indices of
    queries and of rows, int `[candidates]` each.
    """
    count = near.rows.shape[1]
    if not count:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    floor = near.cosines[:, -1]
    if np.isneginf(floor).any() and products.shape[1] > count:
        floor = np.maximum(floor, np.partition(products, -count, axis=1)[:, -count])
    # Refused rows have products of minus infinity; this lower bound excludes them in any case.
    floor = np.maximum(floor - SLACK, -2.0)
    places, rows = np.nonzero(products >= floor[:, None])
    return places, rows


def _compare(
    queries: np.ndarray, block: np.ndarray, places: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """The cosines of pairs of a query and a row, in float64.

    Equal rows must have equal cosines. A matrix product does not ensure that, because its order of
    summation depends on a row's position.
    """
    cosines = np.empty(len(places), np.float64)
    for start in range(0, len(places), _COMPARED):
        part = slice(start, start + _COMPARED)
        products = queries[places[part]].astype(np.float64) * block[rows[part]]
        cosines[part] = products.sum(axis=1)
    return quantize(cosines)


def _merge(
    near: Neighbours, places: np.ndarray, rows: np.ndarray, cosines: np.ndarray
) -> Neighbours:
    """The nearest among the rows found before and further rows `[candidates]`; `places` are the
    indices of their queries.
    """
    before = np.nonzero(near.rows >= 0)
    places = np.concatenate([before[0], places])
    rows = np.concatenate([near.rows[before], rows])
    cosines = np.concatenate([near.cosines[before], cosines])
    order = np.lexsort((rows, -cosines, places))
    places, rows, cosines = places[order], rows[order], cosines[order]
    rank = np.arange(len(places)) - np.searchsorted(places, places)
    kept = rank < near.rows.shape[1]
    best = Neighbours.none(*near.rows.shape)
    best.rows[places[kept], rank[kept]] = rows[kept]
    best.cosines[places[kept], rank[kept]] = cosines[kept]
    return best
