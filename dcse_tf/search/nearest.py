"""The nearest rows of a matrix by FAISS: nearly all of them, in a fraction of the time."""

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np

from dcse_tf.errors import InputError, OutputError, require
from dcse_tf.evaluation.nearest import Nearest, find_nearest, rank_rows
from dcse_tf.files import atomic_file

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
