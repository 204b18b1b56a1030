"""Tables with a turn a row: CSV with any delimiter, or Parquet.

The rows of a dialogue may stand anywhere, in several files too. Either a column names the dialogue
(session_id), or rows have ids and name the row that they reply to (id, reply_to).
"""

import contextlib
import csv
import datetime
import email.utils
import functools
import itertools
import math
import pathlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.messages import (
    AS_THEY_ARE,
    is_parquet,
    open_parquet,
    read_messages,
    read_parquet,
)
from dcse_tf.data.formats.reading import convert, read_table
from dcse_tf.errors import InputError
from dcse_tf.input_files import UNREADABLE, BadLines, open_text

_DELIMITERS = (",", ";", "\t", "|")
# The names of `columns`; a column of that name needs none.
NAMES = ("session_id", "role", "text", "time", "id", "reply_to")
_LONGEST_HEADER = 1 << 20  # characters
_CACHE = 64 << 10  # KiB of rows in memory; the others are in a temporary file
_EPOCH = datetime.datetime(1970, 1, 1)

# The rows that no other row is above begin a thread; so do, together, the replies to a missing row.
_THREADS = """
WITH RECURSIVE threads(id, thread, depth) AS (
  SELECT id, reply_to, 0 FROM turns
  WHERE reply_to = id OR reply_to NOT IN (SELECT id FROM turns)
  UNION ALL
  SELECT turns.id, thread, depth + 1 FROM turns JOIN threads ON turns.reply_to = threads.id
  WHERE turns.id != turns.reply_to
)
SELECT thread, id, role, text FROM threads JOIN turns USING (id)
ORDER BY thread, time, depth, turns.rowid
"""
_SESSIONS = "SELECT id, id, role, text FROM turns ORDER BY id, time, rowid"


def read_tables(
    paths: Sequence[pathlib.Path], bad_lines: BadLines, columns: Mapping[str, str] = AS_THEY_ARE
) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields the dialogues of all files together, once all rows are read, sorted by id.

    The rows of a dialogue are sorted by time, and rows of equal time stay in the order of the
    files. With replies, a dialogue is a thread: all rows that replies connect, sorted by time, a
    reply never before what it replies to at the same time; the id is that of its first row. Rows
    wait for their turn in a temporary file of the size of the texts. Without a column of roles,
    these are "".

    A Parquet file with a list of turns a row is read as `messages`.

    Args:
        paths: the files.
        bad_lines: counts rows that cannot be used: with another number of fields than the header,
            without a session or a role, or with a time that cannot be compared to the others.
        columns: a mapping from NAMES to the files' column names, where these differ.

    Raises:
        InputError: a file cannot be read or lacks a column, or there are too many bad lines.
    """
    with contextlib.closing(sqlite3.connect("", check_same_thread=False)) as database:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE}"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("CREATE TABLE turns (id TEXT, reply_to TEXT, time, role TEXT, text TEXT)")
        parser, before = _RowParser(), None
        for path in paths:
            if is_parquet(path):
                with open_parquet(path) as file:
                    kinds = {field.name: field.type for field in file.schema_arrow}
                if has_turns(kinds, columns):
                    yield from read_messages(path, bad_lines, columns)
                    continue
                chosen = choose_columns(list(kinds), columns, str(path))
                rows: Iterator[tuple[int, Any]] = read_parquet(path, list(chosen.values()))
            else:
                lines = read_table(path, bad_lines, _find_delimiter(path, bad_lines, columns))
                header = [name.strip() for name in next(lines, (1, []))[1]]
                chosen = choose_columns(header, columns, f"{path}:1")
                rows = ((number, dict(zip(header, row))) for number, row in lines)
            if before not in (None, set(chosen)):
                raise InputError(
                    f"{path}: expected columns for {', '.join(sorted(before or ()))}, as in the "
                    f"first table; found them for {', '.join(sorted(chosen))}"
                )
            before = set(chosen)
            named = ((n, {k: row[column] for k, column in chosen.items()}) for n, row in rows)
            parsed = convert(named, parser, path, bad_lines)
            with _name_full_disk():
                database.executemany("INSERT INTO turns VALUES (?, ?, ?, ?, ?)", parsed)
        threads = "reply_to" in (before or ())
        with _name_full_disk():
            if threads:
                _check_threads(database)
            found = database.execute(_THREADS if threads else _SESSIONS)
            for _, members in itertools.groupby(found, key=lambda row: row[0]):
                own = list(members)
                yield own[0][1], [Utterance(role, text) for _, _, role, text in own]


def has_turns(kinds: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
    """Whether the rows of a table are dialogues; otherwise they are turns.

    Args:
        kinds: column -> Arrow type.
        columns: see `read_tables`.
    """
    import pyarrow as pa

    kind = kinds.get(columns.get("turns", "turns"))
    return kind is not None and (pa.types.is_list(kind) or pa.types.is_large_list(kind))


def choose_columns(found: Sequence[str], columns: Mapping[str, str], where: str) -> dict[str, str]:
    """Finds the columns of a table whose rows are turns.

    Args:
        found: the table's columns.
        columns: see `read_tables`.
        where: names the table in the error message.

    Returns:
        A dict from those of NAMES that are used to their columns.

    Raises:
        InputError: a column is missing, or there twice.
    """
    own = {name: columns.get(name, name) for name in NAMES}
    threads = "reply_to" in columns or (own["session_id"] not in found and own["reply_to"] in found)
    needed = ["id", "reply_to", "time", "text"] if threads else ["session_id", "text"]
    # An optional column that is named must be there.
    needed += [name for name in ("role", "time") if name in columns or own[name] in found]
    for name in dict.fromkeys([*columns, *needed]):
        if name not in needed or found.count(own[name]) != 1:
            several = name in needed and own[name] in found
            fault = (
                "several columns"
                if several
                else "no use"
                if own.get(name) in found
                else "no column"
            )
            raise InputError(
                f"{where}: {fault} {columns.get(name, name)!r} for {name}; the columns are "
                f"{', '.join(found)[:500] or 'none'}; `columns`={name}:COLUMN names another, and "
                "id:COLUMN,reply_to:COLUMN those that connect replies"
            )
    return {name: own[name] for name in NAMES if name in needed}


def _find_delimiter(path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str]) -> str:
    """The delimiter with which the header has most of the columns, or else most fields."""
    try:
        with open_text(path, bad_lines.encoding) as file:
            lines = iter(functools.partial(file.readline, _LONGEST_HEADER), "")
            header = next(filter(str.strip, lines), "")
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    wanted = {columns.get(name, name) for name in NAMES}

    def rate(delimiter: str) -> tuple[int, int]:
        fields = [field.strip() for field in next(csv.reader([header], delimiter=delimiter), [])]
        return len(wanted.intersection(fields)), len(fields)

    return max(_DELIMITERS, key=rate)


class _RowParser:
    """Converts a row to what the database holds; remembers what kind the times are of."""

    def __init__(self) -> None:
        self._kind = ""

    def __call__(self, number: int, row: Mapping[str, Any]) -> tuple[Any, ...]:
        text = row["text"]
        if not isinstance(text, str | None):
            raise ValueError(f"expected a text, found {text!r:.40}")
        own = _name(row["id" if "id" in row else "session_id"], "id")
        reply_to = _name(row["reply_to"], "reply", own) if "reply_to" in row else own
        role = _name(row["role"], "role") if "role" in row else ""
        if "time" not in row:
            return own, reply_to, None, role, text or ""
        kind, time = parse_time(row["time"])
        if self._kind not in ("", kind):
            raise ValueError(
                f"expected {self._kind}, as before, to sort by; found {row['time']!r:.40}"
            )
        self._kind = kind
        return own, reply_to, time, role, text or ""


def _name(value: Any, what: str, default: str = "") -> str:
    """An id or a role as a text. A whole number may be written with .0, as pandas does."""
    name = "" if value is None or value != value else str(value).strip()
    if not (name or default):
        raise ValueError(f"the {what} is empty")
    plain = name.removesuffix(".0")
    return (plain if plain.isdecimal() else name) or default


def parse_time(value: object) -> tuple[str, int | float]:
    """Reads a number or a time: ISO 8601, that of mails (RFC 5322) or that of Twitter.

    Returns:
        What it is, in words; only values of one kind can be compared. Then the number, or the
        microseconds since 1970.

    Raises:
        ValueError: it is neither.
    """
    text = "" if value is None else str(value).strip()
    with contextlib.suppress(ValueError):
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
        if math.isfinite(number):
            return "a number", number if abs(number) < 2**63 else float(number)
    when = None
    for read in (datetime.datetime.fromisoformat, email.utils.parsedate_to_datetime):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            when = when or read(text.replace(" UTC", "+00:00"))
    if when is None:
        raise ValueError(
            f"expected a number or a time such as 2017-10-31 22:10:47, found {text[:40]!r}"
        )
    kind = "a time without its zone" if when.tzinfo is None else "a time with its zone"
    since = when.replace(tzinfo=None) - (when.utcoffset() or datetime.timedelta()) - _EPOCH
    return kind, since // datetime.timedelta(microseconds=1)


def _check_threads(database: sqlite3.Connection) -> None:
    """Refuses ids that appear twice, and replies in a circle, which no thread's first row reaches.

    Raises:
        InputError: there are such rows.
    """
    database.execute("CREATE INDEX of_id ON turns (id)")
    database.execute("CREATE INDEX of_reply ON turns (reply_to)")
    again = database.execute("SELECT id FROM turns GROUP BY id HAVING count(*) > 1").fetchone()
    if again:
        raise InputError(f"`columns`=id: the id {again[0]!r} appears for a second time")
    (reached,) = database.execute(f"SELECT count(*) FROM ({_THREADS})").fetchone()
    (rows,) = database.execute("SELECT count(*) FROM turns").fetchone()
    if reached < rows:
        raise InputError("`columns`=reply_to: some rows reply to each other in a circle")


@contextlib.contextmanager
def _name_full_disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise InputError(
            f"sorting the rows of `input`: {error}; TMPDIR names the folder of the temporary file"
        ) from error
