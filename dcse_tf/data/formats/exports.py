"""What other systems export: lists of messages, and tables with a turn a row.

A list of messages is a dialogue, as chat models and data sets of dialogues write them:

    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}

or a list alone. The file has a dialogue a line, or is one JSON array of them, or is Parquet with a
dialogue a row. A list of texts has no roles. Tables are CSV with any delimiter, or Parquet, and
their rows may stand in any order.
"""

import contextlib
import datetime
import email.utils
import itertools
import math
import operator
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import (
    Sessions,
    convert,
    get_field,
    is_parquet,
    open_readable,
    read_json_lines,
    read_json_members,
    read_parquet,
    read_table,
)
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines, parse_json

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
    """Yields each dialogue; one without an id is named by file and line.

    A message without a text, such as a call of a tool, has an empty one; of a list of parts, the
    texts are joined. Messages of systems, developers and tools are left out where two others speak.
    Turns without roles have "". `columns` maps KEYS to the names in the file, where these are not
    known.
    """

    def parse(number: int, value: Any) -> tuple[str, list[Utterance]]:
        name, turns = parse_dialogue(value, columns or {})
        if len({turn.role for turn in turns} - _SILENT) > 1:
            turns = [turn for turn in turns if turn.role not in _SILENT]
        return name or f"{path.name}-{number}", turns

    if is_parquet(path):
        rows = read_parquet(path, lambda names: dict(zip(names, names)))
        return convert(rows, parse, path, bad_lines)
    if _is_array(_read_head(path, bad_lines)):
        return read_json_members(path, bad_lines, list, parse)
    return read_json_lines(path, bad_lines, parse)


def _read_head(path: pathlib.Path, bad_lines: BadLines) -> str:
    """How a file begins, without blank lines before."""
    with open_readable(path, bad_lines) as file:
        return file.read(_HEAD).lstrip()


def _is_array(head: str) -> bool:
    """Whether a file that begins so is one JSON array, and not one with an array a line."""
    line, _, rest = head.partition("\n")
    try:
        return line.startswith("[") and not (parse_json(line) and rest.strip())
    except ValueError:  # the array goes on
        return True


def read_jsonl(path: pathlib.Path, bad_lines: BadLines) -> Sessions:
    """Yields the session of each line, in the form that `prepare_data` writes."""
    return read_json_lines(path, bad_lines, lambda number, value: parse_dialogue(value, _OWN))


def parse_dialogue(value: Any, columns: Mapping[str, str] = _OWN) -> tuple[str, list[Utterance]]:
    """Converts a JSON value to a session, or raises ValueError, which says why it is none.

    Args:
        value: an object with a list of messages; or a list alone, whose session has the id "".
        columns: a mapping from KEYS to the names in the value; other names are looked for. By
            default, all names of the project's own form, which `Session.to_dict` writes.
    """

    def find_key(name: str, found: Any) -> str:
        known = (columns[name],) if name in columns else KEYS[name]
        return next((key for key in known if isinstance(found, Mapping) and key in found), "")

    name, messages = "", value
    if not isinstance(value, list):
        messages = get_field(value, find_key("turns", value) or " or ".join(KEYS["turns"]), list)
        name = value.get(find_key("session_id", value))
        if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
            if wanted := columns.get("session_id"):
                raise ValueError(f'expected "{wanted}" to be a text, found {name!r:.40}')
            name = ""
    if messages and all(isinstance(message, str) for message in messages):
        return str(name), [Utterance("", text) for text in messages]
    found = dict.fromkeys(key for m in messages if isinstance(m, dict) for key in m)
    keys = {name: find_key(name, found) for name in KEYS}
    if messages and not keys["text"]:
        expected = columns.get("text") or " or ".join(KEYS["text"])
        raise ValueError(f"no message has {expected}; found {', '.join(found)[:200] or 'no field'}")
    turns = []
    for place, message in enumerate(messages):
        try:
            turns.append(_parse_message(message, keys))
        except ValueError as error:
            raise ValueError(f"turn {place}: {error}") from error
    return str(name), turns


def _parse_message(message: Any, keys: Mapping[str, str]) -> Utterance:
    if not isinstance(message, dict):
        raise ValueError(f"expected an object, found {message!r:.40}")
    role = message.get(keys["role"], "")
    if isinstance(role, list | dict | float | None):
        raise ValueError(f'expected "{keys["role"]}" to be a text, found {role!r:.40}')
    text = message.get(keys["text"])
    if isinstance(text, list):  # of parts, such as texts and images
        parts = (part.get("text") if isinstance(part, dict) else part for part in text)
        text = " ".join(part for part in parts if isinstance(part, str))
    if not isinstance(text, str | None):
        raise ValueError(f"expected a text or a list of parts, found {text!r:.40}")
    labels = [message.get(keys[name]) or [] for name in ("intents", "acts")]
    if not all(isinstance(own, list) and all(isinstance(x, str) for x in own) for own in labels):
        raise ValueError('expected "intents" and "acts" to be lists of texts')
    return Utterance(str(role).strip(), text or "", *map(tuple, labels))


# Tables

_DELIMITERS = (",", ";", "\t", "|")
# The names of `columns`; a column of that name needs none.
NAMES = ("session_id", "role", "text", "time")


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
        rows = _read_rows(path, bad_lines, columns or {})
        found += convert(rows, parse, path, bad_lines)
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
    lines = read_table(path, bad_lines, max(_DELIMITERS, key=rate))
    names = [name.strip() for name in next(lines, (1, []))[1]]
    chosen = choose_columns(names, columns, f"{path}:1")
    places = {name: names.index(column) for name, column in chosen.items()}
    for number, row in lines:
        yield number, {name: row[place] for name, place in places.items()}


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
