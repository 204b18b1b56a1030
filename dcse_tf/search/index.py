"""The index of a corpus, and search in it.

The folder of an index holds:

    made_from.json    what it was made from: model, corpus, settings
    texts.txt         the distinct texts, one a line
    texts.npy         int64 [texts, 2]: of each its first line in the corpus, from 1, and its count
    embeddings.npy    float32 [texts, dim], rows of length 1
    faiss.index       only for approximate search
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from dcse_tf.bert.vocabulary import is_blank
from dcse_tf.encoder.backend import normalize
from dcse_tf.errors import InputError, OutputError, name_input, require
from dcse_tf.evaluation.metrics import TIE_TOLERANCE, quantize
from dcse_tf.input_files import UNREADABLE_ARRAY, BadLines, read_json_object, read_lines

MADE_FROM_FILE, TEXTS_FILE, TABLE_FILE = "made_from.json", "texts.txt", "texts.npy"
EMBEDDINGS_FILE, FAISS_FILE = "embeddings.npy", "faiss.index"
INDEX_TYPE = "`index_type`"  # in made_from.json
FORMAT = {"format": 4}
FAISS = ("faiss", "search", "`index_type`=ivf")  # the module, its extra, and what needs it

# Larger than float32's error in a cosine. Rows whose cosine is at most this far below the last of
# the best are compared again in float64, so that none of the nearest is lost.
SLACK = 1e-5
# Upper bound of the difference between cosines of one text that was embedded in different batches.
_ALIKE = 2 * TIE_TOLERANCE
# Training rows per list of an approximate index. FAISS warns about fewer than the first; more than
# the second hardly change a list's centre.
_LEAST_OF_A_LIST, _MOST_OF_A_LIST = 39, 64
# Building compares every row with every centre; with more lists that takes longer than it saves.
_MOST_LISTS = 4096
_ADDED_ROWS = 65_536  # at a time


def write_corpus_texts(source: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Writes the distinct texts of a file of one text a line, in the order of its lines and without
    blank ones, with a table of their lines; returns the texts.
    """
    found: dict[str, list[int]] = {}
    number = 0
    for number, text in read_lines(source, BadLines(), blank=True):
        if not is_blank(text):
            found.setdefault(text, [number, 0])[1] += 1
    if not found:
        raise InputError(f"{source}: no text in {number} lines")
    (folder / TEXTS_FILE).write_bytes("".join(f"{text}\n" for text in found).encode())
    np.save(folder / TABLE_FILE, np.array(list(found.values()), np.int64))
    logging.info("%d lines, %d distinct texts", number, len(found))
    return list(found)


# The rows nearest to a query, int64 `[found]`, best first, of equal ones the first rows first; and
# their cosines, float64 `[found]`, rounded to `TIE_TOLERANCE`: smaller differences mean nothing.
Nearest = tuple[np.ndarray, np.ndarray]


def rank_rows(matrix: np.ndarray, rows: np.ndarray, query: np.ndarray, top: int) -> Nearest:
    """The `top` nearest to a query `[dim]` among some rows of the matrix, int64 `[candidates]`.

    Equal rows get equal cosines. A matrix product does not ensure that, because its order of
    summation depends on a row's position.
    """
    cosines = quantize((matrix[rows] * query.astype(np.float64)).sum(axis=1))
    order = np.lexsort((rows, -cosines))[:top]
    return rows[order], cosines[order]


def find_nearest(
    matrix: np.ndarray, queries: np.ndarray, top: int, block_rows: int = 16_384
) -> list[Nearest]:
    """The `top` nearest rows of each query, or all if there are fewer.

    The matrix, possibly on disk, is float32 `[rows, dim]`, queries are `[queries, dim]`, all of
    length 1. Candidates are found by float32 products of blocks of rows and then compared in
    float64, so the result depends neither on the size of the blocks nor on the other queries.
    """
    best: list[Nearest] = [(np.zeros(0, np.int64), np.zeros(0)) for _ in queries]
    for start in range(0, len(matrix), block_rows):
        for place, row in enumerate(queries @ np.asarray(matrix[start : start + block_rows]).T):
            rows, cosines = best[place]
            floor = cosines[-1] if len(rows) == top else -np.inf
            if len(row) > top:
                floor = max(floor, np.partition(row, -top)[-top])
            near = start + np.flatnonzero(~(row < floor - SLACK))  # NaN too, to be refused
            if len(near):
                best[place] = rank_rows(matrix, np.concatenate([rows, near]), queries[place], top)
    return best


@dataclasses.dataclass(frozen=True)
class Hit:
    """A text that was found."""

    rank: int  # from 1
    cosine: float  # with the query
    line: int  # the first line of the corpus with the text, from 1
    count: int  # of lines with the text in this spelling
    text: str
    score: float | None = None  # the re-ranker's logit, if there is one


def build_faiss(matrix: np.ndarray, path: pathlib.Path) -> None:
    """Builds and writes an approximate index, lists of rows around centres (IVF), of a matrix of
    float32 `[rows, dim]`, of length 1 each; possibly an array on disk.
    """
    faiss = require(*FAISS)
    rows, dim = matrix.shape
    lists = max(1, min(round(4 * math.sqrt(rows)), _MOST_LISTS, rows // _LEAST_OF_A_LIST))
    centres = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFFlat(centres, dim, lists, faiss.METRIC_INNER_PRODUCT)
    sample = np.linspace(0, rows - 1, min(rows, _MOST_OF_A_LIST * lists)).astype(np.int64)
    index.train(np.ascontiguousarray(matrix[sample]))
    for start in range(0, rows, _ADDED_ROWS):
        index.add(np.ascontiguousarray(matrix[start : start + _ADDED_ROWS]))
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        # FAISS begins the message with a line of its source.
        reason = str(error).rpartition(" failed: ")[2]
        raise OutputError(f"{path}: cannot be written: {reason}") from error


class SearchIndex:
    """An open index: its embeddings stay on disk, its texts and a FAISS index are in memory.

    `nprobe` are the lists that an approximate search reads. InputError: a file is damaged or does
    not fit the others, or FAISS is not installed.
    """

    def __init__(self, path: pathlib.Path, nprobe: int = 32):
        self.made_from = read_json_object(path / MADE_FROM_FILE)
        if (version := self.made_from.get("format")) != FORMAT["format"]:
            wrong = f"an index of format {version!r}, expected {FORMAT['format']}"
            raise InputError(f"{path}: {wrong}; build it anew")
        self._table, self._matrix = (
            _read(path / name, lambda file: np.load(file, mmap_mode="r", allow_pickle=False))
            for name in (TABLE_FILE, EMBEDDINGS_FILE)
        )
        self._texts = _read(path / TEXTS_FILE, lambda file: file.read_bytes().decode().split("\n"))
        del self._texts[-1]
        for name, found in ((TEXTS_FILE, self._texts), (EMBEDDINGS_FILE, self._matrix)):
            if len(found) != len(self._table):
                raise InputError(f"{path / name}: does not fit the other files of the index")
        self._faiss: Any = None
        if self.made_from.get(INDEX_TYPE) == "ivf":
            file = path / FAISS_FILE
            with name_input(f"{file}: not a FAISS index that can be read", RuntimeError):
                self._faiss = require(*FAISS).read_index(str(file))
            if (self._faiss.ntotal, self._faiss.d) != self._matrix.shape:
                raise InputError(f"{file}: does not fit the other files of the index")
            self._faiss.nprobe = min(nprobe, self._faiss.nlist)

    def find(self, queries: np.ndarray, top: int) -> list[Nearest]:
        """The `top` rows nearest to each query; queries are float32 `[queries, dim]`, length 1."""
        if not self._faiss:
            return find_nearest(self._matrix, queries, top)
        # Twice as many candidates, ranked by their exact cosines.
        wanted = min(2 * top, len(self._matrix))
        _, rows = self._faiss.search(np.ascontiguousarray(queries, np.float32), wanted)
        # Where many rows are equal, lists are empty: with too few in those read, all are compared.
        return [
            rank_rows(self._matrix, np.unique(found[found >= 0]), query, top)  # -1: none found
            if np.count_nonzero(found >= 0) >= min(top, len(self._matrix))
            else find_nearest(self._matrix, query[None], top)[0]
            for found, query in zip(rows, queries, strict=True)
        ]

    def measure_recall(self, top: int = 10) -> float:
        """The share of the exact `top` nearest rows that `find` finds, 0 to 1, for 1,000 rows. A
        query's own row, which is always found, does not count.
        """
        rows = np.unique(np.linspace(0, len(self._matrix) - 1, 1000).astype(np.int64))
        queries = np.asarray(self._matrix[rows])
        exact, found = find_nearest(self._matrix, queries, top + 1), self.find(queries, top + 1)
        shares = [
            np.isin(expected[expected != row][:top], near).mean()
            for row, (expected, _), (near, _) in zip(rows, exact, found, strict=True)
            if len(expected) > 1
        ]
        return float(np.mean(shares)) if shares else 1.0

    def search(self, embeddings: np.ndarray, top: int) -> list[list[Hit]]:
        """The `top` nearest texts of each query, or all if there are fewer.

        Queries are float `[queries, dim]`. Texts that differ only in upper and lower case and have
        the same embedding count as one hit, the first of them. Ties are in the order of lines.
        """
        queries = normalize(embeddings).astype(np.float32)
        hits: list[list[Hit]] = [[] for _ in queries]
        asked, short = top, list(range(len(queries)))
        while short:
            found, places, short = self.find(queries[short], asked), short, []
            for place, nearest in zip(places, found, strict=True):
                hits[place] = self._list_hits(nearest)[:top]
                # Other spellings may have taken the places of other texts: ask for more.
                if len(hits[place]) < top and len(nearest[0]) == asked:
                    short.append(place)
            asked *= 2
        return hits

    def _list_hits(self, nearest: Nearest) -> list[Hit]:
        hits: list[Hit] = []
        spellings: dict[str, float] = {}
        for row, cosine in zip(*(each.tolist() for each in nearest), strict=True):
            text = self._texts[row]
            if spellings.get(text.casefold(), math.inf) - cosine > _ALIKE:
                spellings[text.casefold()] = cosine
                line, count = self._table[row].tolist()
                hits.append(Hit(len(hits) + 1, cosine, line, count, text))
        return hits


def _read(path: pathlib.Path, read: Callable[[pathlib.Path], Any]) -> Any:
    with name_input(f"{path}: the index is incomplete or damaged", UNREADABLE_ARRAY):
        return read(path)
