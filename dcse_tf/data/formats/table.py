"""Tables with a turn a row: CSV with any delimiter, or Parquet.

The rows of a dialogue may stand anywhere, in several files too. Either a column names the dialogue
(session_id), or rows have ids and name the row that they reply to (id, reply_to).
"""

import array
import calendar
import contextlib
import csv
import datetime
import email.utils
import functools
import itertools
import math
import pathlib
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import messages, parquet
from dcse_tf.data.formats.reading import SeenIds, read_table
from dcse_tf.errors import InputError
from dcse_tf.files import hash_number
from dcse_tf.input_files import UNREADABLE, BadLines, open_text

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
# The names of `columns`; a column of that name needs none.
NAMES = ("session_id", "role", "text", "time", "id", "reply_to")
_AS_THEY_ARE: Mapping[str, str] = MappingProxyType({})
_LONGEST_HEADER = 1 << 20  # bytes
_CACHE = 64 << 10  # KiB of rows in memory; the others are in a temporary file
_EPOCH = datetime.datetime(1970, 1, 1)
_MAIL = re.compile(r"(?:\w{3}, )?\d{1,2} \w{3} \d{4} \d\d:\d\d(?::\d\d)? \S+")
_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr)}
_TWITTER = re.compile(r"\w{3} (\w{3}) (\d\d) (\d\d:\d\d:\d\d) ([+-]\d{4}) (\d{4})")


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """`read_tables` for one file whose columns have the known names."""
    return read_tables([path], bad_lines)


def read_tables(
    paths: Sequence[pathlib.Path],
    bad_lines: BadLines,
    columns: Mapping[str, str] = _AS_THEY_ARE,
    delimiter: str = "auto",
    alternate_roles: bool = False,
) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields the dialogues of all files together, once all rows are read, sorted by id.

    The rows of a dialogue are sorted by time, and rows of equal time stay in the order of the
    files. With replies, a dialogue is a thread: all rows that replies connect, sorted by time, a
    reply never before what it replies to at the same time; the id is that of its first row. Rows
    wait for their turn in a temporary file of the size of the texts.

    A Parquet file with a list of turns a row is read as `messages`.

    Args:
        paths: the files.
        bad_lines: counts rows that cannot be used: with another number of fields than the header,
            without a session or a role, or with a time that cannot be compared to the others.
        columns: a mapping from NAMES to the files' column names, where these differ.
        delimiter: a name in DELIMITERS, or "auto" to find it out from the header.
        alternate_roles: whether to accept a table without roles; the roles then are "".

    Raises:
        InputError: a file cannot be read or lacks a column, or there are too many bad lines.
    """
    with contextlib.closing(sqlite3.connect("", check_same_thread=False)) as database:
        rows = _Rows(database, bad_lines)
        source: Iterator[tuple[int, Sequence[Any]]]
        for path in paths:
            if parquet.is_parquet(path):
                schema = parquet.read_schema(path)
                if has_turns({field.name: field.type for field in schema}, columns):
                    yield from messages.read_sessions(path, bad_lines, columns, alternate_roles)
                    continue
                chosen = choose_columns(schema.names, columns, str(path), alternate_roles)
                source = parquet.read_rows(path, list(chosen.values()), bad_lines)
            else:
                character = DELIMITERS.get(delimiter) or _find_delimiter(path, bad_lines, columns)
                lines = read_table(path, bad_lines, character)
                header = [name.strip() for name in next(lines, (1, []))[1]]
                chosen = choose_columns(header, columns, f"{path}:1", alternate_roles)
                source = _pick(lines, path, header, list(chosen.values()), bad_lines)
            rows.add(path, list(chosen), source)
        yield from rows.sessions()


def has_turns(kinds: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
    """Whether the rows of a table are dialogues; otherwise they are turns.

    Args:
        kinds: column -> Arrow type.
        columns: see `read_tables`.
    """
    kind = kinds.get(columns.get("turns", "turns"))
    return kind is not None and parquet.is_list(kind)


def choose_columns(
    found: Sequence[str], columns: Mapping[str, str], where: str, alternate_roles: bool = False
) -> dict[str, str]:
    """Finds the columns of a table whose rows are turns.

    Args:
        found: the table's columns.
        columns, alternate_roles: see `read_tables`.
        where: names the table in the error message.

    Returns:
        A dict from those of NAMES that are used to their columns.

    Raises:
        InputError: a column is missing, there twice, or would not be used.
    """
    own = {name: columns.get(name, name) for name in NAMES}
    threads = "reply_to" in columns or (own["session_id"] not in found and own["reply_to"] in found)
    needed = ["id", "reply_to", "time"] if threads else ["session_id"]
    needed += ["text"] if alternate_roles else ["role", "text"]
    optional = [] if threads else ["time"]
    optional += ["role"] if alternate_roles else []
    # An optional column that is named must be there.
    needed += [name for name in optional if name in columns or own[name] in found]
    listed = ", ".join(found)[:500] or "none"
    for name, column in columns.items():
        if name not in needed:
            reason = "its rows are threads of replies" if threads else "its rows are turns"
            raise InputError(f"{where}: `columns`={name}:{column} is not used: {reason}")
    for name in needed:
        if found.count(own[name]) != 1:
            fault = "several columns" if own[name] in found else "no column"
            replies = ", id:COLUMN,reply_to:COLUMN those that connect replies"
            raise InputError(
                f"{where}: {fault} {own[name]!r} for {name}; the columns are {listed}; "
                f"`columns`={name}:COLUMN names another{replies if name == 'session_id' else ''}"
            )
    return {name: own[name] for name in NAMES if name in needed}


def _find_delimiter(path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str]) -> str:
    """The delimiter with which the header has most of the columns, or else most fields."""
    try:
        with open_text(path, bad_lines.encoding) as file:
            lines = iter(functools.partial(file.readline, _LONGEST_HEADER), b"")
            header = next(filter(bytes.strip, lines), b"").decode(errors="replace")
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    wanted = {columns.get(name, name) for name in NAMES}

    def rate(delimiter: str) -> tuple[int, int]:
        fields = [field.strip() for field in next(csv.reader([header], delimiter=delimiter), [])]
        return len(wanted.intersection(fields)), len(fields)

    return max(DELIMITERS.values(), key=rate)


def _pick(
    rows: Iterator[tuple[int, list[str]]],
    path: pathlib.Path,
    header: Sequence[str],
    wanted: Sequence[str],
    bad_lines: BadLines,
) -> Iterator[tuple[int, list[str]]]:
    """Yields the wanted fields of each row."""
    places = [header.index(name) for name in wanted]
    for number, row in rows:
        if len(row) == len(header):
            yield number, [row[place] for place in places]
        else:
            bad_lines.report(path, number, f"expected {len(header)} field(s), found {len(row)}")


class _Rows:
    """Rows of several tables, sorted on disk."""

    def __init__(self, database: sqlite3.Connection, bad_lines: BadLines):
        self._database, self._bad_lines = database, bad_lines
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE}"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("CREATE TABLE turns (session TEXT, time, role TEXT, text TEXT)")
        self._kind = ""  # of the times
        self._threads: _Threads | None = None
        self._names: Sequence[str] = ()

    def add(
        self, path: pathlib.Path, names: Sequence[str], rows: Iterator[tuple[int, Sequence[Any]]]
    ) -> None:
        """Adds the rows of a table, (line, values of the names).

        Raises:
            InputError: there are too many bad lines, or other tables have other names.
        """
        if self._names and names != self._names:
            raise InputError(
                f"{path}: expected columns for {', '.join(self._names)}, as in the first table; "
                f"found them for {', '.join(names)}"
            )
        self._names = names
        if "id" in names and not self._threads:
            self._threads = _Threads()
        parsed = self._parse(path, names, rows)
        with _name_full_disk():
            self._database.executemany("INSERT INTO turns VALUES (?, ?, ?, ?)", parsed)

    def _parse(
        self, path: pathlib.Path, names: Sequence[str], rows: Iterator[tuple[int, Sequence[Any]]]
    ) -> Iterator[tuple[str, int | float | None, str, str]]:
        for number, row in rows:
            values = dict(zip(names, row, strict=True))
            try:
                text = values["text"]
                if text is not None and not isinstance(text, str):
                    raise ValueError(f"expected a text, found {text!r:.40}")
                role = _name(values["role"], "role") if "role" in names else ""
                session = _name(values["id" if self._threads else "session_id"], "id")
                time = self._parse_time(values["time"]) if "time" in names else None
                if self._threads:
                    self._threads.add(session, values["reply_to"])
            except ValueError as error:
                self._bad_lines.report(path, number, str(error))
            else:
                yield session, time, role, text or ""

    def _parse_time(self, value: Any) -> int | float:
        kind, time = parse_time(value)
        if self._kind not in ("", kind):
            raise ValueError(f"expected {self._kind}, as before, to sort by; found {value!r:.40}")
        self._kind = kind
        return time

    def sessions(self) -> Iterator[tuple[str, list[Utterance]]]:
        """Yields the dialogues."""
        thread, order = "session", "time, rowid"
        if self._threads:
            numbers, depths = self._threads.connect()
            self._database.create_function("thread", 1, lambda row: int(numbers[row - 1]))
            self._database.create_function("depth", 1, lambda row: int(depths[row - 1]))
            thread, order = "thread(rowid)", "time, depth(rowid), rowid"
        with _name_full_disk():
            rows = self._database.execute(
                f"SELECT {thread} AS thread, session, role, text FROM turns "
                f"ORDER BY thread, {order}"
            )
            for _, members in itertools.groupby(rows, key=lambda row: row[0]):
                own = list(members)
                yield own[0][1], [Utterance(role, text) for _, _, role, text in own]


@contextlib.contextmanager
def _name_full_disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise InputError(
            f"sorting the rows of `input`: {error}; TMPDIR names the folder of the temporary file"
        ) from error


def _name(value: Any, what: str) -> str:
    """An id or a role as a text. A whole number may be written with .0, as pandas does."""
    name = "" if value is None or value != value else str(value).strip()
    if not name:
        raise ValueError(f"the {what} is empty")
    return name.removesuffix(".0") if name.removesuffix(".0").isdecimal() else name


def parse_time(value: object) -> tuple[str, int | float]:
    """Reads a number or a time: ISO 8601, that of mails (RFC 5322) or that of Twitter.

    Returns:
        What it is, in words; only values of one kind can be compared. Then the number, or the
        microseconds since 1970.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, int | float):
        text = repr(value)
    else:
        text = "" if value is None else str(value).strip()
    try:
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
        if math.isfinite(number):
            return "a number", number if abs(number) < 2**63 else float(number)
    except ValueError:
        pass
    if (match := _TWITTER.fullmatch(text)) and match[1] in _MONTHS:
        _, day, clock, zone, year = match.groups()
        text = f"{year}-{_MONTHS[match[1]]:02d}-{day}T{clock}{zone}"
    try:
        if _MAIL.fullmatch(text):
            when = email.utils.parsedate_to_datetime(text)
        else:
            when = datetime.datetime.fromisoformat(text.replace(" UTC", "+00:00"))
    except (ValueError, OverflowError):
        raise ValueError(
            f"expected a number or a time such as 2017-10-31 22:10:47, found {text[:40]!r}"
        ) from None
    kind = "a time without its zone" if when.tzinfo is None else "a time with its zone"
    offset = when.utcoffset() or datetime.timedelta()
    since = when.replace(tzinfo=None) - offset - _EPOCH
    return kind, since // datetime.timedelta(microseconds=1)


class _Threads:
    """Which rows replies connect. Ids are kept as 64-bit fingerprints."""

    def __init__(self) -> None:
        self._seen = SeenIds()
        self._ids, self._parents = array.array("Q"), array.array("Q")

    def add(self, name: str, reply_to: Any) -> None:
        """Adds a row.

        Raises:
            ValueError: another row has the id.
        """
        if name in self._seen:
            raise ValueError(f"the id {name!r} appears for a second time")
        self._seen.add(name)
        try:
            parent = _name(reply_to, "reply")
        except ValueError:
            parent = name
        self._ids.append(hash_number(name))
        self._parents.append(hash_number(parent))

    def connect(self) -> tuple[np.ndarray, np.ndarray]:
        """The thread of each row, and how many replies it is from the start.

        Rows that reply to one missing row are one thread.

        Returns:
            Two int64 arrays `[rows]`. The numbers of threads do not depend on the order of rows.

        Raises:
            InputError: rows reply to each other in a circle.
        """
        ids, parents = np.array(self._ids, np.uint64), np.array(self._parents, np.uint64)
        rows = np.arange(len(ids))
        order = np.argsort(ids)
        places = np.searchsorted(ids, parents, sorter=order).clip(max=len(ids) - 1)
        above = order[places]
        replies = (ids[above] == parents) & (ids != parents)
        above = np.where(replies, above, rows)
        depths = replies.astype(np.int64)
        for _ in range(len(ids).bit_length() + 1):  # each doubles the replies that are followed
            depths += depths[above]
            above = above[above]
        if replies[above].any():
            raise InputError("`columns`=reply_to: some rows reply to each other in a circle")
        return parents[above].view(np.int64), depths
