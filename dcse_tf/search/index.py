"""The index of a corpus, and search in it.

The folder of an index holds:

    made_from.json    what it was made from: model, corpus, settings
    texts.txt         the distinct texts, one a line
    texts.npy         int64 [texts, 3]: where each ends in texts.txt, its first line, its count
    embeddings.npy    float32 [texts, dim], rows of length 1
    faiss.index       only for approximate search
"""

import array
import dataclasses
import hashlib
import math
import mmap
import pathlib
from typing import Any

import numpy as np
from absl import logging

from dcse_tf.bert.blanks import is_blank
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError, OutputError, require
from dcse_tf.evaluation.metrics import TIE_TOLERANCE, quantize
from dcse_tf.files import MADE_FROM_FILE, MadeFrom
from dcse_tf.input_files import UNREADABLE_ARRAY, iterate_bare_lines
from dcse_tf.progress import Progress

TEXTS_FILE, TABLE_FILE = "texts.txt", "texts.npy"
EMBEDDINGS_FILE, FAISS_FILE = "embeddings.npy", "faiss.index"
INDEX_TYPE = "`index_type`"  # in made_from.json
FORMAT = {"format": 3}

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


# The texts


def write_corpus_texts(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes the distinct texts of a file in the order of its lines, without blank lines.

    Memory: about 200 bytes per distinct text, however long it is.

    Args:
        source: text file with one text a line; see `iterate_bare_lines`.
        folder: an existing folder to write to.

    Raises:
        InputError: the file cannot be read or has no text.
    """
    row: dict[bytes, int] = {}
    table = array.array("q")  # three numbers for each text
    end = number = 0
    with (folder / TEXTS_FILE).open("wb") as file, Progress("lines read") as progress:
        for number, text in enumerate(iterate_bare_lines(source), start=1):
            if number % 100_000 == 0:
                progress.update(number)
            if is_blank(text):
                continue
            content = text.encode()
            # 128 bits: the probability of a collision among 10^12 texts is below 10^-14.
            place = row.setdefault(hashlib.blake2b(content, digest_size=16).digest(), len(row))
            if 3 * place < len(table):
                table[3 * place + 2] += 1
            else:
                end += file.write(content + b"\n")
                table.extend((end, number, 1))
    if not row:
        raise InputError(f"{source}: no text in {number} lines")
    np.save(folder / TABLE_FILE, np.frombuffer(table, np.int64).reshape(-1, 3))
    logging.info("%d lines, %d distinct texts", number, len(row))


class CorpusTexts:
    """The texts that `write_corpus_texts` wrote; they stay on disk.

    Attributes:
        lines: first line of the corpus with each text, counted from 1; int64 `[texts]`.
        counts: number of lines with each text; int64 `[texts]`.
    """

    def __init__(self, folder: pathlib.Path):
        """Raises InputError if a file is missing or damaged, or does not match the other."""
        path = folder / TEXTS_FILE
        table = read_array(folder / TABLE_FILE)
        try:
            with path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: the index is incomplete or damaged: {error}") from error
        fits = table.dtype == np.int64 and table.ndim == 2 and table.shape[1] == 3 and len(table)
        if not fits or int(table[-1, 0]) != len(self._content):
            raise InputError(f"{path}: does not fit the other files of the index")
        self._ends, self.lines, self.counts = table.T

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, row: int) -> str:
        start = self._ends[row - 1] if row else 0
        return self._content[start : self._ends[row] - 1].decode(errors="replace")


def read_array(path: pathlib.Path) -> np.ndarray:
    """An array of an index, left on disk; raises InputError if it cannot be read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE_ARRAY as error:
        raise InputError(f"{path}: the index is incomplete or damaged: {error}") from error


# The nearest rows


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

    Candidates are found by float32 products of blocks and then compared in float64, so the result
    depends neither on the size of the blocks nor on the other queries.

    Args:
        matrix: float32 `[rows, dim]`, of length 1 each; possibly an array on disk.
        queries: float32 `[queries, dim]`, of length 1 each.
        top: number of rows to find for each query, at least 1.
        block_rows: number of rows read and compared at a time.

    Raises:
        InputError: a cosine is not finite.
    """
    best: list[Nearest] = [(np.zeros(0, np.int64), np.zeros(0)) for _ in queries]
    for start in range(0, len(matrix), block_rows):
        products = np.asarray(queries @ np.asarray(matrix[start : start + block_rows]).T)
        for place, row in enumerate(products):
            rows, cosines = best[place]
            floor = cosines[-1] if len(rows) == top else -np.inf
            if len(row) > top:
                floor = max(floor, np.partition(row, -top)[-top])
            near = start + np.flatnonzero(~(row < floor - SLACK))  # NaN too, to be refused
            if len(near):
                found = np.concatenate([rows, near])
                best[place] = rank_rows(matrix, found, queries[place], top)
    return best


# The index


@dataclasses.dataclass(frozen=True)
class Hit:
    """A text that was found.

    Attributes:
        rank: its rank, from 1.
        cosine: its cosine with the query.
        line: the first line of the corpus with the text, counted from 1.
        count: number of lines with the text in this spelling.
        text: the text.
        score: the re-ranker's logit, if there is a re-ranker.
    """

    rank: int
    cosine: float
    line: int
    count: int
    text: str
    score: float | None = None


def import_faiss() -> Any:
    """Imports the FAISS library; raises InputError if it is not installed."""
    return require("faiss", extra="search", why="`index_type`=ivf")


def build_faiss(matrix: np.ndarray, path: pathlib.Path) -> None:
    """Builds and writes an approximate index: lists of rows around centres (IVF).

    Args:
        matrix: float32 `[rows, dim]`, of length 1 each; possibly an array on disk.
        path: the file to write.

    Raises:
        InputError: FAISS is not installed.
        OutputError: the file cannot be written.
    """
    faiss = import_faiss()
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
    """An open index; its texts and embeddings stay on disk, a FAISS index is read into memory.

    Args:
        path: the folder.
        nprobe: lists that an approximate search reads.

    Attributes:
        path: the folder.
        made_from: what it was made from.

    Raises:
        InputError: a file is damaged or does not fit the others, or FAISS is not installed.
    """

    def __init__(self, path: pathlib.Path, nprobe: int = 32):
        self.path = path
        self.made_from = MadeFrom.read(path / MADE_FROM_FILE)
        version, expected = self.made_from.values.get("format"), FORMAT["format"]
        if version != expected:
            raise InputError(
                f"{path}: an index of format {version!r}, expected {expected}; build it anew"
            )
        self._texts = CorpusTexts(path)
        self._matrix = read_array(path / EMBEDDINGS_FILE)
        if self._matrix.ndim != 2 or len(self._matrix) != len(self._texts):
            found = f"{self._matrix.shape} for {len(self._texts)} texts"
            raise InputError(f"{path / EMBEDDINGS_FILE}: {found}")
        self._faiss: Any = None
        if self.made_from.values.get(INDEX_TYPE) == "ivf":
            file = path / FAISS_FILE
            try:
                self._faiss = import_faiss().read_index(str(file))
            except RuntimeError as error:
                raise InputError(f"{file}: not a FAISS index that can be read: {error}") from error
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
        return [
            rank_rows(self._matrix, np.unique(found[found >= 0]), query, top)  # -1: none found
            for found, query in zip(rows, queries, strict=True)
        ]

    def measure_recall(self, top: int = 10, sample: int = 1000) -> float:
        """The share of the exact `top` nearest rows that `find` finds, 0 to 1.

        The queries are `sample` rows. A query's own row, which is always found, does not count.
        """
        rows = np.unique(np.linspace(0, len(self._matrix) - 1, sample).astype(np.int64))
        queries = np.asarray(self._matrix[rows])
        exact = find_nearest(self._matrix, queries, top + 1)
        shares = []
        for row, (expected, _), (near, _) in zip(rows, exact, self.find(queries, top + 1)):
            others = expected[expected != row][:top]
            if len(others):
                shares.append(np.isin(others, near).mean())
        return float(np.mean(shares)) if shares else 1.0

    def search(self, embeddings: np.ndarray, top: int) -> list[list[Hit]]:
        """The `top` nearest texts of each query, or all if there are fewer.

        Texts that differ only in upper and lower case and have the same embedding count as one hit,
        the first of them.

        Args:
            embeddings: the queries' embeddings, float `[queries, dim]`.
            top: number of texts for each query, at least 1.

        Returns:
            For each query its hits, best first; ties in the order of their lines.
        """
        queries = normalize(embeddings).astype(np.float32)
        hits: list[list[Hit]] = [[] for _ in queries]
        asked, short = top, list(range(len(queries)))
        while short:
            found = zip(short, self.find(queries[short], asked), strict=True)
            short = []
            for place, nearest in found:
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
            folded = text.casefold()
            if spellings.get(folded, math.inf) - cosine > _ALIKE:
                spellings[folded] = cosine
                line, count = int(self._texts.lines[row]), int(self._texts.counts[row])
                hits.append(Hit(len(hits) + 1, cosine, line, count, text))
        return hits
