"""The nearest rows of a matrix, exactly."""

import dataclasses

import numpy as np

from dcse_tf.evaluation.metrics import quantize

_BLOCK_ROWS = 16_384
# Larger than float32's error in a cosine: rows this close below the last of the best are compared
# again in float64, so that none of the nearest is lost.
SLACK = 1e-5


@dataclasses.dataclass(frozen=True)
class Nearest:
    """The rows nearest to a query, best first.

    Attributes:
        rows: int64 `[found]`.
        cosines: float64 `[found]`, rounded to `metrics.TIE_RESOLUTION`, below which differences
            mean nothing; equal ones are in the order of their rows.
    """

    rows: np.ndarray
    cosines: np.ndarray


_NOTHING = Nearest(np.zeros(0, np.int64), np.zeros(0))


def find_nearest(
    matrix: np.ndarray, queries: np.ndarray, top: int, block_rows: int = _BLOCK_ROWS
) -> list[Nearest]:
    """The `top` nearest rows of each query, or all if there are fewer.

    Candidates are found with float32 products of blocks and then compared in float64, so that the
    result depends neither on the size of the blocks nor on the other queries.

    Args:
        matrix: float32 `[rows, dim]`, of length 1 each; possibly an array on disk.
        queries: float32 `[queries, dim]`, of length 1 each.
        top: at least 1.
        block_rows: rows read and compared at a time.

    Raises:
        InputError: a cosine is not finite.
    """
    found = [_NOTHING] * len(queries)
    for start in range(0, len(matrix), block_rows):
        block = np.asarray(matrix[start : start + block_rows])
        products = queries @ block.T
        for place, query in enumerate(queries):
            near = _pick(products[place], found[place], top)
            found[place] = _merge(found[place], near + start, block[near], query, top)
    return found


def rank_rows(matrix: np.ndarray, rows: np.ndarray, query: np.ndarray, top: int) -> Nearest:
    """The `top` nearest among some rows of the matrix, int64 `[candidates]`, to a query `[dim]`."""
    return _merge(_NOTHING, rows, matrix[rows], query, top)


def _pick(products: np.ndarray, found: Nearest, top: int) -> np.ndarray:
    """Rows of a block that may be among the best so far, int `[candidates]`."""
    if not np.isfinite(products).all():
        return np.arange(len(products))  # `quantize` will refuse them
    floor = found.cosines[-1] - SLACK if len(found.rows) == top else -np.inf
    near = np.flatnonzero(products >= floor)
    if len(near) > top:
        last = np.partition(products[near], -top)[-top]
        near = near[products[near] >= last - SLACK]
    return near


def _merge(
    found: Nearest, rows: np.ndarray, embeddings: np.ndarray, query: np.ndarray, top: int
) -> Nearest:
    # Not a matrix product, whose order of summation depends on where a row stands: equal rows
    # must have equal cosines.
    cosines = np.sum(embeddings.astype(np.float64) * query.astype(np.float64), axis=1)
    cosines = np.concatenate([found.cosines, quantize(cosines)])
    rows = np.concatenate([found.rows, rows.astype(np.int64)])
    order = np.lexsort((rows, -cosines))[:top]
    return Nearest(rows[order], cosines[order])
