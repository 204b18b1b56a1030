"""Tables with a turn a row: CSV with any delimiter, or Parquet. Rows may stand in any order."""

import contextlib
import csv
import datetime
import email.utils
import itertools
import math
import pathlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
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
NAMES = ("session_id", "role", "text", "time")
_LONGEST_HEADER = 1 << 20  # characters
_CACHE = 64 << 10  # KiB of rows in memory; the others are in a temporary file
_EPOCH = datetime.datetime(1970, 1, 1)


def read_tables(
    paths: Sequence[pathlib.Path], bad_lines: BadLines, columns: Mapping[str, str] = AS_THEY_ARE
) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields the dialogues of all files together, once all rows are read, sorted by id.

    The rows of a dialogue are sorted by time, and rows of equal time stay in the order of the
    files. They wait for their turn in a temporary file of the size of the texts. Without a column
    of roles, these are "". A Parquet file with a list of turns a row is read as `messages`.

    Args:
        paths: the files.
        bad_lines: counts rows that cannot be used: with another number of fields than the header,
            without a session or a role, or with a time that cannot be compared to the others.
        columns: a mapping from NAMES to the files' column names, where these differ.

    Raises:
        InputError: a file cannot be read or lacks a column, or there are too many bad lines.
    """
    parse = _make_parser()
    with contextlib.closing(sqlite3.connect("", check_same_thread=False)) as database:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE}"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("CREATE TABLE turns (session TEXT, time, role TEXT, text TEXT)")
        for path in paths:
            if is_parquet(path):
                import pyarrow as pa

                with open_parquet(path) as file:
                    kinds = {field.name: field.type for field in file.schema_arrow}
                turns = kinds.get(columns.get("turns", "turns"), pa.null())
                if pa.types.is_list(turns) or pa.types.is_large_list(turns):
                    yield from read_messages(path, bad_lines, columns)
                    continue
                chosen = choose_columns(list(kinds), columns, str(path))
                rows: Iterator[tuple[int, Any]] = read_parquet(path, list(chosen.values()))
            else:
                lines = read_table(path, bad_lines, _find_delimiter(path, bad_lines, columns))
                header = [name.strip() for name in next(lines, (1, []))[1]]
                chosen = choose_columns(header, columns, f"{path}:1")
                rows = ((number, dict(zip(header, row, strict=True))) for number, row in lines)
            named = ((n, {k: row[column] for k, column in chosen.items()}) for n, row in rows)
            parsed = convert(named, parse, path, bad_lines)
            with _name_full_disk():
                database.executemany("INSERT INTO turns VALUES (?, ?, ?, ?)", parsed)
        with _name_full_disk():
            found = database.execute(
                "SELECT session, role, text FROM turns ORDER BY session, time, rowid"
            )
            for session, members in itertools.groupby(found, key=lambda row: row[0]):
                yield session, [Utterance(role, text) for _, role, text in members]


def _make_parser() -> Callable[[int, Mapping[str, Any]], tuple[Any, ...]]:
    """Makes a function of a row that returns its session, time, role and text."""
    kinds_of_times: set[str] = set()

    def parse(number: int, row: Mapping[str, Any]) -> tuple[Any, ...]:
        session, role, text = _name(row["session_id"]), _name(row.get("role", "")), row["text"]
        if not session or (not role and "role" in row):
            raise ValueError(f"the {'role' if session else 'id'} is empty")
        if not isinstance(text, str | None):
            raise ValueError(f"expected a text, found {text!r:.40}")
        if "time" not in row:
            return session, None, role, text or ""
        kind, time = parse_time(row["time"])
        if kinds_of_times - {kind}:
            raise ValueError(f"expected {min(kinds_of_times)}, as before, found {row['time']!r}")
        kinds_of_times.add(kind)
        return session, time, role, text or ""

    return parse


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
    for name in dict.fromkeys([*columns, "session_id", "text"]):
        if name not in own or found.count(own[name]) != 1:
            fault = "no" if columns.get(name, name) not in found else "no single"
            raise InputError(
                f"{where}: {fault} column {columns.get(name, name)!r} of turns for {name}; the "
                f"columns are {', '.join(found)[:500] or 'none'}; `columns`={name}:COLUMN names "
                "another"
            )
    return {name: column for name, column in own.items() if found.count(column) == 1}


def _find_delimiter(path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str]) -> str:
    """The delimiter with which the header has most of the columns, or else most fields."""
    header = ""
    try:
        with open_text(path, bad_lines.encoding) as file:
            while (line := file.readline(_LONGEST_HEADER)) and not header:
                header = line.strip()
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    wanted = {columns.get(name, name) for name in NAMES}

    def rate(delimiter: str) -> tuple[int, int]:
        fields = [field.strip() for field in next(csv.reader([header], delimiter=delimiter), [])]
        return len(wanted.intersection(fields)), len(fields)

    return max(_DELIMITERS, key=rate)


def _name(value: Any) -> str:
    """An id or a role as a text. A whole number may be written with .0, as pandas does."""
    name = "" if value is None or value != value else str(value).strip()
    plain = name.removesuffix(".0")
    return plain if plain.isdecimal() else name


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


@contextlib.contextmanager
def _name_full_disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise InputError(
            f"sorting the rows of `input`: {error}; TMPDIR names the folder of the temporary file"
        ) from error
