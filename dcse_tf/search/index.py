"""A search index on disk: its texts, its embeddings, and search in it."""

import array
import dataclasses
import hashlib
import json
import math
import mmap
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dcse_tf.errors import InputError
from dcse_tf.evaluation import metrics
from dcse_tf.files import atomic_file
from dcse_tf.input_files import UNREADABLE_ARRAY, iterate_bare_lines, parse_json
from dcse_tf.progress import Progress
from dcse_tf.search.nearest import ApproximateIndex, Nearest, Settings, find_nearest

TEXTS_FILE = "texts.txt"
_ARRAYS = ("offsets", "lines", "counts")
TEXT_FILES = (TEXTS_FILE, *(f"{name}.npy" for name in _ARRAYS))


def write_corpus_texts(source: pathlib.Path, folder: pathlib.Path) -> int:
    """Writes the distinct texts of a file, blank lines left out, in the order of the lines.

    Memory: about 200 bytes a distinct text, however long it is.

    Args:
        source: text file, a text a line; see `iterate_bare_lines`.
        folder: where to; it exists.

    Returns:
        The number of lines read, blank ones too.

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
            # Of 128 bits: two texts in 10^12 share one with a chance of 10^-15.
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
    if not lines:
        raise InputError(f"{source}: no text in {number} lines")
    offsets.append(offset)
    for name, values in zip(_ARRAYS, (offsets, lines, counts), strict=True):
        np.save(folder / f"{name}.npy", np.frombuffer(values, np.int64))
    return number


class CorpusTexts:
    """What `write_corpus_texts` wrote.

    Attributes:
        lines: int64 `[texts]`: line of the corpus, from 1, at which a text stands first.
        counts: int64 `[texts]`: on how many lines it stands.
    """

    def __init__(self, folder: pathlib.Path):
        """Raises InputError if a file is missing, damaged, or does not fit the others."""
        path = folder / TEXTS_FILE
        self._offsets, self.lines, self.counts = (
            map_array(folder / f"{name}.npy") for name in _ARRAYS
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


def map_array(path: pathlib.Path) -> np.ndarray:
    """An array of an index, left on disk; raises InputError if it cannot be read."""
    try:
        return np.load(path, mmap_mode="r")
    except UNREADABLE_ARRAY as error:
        raise InputError(f"{path}: not of a whole index: {error}") from error


DESCRIPTION_FILE = "index.json"
EMBEDDINGS_FILE = "embeddings.npy"
FAISS_FILE = "faiss.index"
INDEX_FILES = (*TEXT_FILES, EMBEDDINGS_FILE, FAISS_FILE, DESCRIPTION_FILE)
_FORMAT = 1
_ROWS_AT_A_TIME = 8192
# The same embedding, computed in two batches.
_ALIKE = 2 * metrics.TIE_RESOLUTION


@dataclasses.dataclass(frozen=True)
class Description:
    """What an index was made of.

    Attributes:
        index_type: "exact", "hnsw" or "ivf".
        texts, dim: shape of the embeddings.
        lines: of the corpus, blank and repeated ones too.
        corpus: SHA-256 of the corpus' file.
        model: what decides the embeddings, name -> value, both for people to read.
    """

    index_type: str
    texts: int
    dim: int
    lines: int
    corpus: str
    model: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Hit:
    """A text found.

    Attributes:
        rank: from 1.
        cosine: with the query.
        line: of the corpus, from 1, on which the text stands first.
        count: on how many lines it stands, so spelt.
        text: the text.
    """

    rank: int
    cosine: float
    line: int
    count: int
    text: str


def write_embeddings(rows: np.ndarray, path: pathlib.Path) -> None:
    """Writes rows `[texts, dim]`, on disk perhaps, scaled to length 1; a zero row stays zero.

    Raises:
        InputError: a row is not finite: the encoder has diverged.
    """
    header = {"descr": "<f4", "fortran_order": False, "shape": rows.shape}
    # Not through a map of the file: where the disk is full, writing to one kills the process.
    with atomic_file(path) as partial, partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            part = rows[start : start + _ROWS_AT_A_TIME]
            if not np.isfinite(part).all():
                raise InputError("an embedding is not finite: the encoder has diverged")
            file.write(np.ascontiguousarray(metrics.normalize(part), "<f4").data)


def write_description(folder: pathlib.Path, description: Description) -> None:
    content = {"format": _FORMAT, **dataclasses.asdict(description)}
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    with atomic_file(folder / DESCRIPTION_FILE) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def is_index(folder: pathlib.Path) -> bool:
    return (folder / DESCRIPTION_FILE).is_file()


def _read_description(folder: pathlib.Path) -> Description:
    path = folder / DESCRIPTION_FILE
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        form = content.pop("format")
        if form != _FORMAT:
            raise InputError(f"{path}: format {form!r}, expected {_FORMAT}; build the index anew")
        return Description(**content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not the description of an index: {error!r}") from error


class SearchIndex:
    """An index folder, opened; its embeddings and texts stay on disk.

    Attributes:
        description: see `Description`.
    """

    def __init__(self, folder: pathlib.Path, settings: Settings | None = None):
        """Opens a folder.

        Raises:
            InputError: it is no index, a file is damaged, or FAISS is needed and not installed.
        """
        self.description = _read_description(folder)
        self._settings = settings or Settings()
        self._texts = CorpusTexts(folder)
        path = folder / EMBEDDINGS_FILE
        self._matrix = map_array(path)
        shape = (self.description.texts, self.description.dim)
        if self._matrix.shape != shape or len(self._texts) != shape[0]:
            raise InputError(f"{path}: {self._matrix.shape} for {len(self._texts)} texts; {shape}")
        self._faiss: ApproximateIndex | None = None
        if self.description.index_type != "exact":
            kind = self.description.index_type
            self._faiss = ApproximateIndex.read(folder / FAISS_FILE, kind, self._matrix)

    def search(self, embeddings: np.ndarray, top: int) -> list[list[Hit]]:
        """The `top` nearest texts of each query, or all if there are fewer.

        Of texts that differ in upper and lower case alone, and not to the encoder, the first
        stands for all.

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
            # Other spellings took places: as many more are asked for until there are enough.
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


def list_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words."""
    return [
        f"{name} {now.get(name)} (the index: {before.get(name)})"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
