"""Shared by the readers of several formats: reading tables and JSON, and grouping rows."""

import codecs
import contextlib
import csv
import io
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, TypeVar

import ijson
import numpy as np

from dcse_tf.data.dialogue import Utterance
from dcse_tf.errors import InputError
from dcse_tf.files import hash_number
from dcse_tf.input_files import UNREADABLE, BadLines, open_input, parse_json, read_lines

T = TypeVar("T")

_RECENT = 1 << 16


class SeenIds:
    """A set of texts, stored as 64-bit fingerprints: eight bytes each, plus a buffer.

    A Python set would take a hundred bytes per id, which would be most of the memory of a job that
    streams millions of sessions.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted = np.zeros(0, np.uint64)

    def add(self, text: str) -> None:
        self._recent.add(hash_number(text))
        if len(self._recent) >= _RECENT:
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._sorted = np.union1d(self._sorted, recent)
            self._recent = set()

    def __contains__(self, text: str) -> bool:
        key = hash_number(text)
        if key in self._recent:
            return True
        place = int(np.searchsorted(self._sorted, np.uint64(key)))
        return place < len(self._sorted) and int(self._sorted[place]) == key


def read_table(path: pathlib.Path, tabs: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yields (line where the row ends, its fields) for each row that is not empty.

    Args:
        path: the file.
        tabs: whether it is a TSV file, in which quotes have no meaning; otherwise it is a CSV file,
            whose fields may be quoted.

    Raises:
        InputError: the file cannot be read in that format.
    """
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    try:
        with open_input(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            rows = csv.reader(text, strict=True, **style)
            for row in rows:
                if row:
                    yield rows.line_num, row
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason}") from error
    except csv.Error as error:
        kind = "TSV" if tabs else "CSV"
        raise InputError(f"{path}:{rows.line_num}: not {kind}: {error}") from error
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def read_json_lines(
    path: pathlib.Path, bad_lines: BadLines, parse: Callable[[int, Any], T]
) -> Iterator[T]:
    """Yields what `parse` makes of the JSON value of each line.

    Args:
        path: the file.
        bad_lines: counts lines that are not JSON, or not the expected JSON.
        parse: converts a line's number and value; it raises ValueError, with the reason, if the
            value is not as expected.
    """
    for number, line in read_lines(path, bad_lines):
        try:
            yield parse(number, parse_json(line))
        except json.JSONDecodeError as error:
            bad_lines.report(path, number, f"not JSON: {error.msg} at column {error.colno}")
        except UnicodeEncodeError as error:
            bad_lines.report(path, number, f"half of a surrogate pair: {error.reason}")
        except ValueError as error:
            bad_lines.report(path, number, str(error))


def group_rows(
    rows: Iterable[tuple[int, str, Utterance]], path: pathlib.Path, bad_lines: BadLines
) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields each session when its last row is read, so that memory holds only one.

    A row of a session that has already ended is bad: two pieces of one session must not become
    two sessions, which could then be negatives of each other.

    Args:
        rows: (line number, session id, utterance); the rows of a session together and in order.
        path: the file, for messages.
        bad_lines: counts unusable rows.
    """
    current: str | None = None
    turns: list[Utterance] = []
    ended = SeenIds()
    for number, session_id, utterance in rows:
        if session_id != current:
            if session_id in ended:
                bad_lines.report(
                    path,
                    number,
                    f"session {session_id!r} ended before this line; "
                    "the lines of a session must stand together",
                )
                continue
            if current is not None:
                yield current, turns
            ended.add(session_id)
            current, turns = session_id, []
        turns.append(utterance)
    if current is not None:
        yield current, turns


_FAULTS = (ijson.JSONError, UnicodeDecodeError, *UNREADABLE)


def read_members(path: pathlib.Path) -> Iterator[tuple[int, str, Any]]:
    """Yields (number from 1, key, value) for each member of a file that is one JSON object.

    Raises:
        InputError: the file is not one JSON object, or cannot be read.
    """
    _expect(path, b"{", "object")
    number = 0
    try:
        with _open_json(path) as file:
            for key, value in ijson.kvitems(file, "", use_float=True):
                number += 1
                yield number, key, value
    except _FAULTS as error:
        raise InputError(f"{path}: expected one JSON object: {_after(number, error)}") from error


def read_elements(path: pathlib.Path) -> Iterator[tuple[int, Any]]:
    """Yields (number from 1, value) for each element of a file that is one JSON array.

    Raises:
        InputError: the file is not one JSON array, or cannot be read.
    """
    _expect(path, b"[", "array")
    number = 0
    try:
        with _open_json(path) as file:
            for value in ijson.items(file, "item", use_float=True):
                number += 1
                yield number, value
    except _FAULTS as error:
        raise InputError(f"{path}: expected one JSON array: {_after(number, error)}") from error


@contextlib.contextmanager
def _open_json(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """`open_input`, after the byte-order mark that some programs put before UTF-8."""
    with open_input(path) as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        yield file


def _expect(path: pathlib.Path, start: bytes, kind: str) -> None:
    """Checks how the JSON begins: in a value of another kind ijson silently finds nothing."""
    try:
        with _open_json(path) as file:
            head = file.read(1024).lstrip()
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not head.startswith(start):
        raise InputError(f"{path}: expected one JSON {kind}, found {head[:20]!r}")


def _after(number: int, error: Exception) -> str:
    text = error.args[0] if error.args else ""
    if isinstance(text, bytes):  # yajl's messages are bytes
        text = text.decode(errors="replace")
    reason = str(text).strip().splitlines()
    return f"after {number} member(s): {reason[0] if reason else type(error).__name__}"
