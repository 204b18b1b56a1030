"""A .npy file written row by row, that a job goes on with after it was stopped.

What is not complete lies in a folder beside it, `embeddings.npy.dcse_tf-partial`: the
rows, the sentences shared by all blocks with their embeddings, and a journal. The journal says only
what is on disk: rows are flushed before it counts them.
"""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np

from dcse_tf.atomic import atomic_file, flush, partial_path
from dcse_tf.errors import InputError
from dcse_tf.input_files import UNREADABLE_ARRAY

_ROWS_FILE = "rows.npy"
_SHARED_TEXTS_FILE = "shared.json"
_SHARED_ROWS_FILE = "shared.npy"
_JOURNAL_FILE = "journal.json"
_ANEW = "give the same settings, or --overwrite to start anew"


@dataclasses.dataclass(frozen=True)
class Shared:
    """Sentences that were embedded before the first block, for all blocks.

    Attributes:
        row: text -> row.
        embeddings: float32 `[sentences, dim]`.
    """

    row: dict[str, int]
    embeddings: np.ndarray


class ResumableRows:
    """The rows on disk; made by `begin` or `resume`.

    Attributes:
        shape: (rows, columns) of the whole.
        done: rows on disk.
        shared: see `Shared`.
    """

    def __init__(self, output: pathlib.Path, journal: dict[str, Any], shared: Shared):
        self.shape: tuple[int, int] = (journal["rows"], journal["columns"])
        self.done: int = journal["done"]
        self.shared = shared
        self._output = output
        self._folder = partial_path(output)
        self._journal = journal

    def append(self, parts: Iterator[np.ndarray]) -> None:
        """Writes the rows that come next, float32 `[n, columns]` each, and makes them last."""
        count = 0
        with (self._folder / _ROWS_FILE).open("r+b") as file:
            file.seek(_read_offset(file) + self.done * self.shape[1] * 4)
            for part in parts:
                file.write(np.ascontiguousarray(part, "<f4").data)
                count += len(part)
            file.flush()
            os.fsync(file.fileno())
        self.done += count
        self._journal["done"] = self.done
        _write_json(self._folder / _JOURNAL_FILE, self._journal)

    def finish(self) -> None:
        """Gives the whole array its name."""
        if self.done != self.shape[0]:
            raise ValueError(f"{self.done} of {self.shape[0]} rows are written")
        (self._folder / _ROWS_FILE).replace(self._output)
        flush(self._output.parent)
        shutil.rmtree(self._folder)


def begin(
    output: pathlib.Path, job: dict[str, str], shape: tuple[int, int], shared: Shared
) -> ResumableRows:
    """Starts a file anew, throwing away what was left of another.

    Args:
        output: the .npy file to come; its folders are made.
        job: what the rows depend on, name -> value, both for people to read.
        shape: (rows, columns).
        shared: see `Shared`.

    Raises:
        InputError: the disk is too small.
    """
    discard(output)
    folder = partial_path(output)
    folder.mkdir(parents=True)
    rows, columns = shape
    needed, free = rows * columns * 4, shutil.disk_usage(folder).free
    if needed > free:
        folder.rmdir()
        raise InputError(
            f"--output={output}: {rows} rows of {columns} float32 are {_show_bytes(needed)}; "
            f"only {_show_bytes(free)} are free there"
        )
    _write_json(folder / _SHARED_TEXTS_FILE, list(shared.row))
    with (folder / _SHARED_ROWS_FILE).open("wb") as file:
        np.save(file, shared.embeddings)
        _flush(file)
    with (folder / _ROWS_FILE).open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        _flush(file)
    journal = {"job": job, "rows": rows, "columns": columns, "done": 0}
    _write_json(folder / _JOURNAL_FILE, journal)
    return ResumableRows(output, journal, shared)


def resume(output: pathlib.Path, job: dict[str, str]) -> ResumableRows | None:
    """What a run that was stopped left; None if it left nothing whole.

    Raises:
        InputError: it was another job, or its files are damaged.
    """
    folder = partial_path(output)
    path = folder / _JOURNAL_FILE
    if not path.is_file():
        return None
    try:
        journal = json.loads(path.read_text(encoding="utf-8"))
        before = journal["job"]
        shared_texts = json.loads((folder / _SHARED_TEXTS_FILE).read_text(encoding="utf-8"))
        shared_rows = np.load(folder / _SHARED_ROWS_FILE, allow_pickle=False)
        with (folder / _ROWS_FILE).open("rb") as file:
            written = _read_offset(file) + journal["done"] * journal["columns"] * 4
        missing = written - (folder / _ROWS_FILE).stat().st_size
    except (KeyError, *UNREADABLE_ARRAY) as error:
        raise InputError(f"{folder}: cannot be gone on with: {error!r}; {_ANEW}") from error
    changed = [
        f"{name}: {job.get(name)} (begun with {before.get(name)})"
        for name in {**before, **job}
        if job.get(name) != before.get(name)
    ]
    if changed:
        raise InputError(
            f"{folder}: {journal['done']} of {journal['rows']} rows were written by another "
            f"job: {'; '.join(changed)}; {_ANEW}"
        )
    if missing > 0:
        raise InputError(f"{folder / _ROWS_FILE}: {missing} bytes are missing; {_ANEW}")
    row = {text: index for index, text in enumerate(shared_texts)}
    return ResumableRows(output, journal, Shared(row, shared_rows))


def discard(output: pathlib.Path) -> None:
    """Removes what a run that was stopped left."""
    folder = partial_path(output)
    if folder.is_dir():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def _show_bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def _read_offset(file: Any) -> int:
    """Where the rows begin."""
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    return int(file.tell())


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_json(path: pathlib.Path, value: Any) -> None:
    with atomic_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1)
