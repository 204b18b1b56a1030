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
# Over float32's error in a cosine: what may come before the last of the best must not be lost.
_SLACK = 1e-5


@dataclasses.dataclass(frozen=True)
class Nearest:
    """The rows nearest to a query, best first.

    Attributes:
        rows: int64 `[found]`.
        cosines: float64 `[found]`, in steps of `metrics.TIE_RESOLUTION`, over which no order is
            claimed; equal ones by row.
    """

    rows: np.ndarray
    cosines: np.ndarray


NOTHING = Nearest(np.zeros(0, np.int64), np.zeros(0))


def find_nearest(
    matrix: np.ndarray, queries: np.ndarray, top: int, block_rows: int = _BLOCK_ROWS
) -> list[Nearest]:
    """The `top` nearest rows of each query, or all if there are fewer.

    Candidates are found by float32 products of blocks, then compared in float64, so that neither
    the block nor the number of queries decides which comes first.

    Args:
        matrix: float32 `[rows, dim]`, of length 1 each; an array on disk, perhaps.
        queries: float32 `[queries, dim]`, of length 1 each.
        top: at least 1.
        block_rows: rows read and compared at a time.

    Raises:
        InputError: a cosine is not finite.
    """
    found = [NOTHING] * len(queries)
    for start in range(0, len(matrix), block_rows):
        block = np.asarray(matrix[start : start + block_rows])
        products = queries @ block.T
        for place, query in enumerate(queries):
            near = _pick(products[place], found[place], top)
            found[place] = _merge(found[place], near + start, block[near], query, top)
    return found


def rank_rows(matrix: np.ndarray, rows: np.ndarray, query: np.ndarray, top: int) -> Nearest:
    """The `top` nearest of some rows of the matrix, int64 `[candidates]`, to a query `[dim]`."""
    return _merge(NOTHING, rows, matrix[rows], query, top)


def _pick(products: np.ndarray, found: Nearest, top: int) -> np.ndarray:
    """Places of a block that may be among the best of all rows so far."""
    if not np.isfinite(products).all():
        return np.arange(len(products))  # for `quantize` to refuse
    floor = found.cosines[-1] - _SLACK if len(found.rows) == top else -np.inf
    near = np.flatnonzero(products >= floor)
    if len(near) > top:
        last = np.partition(products[near], -top)[-top]
        near = near[products[near] >= last - _SLACK]
    return near


def _merge(
    found: Nearest, rows: np.ndarray, embeddings: np.ndarray, query: np.ndarray, top: int
) -> Nearest:
    # A sum of its own for every row: equal rows have equal cosines, wherever they stand.
    cosines = np.sum(embeddings.astype(np.float64) * query.astype(np.float64), axis=1)
    cosines = np.concatenate([found.cosines, quantize(cosines)])
    rows = np.concatenate([found.rows, rows.astype(np.int64)])
    order = np.lexsort((rows, -cosines))[:top]
    return Nearest(rows[order], cosines[order])


KINDS = ("hnsw", "ivf")
_APPROXIMATE_BLOCK_ROWS = 65_536
# FAISS wants at least this many rows to place a list's centre by, and takes at most 256.
_LEAST_OF_A_LIST, _MOST_OF_A_LIST = 39, 256
_SEED = 0
# FAISS' candidates for each answer: what its approximation puts too low is put right after it.
_CANDIDATES = 2


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an index is built and searched; see the flags of these names."""

    hnsw_m: int = 32
    ef_construction: int = 200
    ef_search: int = 128
    nlist: int = 0
    nprobe: int = 32


def import_faiss(kind: str) -> Any:
    """The library.

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
        """Builds an index by one thread: by several, what it finds would depend on their timing.

        Args:
            matrix: float32 `[rows, dim]`, of length 1 each; an array on disk, perhaps. Memory:
                the index holds a copy of it.
            kind: one of KINDS.
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
            for start in range(0, rows, _APPROXIMATE_BLOCK_ROWS):
                index.add(np.ascontiguousarray(matrix[start : start + _APPROXIMATE_BLOCK_ROWS]))
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
                reason = str(error).rpartition(" failed: ")[2]  # before it: where in its source
                raise OutputError(f"{path}: cannot be written: {reason}") from error

    @classmethod
    def read(cls, path: pathlib.Path, kind: str, matrix: np.ndarray) -> "ApproximateIndex":
        """Reads what `write` wrote.

        Raises:
            InputError: it is damaged, or of another matrix.
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
        """Near rows of each query, `top` of them or fewer; float32 `[queries, dim]`."""
        wanted = min(_CANDIDATES * top, len(self._matrix))
        if self._kind == "hnsw":
            self._index.hnsw.efSearch = max(settings.ef_search, wanted)
        else:
            self._index.nprobe = min(settings.nprobe, self._index.nlist)
        _, rows = self._index.search(np.ascontiguousarray(queries, np.float32), wanted)
        # FAISS fills up with -1 what it did not find.
        return [
            rank_rows(self._matrix, np.unique(found[found >= 0]), query, top)
            for found, query in zip(rows, queries, strict=True)
        ]

    def measure_recall(self, settings: Settings, top: int, sample: int = 1000) -> float:
        """Share of the exact nearest that are found, rows of the matrix being the queries.

        A row is left out of its own answer: it is always found.
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
    """Different rows, drawn at random by a fixed seed, ascending; all if there are no more."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(_SEED).choice(rows, most, replace=False))


def _draw_rows(matrix: np.ndarray, most: int) -> np.ndarray:
    return np.ascontiguousarray(matrix[_draw(len(matrix), most)])
