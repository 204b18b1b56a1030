"""The blocks of a split's shards: where reading can begin, and how much is there.

A training reads its shards block by block in an order drawn for every epoch. With this index it
knows what is in which block without reading it, so it goes on at any step without what is before.
"""

import hashlib
import io
import pathlib
from typing import NamedTuple

import numpy as np

from dcse_tf.data.manifest import Index, Split
from dcse_tf.errors import InputError
from dcse_tf.input_files import UNREADABLE_ARRAY

BLOCK_SESSIONS = 256
_FRAME = 16  # bytes of a TFRecord besides its content: the length and two checksums


class Blocks(NamedTuple):
    """Of every block, int64 `[blocks]` each; shard by shard, as they lie there.

    Attributes:
        shard: place of its shard among the split's.
        offset: bytes of the shard before it.
        bytes: its own.
        sessions, utterances: what it holds; of sessions at most `BLOCK_SESSIONS`.
    """

    shard: np.ndarray
    offset: np.ndarray
    bytes: np.ndarray
    sessions: np.ndarray
    utterances: np.ndarray


class BlockCounter:
    """Keeps count of what is written to the shards of a split."""

    def __init__(self, shards: int):
        self._rows: list[list[list[int]]] = [[] for _ in range(shards)]

    def add(self, shard: int, record_bytes: int, utterances: int) -> None:
        """Counts a record, a session's, of so many bytes at the shard's end."""
        rows = self._rows[shard]
        if not rows or rows[-1][3] == BLOCK_SESSIONS:
            rows.append([shard, rows[-1][1] + rows[-1][2] if rows else 0, 0, 0, 0])
        block = rows[-1]
        block[2] += _FRAME + record_bytes
        block[3] += 1
        block[4] += utterances

    def write(self, path: pathlib.Path) -> Index:
        """Writes the index file, int64 `[blocks, 5]`; the same bytes whenever it is the same."""
        rows = [row for shard in self._rows for row in shard]
        content = io.BytesIO()
        table = np.array(rows, np.int64).reshape(-1, len(Blocks._fields))
        np.save(content, table, allow_pickle=False)
        path.write_bytes(content.getvalue())
        return Index(path.name, hashlib.sha256(content.getvalue()).hexdigest())


def read_blocks(folder: pathlib.Path, split: Split) -> Blocks:
    """Reads the index of a split.

    Raises:
        InputError: it is not there, not what `prepare_data` wrote, or does not fit the manifest.
    """
    path = folder / split.index.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; run prepare_data again") from error
    if hashlib.sha256(content).hexdigest() != split.index.sha256:
        raise InputError(f"{path}: its SHA-256 is not the manifest's; run prepare_data again")
    try:
        # Mapped: a header that claims more than the file has takes no memory.
        table = np.load(path, mmap_mode="r", allow_pickle=False)
        blocks = Blocks(*np.array(table.astype(np.int64, casting="safe")).T)
    except UNREADABLE_ARRAY as error:
        raise InputError(f"{path}: not an index of prepare_data: {error!r}") from error
    for name in ("sessions", "utterances"):
        found, said = int(getattr(blocks, name).sum()), getattr(split, name)
        if found != said:
            raise InputError(f"{path}: {found} {name}, the manifest says {said}; run prepare_data")
    for number, shard in enumerate(split.shards):
        ends = np.cumsum(blocks.bytes[blocks.shard == number])
        begins = np.concatenate([[0], ends])
        found = blocks.offset[blocks.shard == number]
        if not np.array_equal(found, begins[:-1]) or begins[-1] != shard.bytes:
            raise InputError(f"{path}: does not fit {shard.name}; run prepare_data again")
    return blocks
