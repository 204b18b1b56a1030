"""A search index on disk and search in it.

The folder of an index holds, in the order in which it is built:

    made_from.json    what it was made from: model, corpus, settings
    texts/            the distinct texts, one a line, and where and how often each stands
    embeddings.npy    float32 [texts, dim], of length 1 each
    faiss.index       for approximate search only
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

from dcse_tf.errors import InputError
from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.nearest import Nearest, find_nearest
from dcse_tf.files import MADE_FROM_FILE, MadeFrom
from dcse_tf.input_files import UNREADABLE_ARRAY, iterate_bare_lines
from dcse_tf.progress import Progress
from dcse_tf.search.nearest import ApproximateIndex, Settings

TEXTS_FOLDER = "texts"
EMBEDDINGS_FILE = "embeddings.npy"
FAISS_FILE = "faiss.index"
INDEX_TYPE = "`index_type`"  # in made_from.json
_FORMAT, _FORMAT_VERSION = "format", 2


def describe(index_type: str, sources: dict[str, Any]) -> MadeFrom:
    """What an index is made from.

    Args:
        index_type: "exact", "hnsw" or "ivf".
        sources: the model and the corpus, name -> value.
    """
    return MadeFrom({_FORMAT: _FORMAT_VERSION, INDEX_TYPE: index_type, **sources})


def is_index(folder: pathlib.Path) -> bool:
    return (folder / MADE_FROM_FILE).is_file() and (folder / TEXTS_FOLDER).is_dir()


def _read_description(folder: pathlib.Path) -> MadeFrom:
    made_from = MadeFrom.read(folder / MADE_FROM_FILE)
    version = made_from.values.get(_FORMAT)
    if version != _FORMAT_VERSION:
        raise InputError(
            f"{folder / MADE_FROM_FILE}: an index of format {version!r}, expected "
            f"{_FORMAT_VERSION}; build it anew"
        )
    return made_from


# The texts

TEXTS_FILE = "texts.txt"
_ARRAYS = ("offsets", "lines", "counts")


def write_corpus_texts(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes the distinct texts of a file, blank lines left out, in the order of the lines.

    Memory: about 200 bytes a distinct text, however long it is.

    Args:
        source: text file, a text a line; see `iterate_bare_lines`.
        folder: where to; it exists.

    Raises:
        InputError: the file cannot be read or has no text.
    """
    row: dict[bytes, int] = {}
    offsets, lines, counts = (array.array("q") for _ in _ARRAYS)
    progress = Progress("lines read")
    number, offset = 0, 0
    with (folder / TEXTS_FILE).open("wb") as file:
        for number, text in enumerate(iterate_bare_lines(source), start=1):
            if not text.strip():
                continue
            content = text.encode()
            # 128 bits: among 10^12 texts the chance that any two share a key is below 10^-14.
            key = hashlib.blake2b(content, digest_size=16).digest()
            place = row.setdefault(key, len(lines))
            if place < len(lines):
                counts[place] += 1
                continue
            offsets.append(offset)
            lines.append(number)
            counts.append(1)
            offset += file.write(content + b"\n")
            if number % 100_000 == 0:
                progress.update(number)
    progress.close()
    if not lines:
        raise InputError(f"{source}: no text in {number} lines")
    offsets.append(offset)
    for name, values in zip(_ARRAYS, (offsets, lines, counts), strict=True):
        np.save(folder / f"{name}.npy", np.frombuffer(values, np.int64))
    logging.info("%d lines, %d distinct texts", number, len(lines))


class CorpusTexts:
    """What `write_corpus_texts` wrote.

    Attributes:
        lines: int64 `[texts]`: the first line of the corpus with the text, counted from 1.
        counts: int64 `[texts]`: how many lines have the text.
    """

    def __init__(self, folder: pathlib.Path):
        """Raises InputError if a file is missing, damaged, or does not fit the others."""
        path = folder / TEXTS_FILE
        self._offsets, self.lines, self.counts = (
            _map_array(folder / f"{name}.npy") for name in _ARRAYS
        )
        try:
            with path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: not of a whole index: {error}") from error
        texts = self.lines.size
        forms = [
            (values.dtype, values.shape) for values in (self._offsets, self.lines, self.counts)
        ]
        expected = [(np.int64, (number,)) for number in (texts + 1, texts, texts)]
        if forms != expected or int(self._offsets[-1]) != len(self._content):
            raise InputError(f"{path}: does not fit the other files of the index")

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, row: int) -> str:
        return self._content[self._offsets[row] : self._offsets[row + 1] - 1].decode(
            errors="replace"
        )


def _map_array(path: pathlib.Path) -> np.ndarray:
    """An array of an index, left on disk; raises InputError if it cannot be read."""
    try:
        return np.load(path, mmap_mode="r")
    except UNREADABLE_ARRAY as error:
        raise InputError(f"{path}: not of a whole index: {error}") from error


# The embeddings, and the search

# Cosines of the same embedding computed in two batches differ by no more than this.
_ALIKE = 2 * metrics.TIE_RESOLUTION


def scale_to_unit_length(rows: np.ndarray) -> np.ndarray:
    """Scales rows `[n, dim]` to length 1; a zero row stays zero.

    Raises:
        InputError: a row is not finite: the encoder has diverged.
    """
    if not np.isfinite(rows).all():
        raise InputError("an embedding is not finite: the encoder has diverged")
    return metrics.normalize(rows)


@dataclasses.dataclass(frozen=True)
class Hit:
    """A text found.

    Attributes:
        rank: from 1.
        cosine: with the query.
        line: the first line of the corpus with the text, counted from 1.
        count: how many lines have it in this spelling.
        text: the text.
        score: the re-ranker's, if there is one: a logit.
    """

    rank: int
    cosine: float
    line: int
    count: int
    text: str
    score: float | None = None


class SearchIndex:
    """An index folder, opened; its embeddings and texts stay on disk.

    Attributes:
        made_from: see `describe`.
    """

    def __init__(self, folder: pathlib.Path, settings: Settings | None = None):
        """Opens a folder.

        Raises:
            InputError: it is no index, a file is damaged, or FAISS is needed and not installed.
        """
        self.made_from = _read_description(folder)
        self._settings = settings or Settings()
        self._texts = CorpusTexts(folder / TEXTS_FOLDER)
        path = folder / EMBEDDINGS_FILE
        self._matrix = _map_array(path)
        if self._matrix.ndim != 2 or len(self._matrix) != len(self._texts):
            raise InputError(f"{path}: {self._matrix.shape} for {len(self._texts)} texts")
        self._faiss: ApproximateIndex | None = None
        kind = self.made_from.values.get(INDEX_TYPE)
        if kind != "exact":
            self._faiss = ApproximateIndex.read(folder / FAISS_FILE, str(kind), self._matrix)

    def search(self, embeddings: np.ndarray, top: int) -> list[list[Hit]]:
        """The `top` nearest texts of each query, or all if there are fewer.

        Texts that differ only in upper and lower case, and have the same embedding, are one hit:
        the first of them.

        Args:
            embeddings: float `[queries, dim]`.
            top: at least 1.

        Returns:
            Best first; texts of equal cosine in the order of their lines.
        """
        queries = metrics.normalize(embeddings).astype(np.float32)
        hits: list[list[Hit]] = [[] for _ in queries]
        asked, short = top, list(range(len(queries)))
        while short:
            found = dict(zip(short, self._find(queries[short], asked), strict=True))
            for place, nearest in found.items():
                hits[place] = self._list_hits(nearest)[:top]
            # Other spellings took places: ask for twice as many until there are enough.
            short = [
                place
                for place, nearest in found.items()
                if len(hits[place]) < top and len(nearest.rows) == asked
            ]
            asked *= 2
        return hits

    def _find(self, queries: np.ndarray, top: int) -> list[Nearest]:
        if self._faiss:
            return self._faiss.find_nearest(queries, top, self._settings)
        return find_nearest(self._matrix, queries, top)

    def _list_hits(self, nearest: Nearest) -> list[Hit]:
        hits: list[Hit] = []
        cosines: dict[str, float] = {}
        for row, cosine in zip(nearest.rows.tolist(), nearest.cosines.tolist(), strict=True):
            text = self._texts[row]
            folded = text.casefold()
            if cosines.get(folded, math.inf) - cosine <= _ALIKE:
                continue
            cosines[folded] = cosine
            line, count = int(self._texts.lines[row]), int(self._texts.counts[row])
            hits.append(Hit(len(hits) + 1, cosine, line, count, text))
        return hits
