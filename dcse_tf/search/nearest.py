"""The nearest rows of a matrix: exactly, or by FAISS."""

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np

from dcse_tf.errors import InputError, OutputError, require
from dcse_tf.evaluation.metrics import quantize
from dcse_tf.files import atomic_file

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


# Approximate search

_ADDED_ROWS = 65_536  # at a time
# FAISS warns if it trains the centre of a list on fewer rows, and uses no more.
_LEAST_OF_A_LIST, _MOST_OF_A_LIST = 39, 256
_SEED = 0
# Candidates that FAISS is asked for per answer; ranking them exactly corrects its order.
_CANDIDATES = 2


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an approximate index is built and searched; see the options of these names."""

    hnsw_m: int = 32
    ef_construction: int = 200
    ef_search: int = 128
    nlist: int = 0
    nprobe: int = 32


def import_faiss(kind: str) -> Any:
    """The FAISS library.

    Args:
        kind: the index that needs it, for the message.

    Raises:
        InputError: it is not installed.
    """
    return require("faiss", extra="search", why=f"`index_type`={kind}")


class ApproximateIndex:
    """A FAISS index over the rows of a matrix, whose candidates are ranked by exact cosines."""

    def __init__(self, index: Any, kind: str, matrix: np.ndarray):
        self._index = index
        self._kind = kind
        self._matrix = matrix

    @classmethod
    def build(cls, matrix: np.ndarray, kind: str, settings: Settings) -> "ApproximateIndex":
        """Builds an index with one thread; with several its content would depend on their timing.

        Args:
            matrix: float32 `[rows, dim]`, of length 1 each; possibly an array on disk. The index
                holds a copy of it in memory.
            kind: "hnsw" or "ivf".
            settings: see `Settings`.
        """
        faiss = import_faiss(kind)
        rows, dim = matrix.shape
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            if kind == "hnsw":
                index = faiss.IndexHNSWFlat(dim, settings.hnsw_m, faiss.METRIC_INNER_PRODUCT)
                index.hnsw.efConstruction = settings.ef_construction
            else:
                lists = settings.nlist or round(4 * math.sqrt(rows))
                lists = max(1, min(lists, rows // _LEAST_OF_A_LIST))
                centres = faiss.IndexFlatIP(dim)
                index = faiss.IndexIVFFlat(centres, dim, lists, faiss.METRIC_INNER_PRODUCT)
                index.cp.seed = 1234
                index.train(_draw_rows(matrix, _MOST_OF_A_LIST * lists))
            for start in range(0, rows, _ADDED_ROWS):
                index.add(np.ascontiguousarray(matrix[start : start + _ADDED_ROWS]))
        finally:
            faiss.omp_set_num_threads(threads)
        return cls(index, kind, matrix)

    def write(self, path: pathlib.Path) -> None:
        """Writes what `read` reads.

        Raises:
            OutputError: it cannot be written.
        """
        with atomic_file(path) as partial:
            try:
                import_faiss(self._kind).write_index(self._index, str(partial))
            except RuntimeError as error:
                # FAISS puts the place in its own source first.
                reason = str(error).rpartition(" failed: ")[2]
                raise OutputError(f"{path}: cannot be written: {reason}") from error

    @classmethod
    def read(cls, path: pathlib.Path, kind: str, matrix: np.ndarray) -> "ApproximateIndex":
        """Reads what `write` wrote.

        Raises:
            InputError: it is damaged, or was made from another matrix.
        """
        faiss = import_faiss(kind)
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise InputError(f"{path}: not a FAISS index that can be read: {error}") from error
        if (index.ntotal, index.d) != matrix.shape:
            found = f"{index.ntotal} rows of {index.d}"
            raise InputError(f"{path}: {found}, expected {matrix.shape[0]} of {matrix.shape[1]}")
        return cls(index, kind, matrix)

    def find_nearest(self, queries: np.ndarray, top: int, settings: Settings) -> list[Nearest]:
        """At most `top` near rows of each query; queries are float32 `[queries, dim]`."""
        wanted = min(_CANDIDATES * top, len(self._matrix))
        if self._kind == "hnsw":
            self._index.hnsw.efSearch = max(settings.ef_search, wanted)
        else:
            self._index.nprobe = min(settings.nprobe, self._index.nlist)
        _, rows = self._index.search(np.ascontiguousarray(queries, np.float32), wanted)
        # FAISS fills the answers that it did not find with -1.
        return [
            rank_rows(self._matrix, np.unique(found[found >= 0]), query, top)
            for found, query in zip(rows, queries, strict=True)
        ]

    def measure_recall(self, settings: Settings, top: int, sample: int = 1000) -> float:
        """Share of the exact `top` nearest that are found, with rows of the matrix as queries.

        A row does not count in its own answer, as it is always found.
        """
        rows = _draw(len(self._matrix), sample)
        queries = np.asarray(self._matrix[rows])
        exact = find_nearest(self._matrix, queries, top + 1)
        found = self.find_nearest(queries, top + 1, settings)
        shares = []
        for row, expected, near in zip(rows, exact, found, strict=True):
            others = [other for other in expected.rows if other != row][:top]
            if others:
                shares.append(np.isin(others, near.rows).mean())
        return float(np.mean(shares)) if shares else 1.0


def _draw(rows: int, most: int) -> np.ndarray:
    """At most so many different rows, drawn with a fixed seed, ascending."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(_SEED).choice(rows, most, replace=False))


def _draw_rows(matrix: np.ndarray, most: int) -> np.ndarray:
    return np.ascontiguousarray(matrix[_draw(len(matrix), most)])
