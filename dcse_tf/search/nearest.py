"""Approximate search with FAISS: nearly all of the nearest rows, in a fraction of the time."""

import math
import mmap
import pathlib
from typing import Any

import numpy as np
from absl import logging

from dcse_tf.errors import InputError, OutputError, require
from dcse_tf.evaluation.nearest import Nearest, find_nearest, rank_rows
from dcse_tf.files import atomic_file
from dcse_tf.search.options import ApproximateOptions

_ADDED_ROWS = 65_536  # at a time
# Training rows per list. FAISS warns about fewer than the first; more than the second hardly change
# the list's centre.
_LEAST_OF_A_LIST, _MOST_OF_A_LIST = 39, 64
# Building compares every row with every centre; with more lists that takes longer than it saves.
_MOST_LISTS = 4096
_SEED = 0
# Candidates that FAISS is asked for per row wanted; they are then ranked by exact cosines.
_CANDIDATES = 2
_INT8 = "_int8"  # suffix of the kinds that store eight bits per dimension


def import_faiss(kind: str) -> Any:
    """Imports the FAISS library.

    Args:
        kind: the kind of index that needs it, for the message.

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
    def build(
        cls, matrix: np.ndarray, kind: str, options: ApproximateOptions
    ) -> "ApproximateIndex":
        """Builds an index whose content does not depend on the timing of threads.

        Args:
            matrix: float32 `[rows, dim]`, of length 1 each; possibly an array on disk.
            kind: "hnsw" or "ivf", which hold a copy of the matrix in memory; "hnsw_int8" or
                "ivf_int8", a quarter of that; or "binary", only the signs, a 32nd.
            options: how to build it.
        """
        faiss = import_faiss(kind)
        threads = faiss.omp_get_max_threads()
        if kind.startswith("hnsw"):
            faiss.omp_set_num_threads(1)  # the links depend on the order of insertion
        try:
            index = _make_empty(faiss, kind, matrix, options)
            for start in range(0, len(matrix), _ADDED_ROWS):
                index.add(_encode(kind, matrix[start : start + _ADDED_ROWS]))
        finally:
            faiss.omp_set_num_threads(threads)
        return cls(index, kind, matrix)

    def write(self, path: pathlib.Path) -> None:
        """Writes the index to a file that `read` reads.

        Raises:
            OutputError: it cannot be written.
        """
        faiss = import_faiss(self._kind)
        write = faiss.write_index_binary if self._kind == "binary" else faiss.write_index
        with atomic_file(path) as partial:
            try:
                write(self._index, str(partial))
            except RuntimeError as error:
                # FAISS begins the message with a line of its source.
                reason = str(error).rpartition(" failed: ")[2]
                raise OutputError(f"{path}: cannot be written: {reason}") from error

    @classmethod
    def read(cls, path: pathlib.Path, kind: str, matrix: np.ndarray) -> "ApproximateIndex":
        """Opens a file that `write` wrote; vectors, codes and links stay on disk.

        Raises:
            InputError: the file is damaged, or was made from another matrix.
        """
        faiss = import_faiss(kind)
        if isinstance(matrix.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
            # Candidates' rows lie far apart, so reading ahead would take many times as long.
            matrix.base.madvise(mmap.MADV_RANDOM)
        read = faiss.read_index_binary if kind == "binary" else faiss.read_index
        try:
            # FAISS 1.15 reads beyond the end of a mapped file whose header is cut short.
            if path.stat().st_size < len(matrix) * _count_bytes(kind, matrix.shape[1]):
                raise RuntimeError("the file is cut short")
            index = read(str(path), faiss.IO_FLAG_MMAP_IFC)
        except (OSError, RuntimeError) as error:
            raise InputError(f"{path}: not a FAISS index that can be read: {error}") from error
        dim = _encode(kind, matrix[:1]).shape[1] * (8 if kind == "binary" else 1)
        if (index.ntotal, index.d) != (len(matrix), dim):
            found = f"{index.ntotal} rows of {index.d}"
            raise InputError(f"{path}: {found}, expected {len(matrix)} of {dim}")
        return cls(index, kind, matrix)

    def find_nearest(
        self, queries: np.ndarray, top: int, options: ApproximateOptions
    ) -> list[Nearest]:
        """At most `top` near rows of each query; queries are float32 `[queries, dim]`."""
        each = options.binary_candidates if self._kind == "binary" else _CANDIDATES
        wanted = min(each * top, len(self._matrix))
        if self._kind.startswith("hnsw"):
            self._index.hnsw.efSearch = max(options.ef_search, wanted)
        elif self._kind.startswith("ivf"):
            self._index.nprobe = min(options.nprobe, self._index.nlist)
        _, rows = self._index.search(_encode(self._kind, queries), wanted)
        # FAISS fills missing answers with -1.
        return [
            rank_rows(self._matrix, np.unique(found[found >= 0]), query, top)
            for found, query in zip(rows, queries, strict=True)
        ]

    def measure_recall(self, options: ApproximateOptions, top: int, sample: int = 1000) -> float:
        """The share of the exact `top` nearest rows that the index finds; 0 to 1. It is logged.

        The queries are `sample` rows of the matrix. A query's own row, which is always found, does
        not count.
        """
        rows = _draw(len(self._matrix), sample)
        queries = np.asarray(self._matrix[rows])
        exact = find_nearest(self._matrix, queries, top + 1)
        found = self.find_nearest(queries, top + 1, options)
        shares = []
        for row, expected, near in zip(rows, exact, found, strict=True):
            others = [other for other in expected.rows if other != row][:top]
            if others:
                shares.append(np.isin(others, near.rows).mean())
        recall = float(np.mean(shares)) if shares else 1.0
        logging.info("%s finds %.1f%% of the exact %d nearest", self._kind, 100 * recall, top)
        return recall


def _make_empty(faiss: Any, kind: str, matrix: np.ndarray, options: ApproximateOptions) -> Any:
    """A FAISS index, trained on some of the rows, to which all rows can be added."""
    rows, dim = matrix.shape
    metric, codes = faiss.METRIC_INNER_PRODUCT, faiss.ScalarQuantizer.QT_8bit
    if kind == "binary":
        return faiss.IndexBinaryFlat(8 * _count_bytes(kind, dim))
    if kind.startswith("hnsw"):
        if kind.endswith(_INT8):
            index = faiss.IndexHNSWSQ(dim, codes, options.hnsw_m, metric)
            index.train(_draw_rows(matrix, _MOST_OF_A_LIST * _MOST_LISTS))
        else:
            index = faiss.IndexHNSWFlat(dim, options.hnsw_m, metric)
        index.hnsw.efConstruction = options.ef_construction
        return index
    lists = options.nlist or min(round(4 * math.sqrt(rows)), _MOST_LISTS)
    lists = max(1, min(lists, rows // _LEAST_OF_A_LIST))
    centres = faiss.IndexFlatIP(dim)
    if kind.endswith(_INT8):
        index = faiss.IndexIVFScalarQuantizer(centres, dim, lists, codes, metric, False)
    else:
        index = faiss.IndexIVFFlat(centres, dim, lists, metric)
    index.cp.seed = 1234
    index.train(_draw_rows(matrix, _MOST_OF_A_LIST * lists))
    return index


def _encode(kind: str, rows: np.ndarray) -> np.ndarray:
    """Rows in the form that FAISS takes: float32, or for "binary" their signs, uint8
    `[n, dim / 8]`.
    """
    if kind == "binary":
        return np.packbits(rows > 0, axis=1)
    return np.ascontiguousarray(rows, np.float32)


def _count_bytes(kind: str, dim: int) -> int:
    """Bytes that FAISS stores for a row, without its links."""
    if kind == "binary":
        return math.ceil(dim / 8)
    return dim if kind.endswith(_INT8) else 4 * dim


def _draw(rows: int, most: int) -> np.ndarray:
    """At most `most` distinct row indices, drawn with a fixed seed, ascending."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(_SEED).choice(rows, most, replace=False))


def _draw_rows(matrix: np.ndarray, most: int) -> np.ndarray:
    return np.ascontiguousarray(matrix[_draw(len(matrix), most)])
