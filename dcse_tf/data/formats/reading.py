"""What readers share, and those of general exports: lists of messages, tables with a turn a row."""

import contextlib
import csv
import datetime
import functools
import io
import itertools
import math
import operator
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from dcse_tf.data.dialogue import GivenCandidates, Utterance
from dcse_tf.errors import InputError, name_input, require
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
Sessions = Iterator[tuple[str, list[Utterance]]]

_LONGEST_FIELD = 64 << 20  # characters, of a field and of a line of it
csv.field_size_limit(_LONGEST_FIELD)  # Python's own limit is 128 KiB, less than some e-mails


def convert(
    values: Iterable[tuple[int, T]],
    parse: Callable[[int, T], R],
    path: pathlib.Path,
    bad_lines: BadLines,
) -> Iterator[R]:
    """Yields `parse(number, value)` of each; if it raises ValueError, which says why, the line is
    bad.
    """
    for number, value in values:
        try:
            result = parse(number, value)
        except (ValueError, RecursionError) as error:
            bad_lines.report(path, number, str(error))
        else:
            yield result


def read_json_lines(
    path: pathlib.Path, bad_lines: BadLines, parse: Callable[[int, Any], R]
) -> Iterator[R]:
    """`convert` for the JSON values of a file with one a line."""
    lines = read_lines(path, bad_lines)
    return convert(lines, lambda number, line: parse(number, parse_json(line)), path, bad_lines)


def read_json_members(
    path: pathlib.Path, bad_lines: BadLines, kind: Any, parse: Callable[[int, Any], R]
) -> Iterator[R]:
    """`convert` for the elements of a file that is one JSON array (kind list), or the items of one
    that is an object (dict); another file raises InputError.
    """
    problem = f"{path}: expected one JSON {'array' if kind is list else 'object'}"
    with name_input(problem, ValueError, *UNREADABLE):
        with open_text(path, bad_lines.encoding) as file:
            text = file.read()
        if not is_encodable(text):
            raise ValueError(bad_lines.not_encoded)
        value: Any = parse_json(text)
        if not isinstance(value, kind):
            raise ValueError(f"found {text[:20]!r}")
    members = value.items() if kind is dict else value
    return convert(enumerate(members, start=1), parse, path, bad_lines)


def get_field(value: Any, name: str, kind: type[T], *default: T) -> T:
    """A field of a JSON object, of the kind str or list, or the default if there is none;
    ValueError if the value is no object, or its field is missing or of another kind.
    """
    if not isinstance(value, dict):
        raise ValueError(f'expected an object with "{name}", found {value!r:.40}')
    if name not in value and default:
        return default[0]
    if not isinstance(found := value.get(name), kind):
        wanted = "a text" if kind is str else "a list"
        instead = repr(found)[:40] if name in value else f"only {', '.join(value) or 'no field'}"
        raise ValueError(f'expected "{name}" to be {wanted}, found {instead:.200}')
    return found


@contextlib.contextmanager
def open_readable(path: pathlib.Path, bad_lines: BadLines) -> Iterator[io.TextIOWrapper]:
    """`open_text`, where all that opening and reading raise is InputError."""
    readable = name_input(f"{path}: cannot be read", *UNREADABLE)
    with readable, open_text(path, bad_lines.encoding) as file:
        yield file


def read_table(
    path: pathlib.Path, bad_lines: BadLines, delimiter: str = ",", quoted: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yields (line where the row ends, its fields) for each row that is not empty; InputError if
    the first cannot be parsed.

    Rows with more or fewer fields than the first are bad lines. Quoted fields may hold delimiters
    and line ends, as in CSV; with `quoted` false they may not, as in most TSV files, and quotes
    around a whole field are removed.
    """
    width = 0
    with open_readable(path, bad_lines) as file:
        lines = iter(functools.partial(file.readline, _LONGEST_FIELD), "")
        quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        rows = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
        while True:
            row, problem, begin = [""], "", rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                problem = f"not a table: {error}, in the row that begins in line {begin}"
            if not is_encodable("".join(row)):
                problem = bad_lines.not_encoded
            elif not problem and width and len(row) not in (0, width):
                problem = f"expected {width} field(s), found {len(row)}"
            # The next row is no header, or a quote was not closed and has taken the rows after it.
            if problem and (not width or "end of data" in problem or "field limit" in problem):
                raise InputError(f"{path}:{rows.line_num}: {problem}")
            if problem:
                bad_lines.report(path, rows.line_num, problem)
            elif row:
                width = len(row)
                yield rows.line_num, row if quoted else list(map(unquote, row))


def unquote(field: str) -> str:
    """Removes quotes around a whole field, as programs that write CSV put them."""
    stripped = field.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] == '"':
        inside = stripped[1:-1].replace('""', "\0")
        if '"' not in inside:  # otherwise the outer quotes belong to two separate quotations
            return inside.replace("\0", '"').strip()
    return field


_ROWS = 1024  # read at a time
_BUFFER = 1 << 20  # bytes of a column read at a time; without it, its whole row group is read


def is_parquet(path: pathlib.Path) -> bool:
    """Whether a file is Parquet, or by its name should be."""
    with name_input(f"{path}: cannot be read", OSError), path.open("rb") as file:
        return file.read(4) == b"PAR1" or path.suffix == ".parquet"


def read_parquet(
    path: pathlib.Path, choose: Callable[[list[str]], Mapping[str, str]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, values by name) for each row; times become microseconds. `choose` maps
    the names of values to the columns to read, of all columns.
    """
    pa = require("pyarrow", "parquet", f"reading {path}")
    parquet = require("pyarrow.parquet", "parquet", f"reading {path}")
    wrong = pa.ArrowException, OSError, ValueError, OverflowError, KeyError
    number = 0
    with (
        name_input(f"{path}: cannot be read as Parquet", *wrong),
        parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file,
    ):
        chosen = choose([field.name for field in file.schema_arrow])
        names = list(chosen.values())
        for batch in file.iter_batches(_ROWS, columns=names, use_threads=False):
            columns = [
                column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
                if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
                else column
                for column in map(batch.column, names)
            ]
            for row in pa.RecordBatch.from_arrays(columns, list(chosen)).to_pylist():
                number += 1
                yield number, row


# The names of `columns`, with those that are looked for, in this order, if it does not say.
KEYS = {
    "session_id": ("session_id", "id", "conversation_id", "dialogue_id", "dialog_id"),
    "turns": ("turns", "messages", "conversations", "conversation", "dialog", "dialogue"),
    "role": ("role", "from", "speaker", "sender"),
    "text": ("text", "content", "value", "utterance"),
    "intents": ("intents",),
    "acts": ("acts",),
}
# The project's own form, in which no other name is known.
_OWN = {name: name for name in KEYS}
# Roles in which nobody speaks: instructions to a model, and what programs answer to its calls.
_SILENT = {"system", "developer", "tool", "function", "function_call", "observation"}
_HEAD = 1 << 20  # characters


def read_messages(
    path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str] | None = None
) -> Sessions:
    """{"messages": [{"role", "content"}]} or {"conversations": [{"from", "value"}]} per line, in
    one JSON array or in Parquet; or lists of texts.

    A dialogue without an id is named by file and line. A message without a text, such as a call of
    a tool, has an empty one; of a list of parts, the texts are joined. Messages of systems,
    developers and tools are left out where two others speak. Turns without roles have "".
    `columns` maps KEYS to the names in the file, where these are not known.
    """

    def parse(number: int, value: Any) -> tuple[str, list[Utterance]]:
        name, turns = parse_dialogue(value, columns or {})
        if len({turn.role.casefold() for turn in turns} - _SILENT) > 1:
            turns = [turn for turn in turns if turn.role.casefold() not in _SILENT]
        return name or f"{path.name}-{number}", turns

    if is_parquet(path):
        rows = read_parquet(path, lambda names: dict(zip(names, names)))
        return convert(rows, parse, path, bad_lines)
    line, _, rest = _read_head(path, bad_lines).partition("\n")
    try:  # whether the file is one array, and not one with an array a line
        is_array = line.startswith("[") and (parse_json(line) is None or not rest.strip())
    except ValueError:  # the array goes on
        is_array = True
    if is_array:
        return read_json_members(path, bad_lines, list, parse)
    return read_json_lines(path, bad_lines, parse)


def _read_head(path: pathlib.Path, bad_lines: BadLines) -> str:
    """How a file begins, without blank lines before."""
    with open_readable(path, bad_lines) as file:
        return file.read(_HEAD).lstrip()


def read_jsonl(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple]:
    """{"session_id", "turns": [{"role", "text"}]} per line, a turn may have "intents" and "acts",
    and a piece of a dialogue "dialogue", its id; of grouped candidates {"id", "context",
    "responder", "candidates", "labels"}, as build_candidates writes them.
    """

    def parse(number: int, value: Any) -> tuple:
        session, dialogue = parse_dialogue(value), get_field(value, "dialogue", str, "")
        return (*session, GivenCandidates(dialogue, ())) if dialogue else session

    return read_json_lines(path, bad_lines, parse)


def parse_dialogue(value: Any, columns: Mapping[str, str] = _OWN) -> tuple[str, list[Utterance]]:
    """Converts a JSON value to a session, or raises ValueError, which says why it is none.

    The value is an object with a list of messages; or a list alone, whose session has the id "".
    `columns` maps KEYS to the names in the value; other names are looked for. By default, all are
    those of the project's own form, which `Session.to_dict` writes.
    """
    known = {name: (columns[name],) if name in columns else KEYS[name] for name in KEYS}

    def find_key(name: str, found: Any) -> str:
        return next((key for key in known[name] if isinstance(found, Mapping) and key in found), "")

    name, messages = "", value
    if not isinstance(value, list):
        messages = get_field(value, find_key("turns", value) or " or ".join(known["turns"]), list)
        name = value.get(find_key("session_id", value))
        if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
            if wanted := columns.get("session_id"):
                raise ValueError(f'expected "{wanted}" to be a text, found {name!r:.40}')
            name = ""
    if messages and all(isinstance(message, str) for message in messages):
        return str(name), [Utterance("", text) for text in messages]
    found = dict.fromkeys(key for m in messages if isinstance(m, dict) for key in m)
    # A key that is empty in all messages, such as "text": null, counts only if there is no other.
    filled = dict.fromkeys(key for m in messages if isinstance(m, dict) for key in m if m[key])
    keys = {name: find_key(name, filled) or find_key(name, found) for name in KEYS}
    if messages and not keys["text"]:
        told = f"{' or '.join(known['text'])}; found {', '.join(found)[:200] or 'no field'}"
        raise ValueError(f"no message has {told}")
    turns = []
    for place, message in enumerate(messages):
        try:
            turns.append(_parse_message(message, keys, known["text"]))
            if columns is _OWN and "text" not in message:
                raise ValueError(f'no "text"; found {", ".join(message)[:200]}')
        except ValueError as error:
            raise ValueError(f"turn {place}: {error}") from error
    return str(name), turns


def _parse_message(message: Any, keys: Mapping[str, str], texts: Sequence[str]) -> Utterance:
    """The text is at the first key of `texts` that is not empty."""
    if not isinstance(message, dict):
        raise ValueError(f"expected an object, found {message!r:.40}")
    role = message.get(keys["role"], "")
    if isinstance(role, list | dict | float | None):
        raise ValueError(f'expected "{keys["role"]}" to be a text, found {role!r:.40}')
    text = next((message[key] for key in texts if message.get(key) not in (None, "")), None)
    if isinstance(text, list):  # of parts, such as texts and images
        parts = (part.get("text") if isinstance(part, dict) else part for part in text)
        text = " ".join(part for part in parts if isinstance(part, str))
    if not isinstance(text, str | None):
        raise ValueError(f"expected a text or a list of parts, found {text!r:.40}")
    labels = [message.get(keys[name]) or [] for name in ("intents", "acts")]
    if not all(isinstance(own, list) and all(isinstance(x, str) for x in own) for own in labels):
        raise ValueError('expected "intents" and "acts" to be lists of texts')
    return Utterance(str(role).strip(), text or "", *map(tuple, labels))


# The names of `columns`; a column of that name needs none.
NAMES = ("session_id", "role", "text", "time")


def read_tables(
    paths: Sequence[pathlib.Path], bad_lines: BadLines, columns: Mapping[str, str] | None = None
) -> Sessions:
    """Yields the dialogues of all files together, once all rows are read, sorted by id.

    The rows of a dialogue are sorted by time, and rows of equal time stay in the order of the
    files; until then they are in memory. Without a column of roles, these are "". Bad lines are
    also rows without a session or a role, or with a time that cannot be compared to the others.
    `columns` maps NAMES to the files' column names, where these differ.
    """
    kinds_of_times: set[str] = set()

    def parse(number: int, row: Mapping[str, Any]) -> tuple[str, int | float, Utterance]:
        session, role, text = _name(row["session_id"]), _name(row.get("role", "")), row["text"]
        if not session or (not role and "role" in row):
            raise ValueError(f"the {'role' if session else 'id'} is empty")
        if not isinstance(text, str | None):
            raise ValueError(f"expected a text, found {text!r:.40}")
        if "time" not in row:
            return session, 0, Utterance(role, text or "")
        kind, time = parse_time(row["time"])
        if kinds_of_times - {kind}:
            raise ValueError(f"expected {min(kinds_of_times)}, as before, found {row['time']!r}")
        kinds_of_times.add(kind)
        return session, time, Utterance(role, text or "")

    found: list[tuple[str, int | float, Utterance]] = []
    for path in paths:
        found += convert(_read_rows(path, bad_lines, columns or {}), parse, path, bad_lines)
    found.sort(key=operator.itemgetter(0, 1))
    for session, members in itertools.groupby(found, key=operator.itemgetter(0)):
        yield session, [utterance for *_, utterance in members]


def _read_rows(
    path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line or row number, values by those of NAMES that there are)."""
    if is_parquet(path):
        yield from read_parquet(path, lambda found: choose_columns(found, columns, str(path)))
        return
    header = _read_head(path, bad_lines).partition("\n")[0]
    wanted = {columns.get(name, name) for name in NAMES}

    def rate(delimiter: str) -> tuple[int, int]:
        fields = [field.strip(' "\r') for field in header.split(delimiter)]
        return len(wanted.intersection(fields)), len(fields)

    # The delimiter with which the header has most of the columns, or else most fields.
    lines = read_table(path, bad_lines, max(",;\t|", key=rate))
    names = [name.strip() for name in next(lines, (1, []))[1]]
    chosen = choose_columns(names, columns, f"{path}:1")
    places = {name: names.index(column) for name, column in chosen.items()}
    for number, row in lines:
        yield number, {name: row[place] for name, place in places.items()}


def choose_columns(found: Sequence[str], columns: Mapping[str, str], where: str) -> dict[str, str]:
    """Finds those of a table's columns that have turns, by those of NAMES that are used; InputError
    if one is missing, or there twice, with `where` as the table's name.
    """
    own = {name: columns.get(name, name) for name in NAMES}
    there = [name for name, column in own.items() if column in found]
    for name in dict.fromkeys([*columns, "session_id", "text", *there]):
        if name not in own or found.count(own[name]) != 1:
            column, listed = columns.get(name, name), ", ".join(found)[:500] or "none"
            fault = "no single" if column in found else "no"
            told = f"{where}: {fault} column {column!r} of turns for {name}; the columns are"
            raise InputError(f"{told} {listed}; `columns`={name}:COLUMN names another")
    return {name: own[name] for name in there}


def _name(value: Any) -> str:
    """An id or a role as a text. A whole number may be written with .0, as pandas does."""
    name = "" if value is None or value != value else str(value).strip()
    plain = name.removesuffix(".0")
    return plain if plain.isdecimal() else name


def parse_time(value: object) -> tuple[str, int | float]:
    """Reads a number or a time: ISO 8601, that of mails (RFC 5322) or that of Twitter.

    Returns what it is, in words, as only values of one kind can be compared; and the number, or the
    seconds since 1970.
    """
    text = "" if value is None else str(value).strip()
    with contextlib.suppress(ValueError):
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
        if math.isfinite(number):
            return "a number", number
    when, iso = None, text.replace(" UTC", "+00:00")
    for read, told in ((datetime.datetime.fromisoformat, iso), (parsedate_to_datetime, text)):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            when = when or read(told)
    # The reader of mails passes over what it does not know, so that 1:10 PM would be 1:10.
    if when is None or {"am", "pm"} & {*text.lower().replace(".", "").split()}:
        wanted = "a number or a time such as 2017-10-31 22:10:47"
        raise ValueError(f"expected {wanted}, found {text[:40]!r}")
    if when.tzinfo is None:
        return "a time without its zone", when.replace(tzinfo=datetime.UTC).timestamp()
    return "a time with its zone", when.timestamp()
