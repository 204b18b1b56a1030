"""The distinct texts of a corpus, on disk: one is read without reading the others."""

import array
import hashlib
import mmap
import pathlib

import numpy as np

from dcse_tf.errors import InputError
from dcse_tf.input_files import UNREADABLE_ARRAY, iterate_bare_lines
from dcse_tf.progress import Progress

TEXTS_FILE = "texts.txt"
_ARRAYS = ("offsets", "lines", "counts")
FILES = (TEXTS_FILE, *(f"{name}.npy" for name in _ARRAYS))


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
