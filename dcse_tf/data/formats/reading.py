"""What the readers of several formats share: tables, JSON, and rows that form sessions."""

import csv
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import ijson
import numpy as np

from dcse_tf.data.dialogue import Utterance
from dcse_tf.errors import InputError
from dcse_tf.files import hash_number
from dcse_tf.input_files import (
    UNREADABLE,
    BadLines,
    is_encodable,
    open_text,
    parse_json,
    read_lines,
)

T = TypeVar("T")
R = TypeVar("R")

_RECENT = 1 << 16
_PIECE = 1 << 16  # characters of JSON read at a time
_LONGEST_FIELD = 64 << 20  # characters, of a field and of a line of it
csv.field_size_limit(_LONGEST_FIELD)  # Python's own limit is 128 KiB, less than some e-mails


class SeenIds:
    """A set of texts, kept as 64-bit fingerprints: eight bytes each, plus a buffer.

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


def convert(
    values: Iterable[tuple[int, T]],
    parse: Callable[[int, T], R],
    path: pathlib.Path,
    bad_lines: BadLines,
) -> Iterator[R]:
    """Yields `parse(number, value)` of each; if it raises ValueError, that line is bad, which says
    why.
    """
    for number, value in values:
        try:
            result = parse(number, value)
        except ValueError as error:
            bad_lines.report(path, number, str(error))
        except RecursionError:  # a value that ijson can read, but Python cannot print
            bad_lines.report(path, number, "nested too deeply")
        else:
            yield result


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
                problem = "ended before this line; the lines of a session must stand together"
                bad_lines.report(path, number, f"session {session_id!r} {problem}")
                continue
            if current is not None:
                yield current, turns
            ended.add(session_id)
            current, turns = session_id, []
        turns.append(utterance)
    if current is not None:
        yield current, turns


# Tables


def read_table(
    path: pathlib.Path, bad_lines: BadLines, delimiter: str = ",", quoted: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yields (line where the row ends, its fields) for each row that is not empty.

    Args:
        path: the file.
        bad_lines: counts rows that cannot be parsed, or with more or fewer fields than the first.
        delimiter: the character between two fields.
        quoted: whether quoted fields may hold delimiters and line ends, as in CSV. Otherwise they
            may not, as in most TSV files, and quotes around a whole field are removed.

    Raises:
        InputError: the file cannot be read, its first row cannot be parsed, or there are too many
            bad lines.
    """
    width = 0
    try:
        with open_text(path, bad_lines.encoding) as file:
            lines = iter(functools.partial(file.readline, _LONGEST_FIELD), "")
            rows = csv.reader(
                lines,
                delimiter=delimiter,
                quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
                strict=True,
            )
            while True:
                problem, row = "", None
                try:
                    row = next(rows, None)
                except csv.Error as error:
                    problem = f"not a table: {error}"
                if not is_encodable("".join(row or ())):
                    problem = bad_lines.not_encoded
                if row is not None and not problem and width and row and len(row) != width:
                    problem = f"expected {width} field(s), found {len(row)}"
                if problem and not width:  # the next row is no header
                    raise InputError(f"{path}:{rows.line_num}: {problem}")
                if problem:
                    bad_lines.report(path, rows.line_num, problem)
                elif row is None:
                    return
                elif row:
                    width = len(row)
                    yield rows.line_num, row if quoted else list(map(unquote, row))
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def unquote(field: str) -> str:
    """Removes quotes around a whole field, as programs that write CSV put them."""
    stripped = field.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] == '"':
        inside = stripped[1:-1].replace('""', "\0")
        if '"' not in inside:  # otherwise the outer quotes belong to two separate quotations
            return inside.replace("\0", '"').strip()
    return field


# JSON


def read_json_lines(
    path: pathlib.Path, bad_lines: BadLines, parse: Callable[[int, Any], R]
) -> Iterator[R]:
    """Yields what `parse` makes of the JSON value of each line.

    Args:
        path: the file.
        bad_lines: counts lines that are not JSON, or not the expected JSON.
        parse: converts a line's number and value; it raises ValueError, with the reason, if the
            value is not as expected.
    """
    lines = read_lines(path, bad_lines)
    return convert(lines, lambda number, line: parse(number, parse_json(line)), path, bad_lines)


def read_members(
    path: pathlib.Path, bad_lines: BadLines, array: bool = False
) -> Iterator[tuple[int, tuple[str, Any]]]:
    """Yields (number from 1, (key, value)) for each member of a file that is one JSON object.

    Args:
        path: the file, of any size.
        bad_lines: has the encoding of the file.
        array: whether the file is one JSON array instead; the keys are then "".

    Raises:
        InputError: the file is not one JSON object or array, or cannot be read.
    """
    number = 0
    try:
        with open_text(path, bad_lines.encoding) as file:
            head = file.read(1024)
            # In a value of another kind ijson silently finds nothing.
            if not head.lstrip().startswith("[" if array else "{"):
                raise ValueError(f"found {head[:20]!r}")
            pieces = itertools.chain([head], iter(functools.partial(file.read, _PIECE), ""))
            source = (piece.encode() for piece in pieces)
            members = ijson.kvitems(ijson.from_iter(source), "", use_float=True)
            if array:
                values = ijson.items(ijson.from_iter(source), "item", use_float=True)
                members = (("", value) for value in values)
            for number, member in enumerate(members, start=1):
                yield number, member
    except (ijson.JSONError, ValueError, *UNREADABLE) as error:
        reason = error.args[0] if error.args else ""
        if isinstance(error, UnicodeError):
            reason = bad_lines.not_encoded
        if isinstance(reason, bytes):  # yajl's messages are bytes
            reason = reason.decode(errors="replace")
        first = (str(reason).strip().splitlines() or [type(error).__name__])[0]
        kind = "array" if array else "object"
        raise InputError(
            f"{path}: expected one JSON {kind}: after {number} member(s): {first}"
        ) from error


def get_field(value: Any, name: str, kind: type[T], *default: T) -> T:
    """A field of a JSON object.

    Args:
        value: the object.
        name: the name of the field.
        kind: str or list.
        default: what to return if there is no field of that name; without it, that is an error.

    Raises:
        ValueError: the value is no object, or its field is not of that kind; the message says what
            was found.
    """
    if not isinstance(value, dict):
        raise ValueError(f'expected an object with "{name}", found {value!r:.40}')
    found = value.get(name)
    if name not in value and default:
        return default[0]
    if not isinstance(found, kind):
        wanted = "a text" if kind is str else "a list"
        instead = repr(found)[:40] if name in value else f"only {', '.join(value) or 'no field'}"
        raise ValueError(f'expected "{name}" to be {wanted}, found {instead:.200}')
    if isinstance(found, str):
        found.encode()  # JSON escapes can spell lone surrogates, which UTF-8 cannot encode
    return found
