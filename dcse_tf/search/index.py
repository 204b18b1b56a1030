"""A search index on disk, and search in it.

The folder of an index holds, in the order in which it is built:

    made_from.json    what it was made from: model, corpus, settings
    texts/            the distinct texts, one a line, with their line numbers and counts
    embeddings.npy    float32 [texts, dim], rows of length 1
    faiss.index       only for approximate search
"""

import array
import dataclasses
import hashlib
import math
import mmap
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from dcse_tf.bert.blanks import is_blank
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError
from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.nearest import Nearest, find_nearest
from dcse_tf.files import MADE_FROM_FILE, MadeFrom
from dcse_tf.input_files import UNREADABLE_ARRAY, iterate_bare_lines
from dcse_tf.progress import Progress
from dcse_tf.search.nearest import ApproximateIndex
from dcse_tf.search.options import ApproximateOptions

TEXTS_FOLDER = "texts"
EMBEDDINGS_FILE = "embeddings.npy"
FAISS_FILE = "faiss.index"
INDEX_TYPE = "`index_type`"  # in made_from.json
_FORMAT, _FORMAT_VERSION = "format", 2


def describe(index_type: str, sources: dict[str, Any]) -> MadeFrom:
    """The record of what an index is made from.

    Args:
        index_type: one of `KINDS` in the options.
        sources: name -> value that identifies the model and the corpus.
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
    """Writes the distinct texts of a file in the order of its lines, without blank lines.

    Memory: about 200 bytes per distinct text, however long it is.

    Args:
        source: text file with one text a line; see `iterate_bare_lines`.
        folder: an existing folder to write to.

    Raises:
        InputError: the file cannot be read or has no text.
    """
    row: dict[bytes, int] = {}
    offsets, lines, counts = (array.array("q") for _ in _ARRAYS)
    progress = Progress("lines read")
    number, offset = 0, 0
    with (folder / TEXTS_FILE).open("wb") as file:
        for number, text in enumerate(iterate_bare_lines(source), start=1):
            if is_blank(text):
                continue
            content = text.encode()
            # 128 bits: the probability of a collision among 10^12 texts is below 10^-14.
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
    """The texts that `write_corpus_texts` wrote.

    Attributes:
        lines: first line of the corpus with each text, counted from 1; int64 `[texts]`.
        counts: number of lines with each text; int64 `[texts]`.
    """

    def __init__(self, folder: pathlib.Path):
        """Raises InputError if a file is missing or damaged, or does not match the others."""
        path = folder / TEXTS_FILE
        self._offsets, self.lines, self.counts = (
            _map_array(folder / f"{name}.npy") for name in _ARRAYS
        )
        try:
            with path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: the index is incomplete or damaged: {error}") from error
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
        raise InputError(f"{path}: the index is incomplete or damaged: {error}") from error


# The embeddings, and the search

# Upper bound of the difference between cosines of one text that was embedded in different batches.
_ALIKE = 2 * metrics.TIE_TOLERANCE


def scale_to_unit_length(rows: np.ndarray) -> np.ndarray:
    """Scales rows `[n, dim]` to length 1; a zero row stays zero.

    Raises:
        InputError: a row is not finite: the encoder has diverged.
    """
    if not np.isfinite(rows).all():
        raise InputError("an embedding is not finite: the encoder has diverged")
    return normalize(rows)


@dataclasses.dataclass(frozen=True)
class Hit:
    """A text that was found.

    Attributes:
        rank: its rank, from 1.
        cosine: its cosine with the query.
        line: the first line of the corpus with the text, counted from 1.
        count: number of lines with the text in this spelling.
        text: the text.
        index: the folder of the index that `line` belongs to, if several are searched.
        score: the re-ranker's logit, if there is a re-ranker.
    """

    rank: int
    cosine: float
    line: int
    count: int
    text: str
    index: str | None = None
    score: float | None = None


class IndexFolder:
    """An open index folder; its embeddings and texts stay on disk.

    Attributes:
        path: the folder.
        made_from: see `describe`.
        kind: its `index_type`.
    """

    def __init__(self, path: pathlib.Path, options: ApproximateOptions):
        """Raises InputError if this is no index, a file is damaged, or FAISS is not installed."""
        self.path = path
        self.made_from = _read_description(path)
        self.kind = str(self.made_from.values.get(INDEX_TYPE))
        self._options = options
        self._texts = CorpusTexts(path / TEXTS_FOLDER)
        embeddings = path / EMBEDDINGS_FILE
        self._matrix = _map_array(embeddings)
        if self._matrix.ndim != 2 or len(self._matrix) != len(self._texts):
            raise InputError(f"{embeddings}: {self._matrix.shape} for {len(self._texts)} texts")
        self._faiss: ApproximateIndex | None = None
        if self.kind != "exact":
            self._faiss = ApproximateIndex.read(path / FAISS_FILE, self.kind, self._matrix)

    def find(self, queries: np.ndarray, top: int) -> list[Nearest]:
        """The `top` rows nearest to each query; queries are float32 `[queries, dim]`, length 1."""
        if self._faiss:
            return self._faiss.find_nearest(queries, top, self._options)
        return find_nearest(self._matrix, queries, top)

    def read_hit(self, row: int, cosine: float) -> Hit:
        """The hit for a row, with the rank 0."""
        line, count = int(self._texts.lines[row]), int(self._texts.counts[row])
        return Hit(0, cosine, line, count, self._texts[row], str(self.path))


class SearchIndex:
    """One index, or several of the same model that are searched as one.

    Attributes:
        folders: the indexes.
    """

    def __init__(self, folders: Sequence[pathlib.Path], options: ApproximateOptions | None = None):
        """Opens the folders.

        Raises:
            InputError: a folder is no index, a file is damaged, or FAISS is needed and not
                installed.
        """
        self.folders = [IndexFolder(path, options or ApproximateOptions()) for path in folders]

    def search(self, embeddings: np.ndarray, top: int) -> list[list[Hit]]:
        """The `top` nearest texts of each query, or all if there are fewer.

        Texts that differ only in upper and lower case and have the same embedding count as one hit,
        the first of them. A text that is in several indexes is one hit with its counts added.

        Args:
            embeddings: the queries' embeddings, float `[queries, dim]`.
            top: number of texts for each query, at least 1.

        Returns:
            For each query its hits, best first; ties in the order of the indexes and their lines.
        """
        queries = normalize(embeddings).astype(np.float32)
        hits: list[list[Hit]] = [[] for _ in queries]
        # Of several indexes, one row more than `top`: only a row below the hits shows that all
        # rows with their texts were seen.
        asked = top if len(self.folders) == 1 else top + 1
        open_places = list(range(len(queries)))
        while open_places:
            found = zip(*(each.find(queries[open_places], asked) for each in self.folders))
            places, open_places = open_places, []
            for place, nearest in zip(places, found, strict=True):
                hits[place] = self._list_hits(nearest)[:top]
                if _may_miss(hits[place], top, nearest, asked):
                    open_places.append(place)
            asked *= 2
        return hits

    def _list_hits(self, nearest: Sequence[Nearest]) -> list[Hit]:
        """Merges the rows found in each index into hits."""
        rows = np.concatenate([each.rows for each in nearest])
        cosines = np.concatenate([each.cosines for each in nearest])
        owners = np.repeat(np.arange(len(nearest)), [len(each.rows) for each in nearest])
        hits: dict[str, Hit] = {}
        spellings: dict[str, float] = {}
        for at in np.lexsort((rows, owners, -cosines)).tolist():
            hit = self.folders[owners[at]].read_hit(int(rows[at]), float(cosines[at]))
            text, folded = hit.text, hit.text.casefold()
            if text in hits:
                count = hits[text].count + hit.count
                hits[text] = dataclasses.replace(hits[text], count=count)
            elif spellings.get(folded, math.inf) - hit.cosine > _ALIKE:
                spellings[folded] = hit.cosine
                index = hit.index if len(nearest) > 1 else None
                hits[text] = dataclasses.replace(hit, rank=len(hits) + 1, index=index)
        return list(hits.values())


def _may_miss(hits: list[Hit], top: int, nearest: Sequence[Nearest], asked: int) -> bool:
    """Whether an index that was asked for `asked` rows may have more rows that affect the hits.

    Other spellings of a text may have taken the places of other texts, and the count of a text may
    be incomplete if several indexes have it.
    """
    floor = -math.inf
    if len(hits) == top:
        if len(nearest) == 1:
            return False
        floor = hits[-1].cosine - _ALIKE
    return any(len(each.rows) == asked and each.cosines[-1] >= floor for each in nearest)
