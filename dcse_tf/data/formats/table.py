"""Tables with a turn a row: CSV with any delimiter, or Parquet. Rows may stand in any order."""

import contextlib
import datetime
import email.utils
import itertools
import math
import operator
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import Sessions, convert, is_parquet, read_parquet, read_table
from dcse_tf.errors import InputError
from dcse_tf.input_files import UNREADABLE, BadLines, open_text

_DELIMITERS = (",", ";", "\t", "|")
# The names of `columns`; a column of that name needs none.
NAMES = ("session_id", "role", "text", "time")
_LONGEST_HEADER = 1 << 20  # characters

Row = tuple[str, int | float, str, str]  # session, time, role, text


def read_tables(
    paths: Sequence[pathlib.Path], bad_lines: BadLines, columns: Mapping[str, str] | None = None
) -> Sessions:
    """Yields the dialogues of all files together, once all rows are read, sorted by id.

    The rows of a dialogue are sorted by time, and rows of equal time stay in the order of the
    files; until then they are in memory. Without a column of roles, these are "". Bad lines are
    rows with another number of fields than the header, without a session or a role, or with a time
    that cannot be compared to the others. `columns` maps NAMES to the files' column names, where
    these differ.

    Raises:
        InputError: a file cannot be read or lacks a column, or there are too many bad lines.
    """
    parse, found = _make_parser(), list[Row]()
    for path in paths:
        rows = _read_rows(path, bad_lines, columns or {})
        found += convert(rows, parse, path, bad_lines)
    found.sort(key=operator.itemgetter(0, 1))
    for session, members in itertools.groupby(found, key=operator.itemgetter(0)):
        yield session, [Utterance(role, text) for _, _, role, text in members]


def _read_rows(
    path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line or row number, values by those of NAMES that there are)."""
    chosen: dict[str, str] = {}

    def choose(header: list[str], where: str = str(path)) -> list[str]:
        chosen.update(choose_columns(header, columns, where))
        return list(chosen.values())

    if is_parquet(path):
        rows = read_parquet(path, choose)
    else:
        lines = read_table(path, bad_lines, _find_delimiter(path, bad_lines, columns))
        header = [name.strip() for name in next(lines, (1, []))[1]]
        choose(header, f"{path}:1")
        rows = ((number, dict(zip(header, row, strict=True))) for number, row in lines)
    for number, row in rows:
        yield number, {name: row[column] for name, column in chosen.items()}


def _make_parser() -> Callable[[int, Mapping[str, Any]], Row]:
    """Makes a function of a row that returns its session, time, role and text."""
    kinds_of_times: set[str] = set()

    def parse(number: int, row: Mapping[str, Any]) -> Row:
        session, role, text = _name(row["session_id"]), _name(row.get("role", "")), row["text"]
        if not session or (not role and "role" in row):
            raise ValueError(f"the {'role' if session else 'id'} is empty")
        if not isinstance(text, str | None):
            raise ValueError(f"expected a text, found {text!r:.40}")
        if "time" not in row:
            return session, 0, role, text or ""
        kind, time = parse_time(row["time"])
        if kinds_of_times - {kind}:
            raise ValueError(f"expected {min(kinds_of_times)}, as before, found {row['time']!r}")
        kinds_of_times.add(kind)
        return session, time, role, text or ""

    return parse


def choose_columns(found: Sequence[str], columns: Mapping[str, str], where: str) -> dict[str, str]:
    """Finds those of a table's columns that have turns: a dict from those of NAMES that are used to
    them.

    Raises:
        InputError: a column is missing, or there twice; `where` names the table in the message.
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
        fields = [field.strip(' "') for field in header.split(delimiter)]
        return len(wanted.intersection(fields)), len(fields)

    return max(_DELIMITERS, key=rate)


def _name(value: Any) -> str:
    """An id or a role as a text. A whole number may be written with .0, as pandas does."""
    name = "" if value is None or value != value else str(value).strip()
    plain = name.removesuffix(".0")
    return plain if plain.isdecimal() else name


def parse_time(value: object) -> tuple[str, int | float]:
    """Reads a number or a time: ISO 8601, that of mails (RFC 5322) or that of Twitter.

    Returns what it is, in words, as only values of one kind can be compared; and the number, or the
    seconds since 1970. Raises ValueError if it is neither.
    """
    text = "" if value is None else str(value).strip()
    with contextlib.suppress(ValueError):
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
        if math.isfinite(number):
            return "a number", number
    when = None
    for read in (datetime.datetime.fromisoformat, email.utils.parsedate_to_datetime):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            when = when or read(text.replace(" UTC", "+00:00"))
    if when is None:
        raise ValueError(
            f"expected a number or a time such as 2017-10-31 22:10:47, found {text[:40]!r}"
        )
    if when.tzinfo is None:
        return "a time without its zone", when.replace(tzinfo=datetime.UTC).timestamp()
    return "a time with its zone", when.timestamp()
