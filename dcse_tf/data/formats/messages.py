"""Dialogues that are lists of messages, as chat models and data sets of dialogues write them.

A dialogue is an object with a list of messages:

    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}

or a list alone. The file has a dialogue a line, or is one JSON array of them, or is Parquet with a
dialogue a row. A list of texts has no roles.
"""

import contextlib
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import convert, get_field, read_json_lines, read_members
from dcse_tf.errors import InputError, require
from dcse_tf.input_files import UNREADABLE, BadLines, open_text, parse_json

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# The names of `columns`, with those that are looked for, in this order, if it does not say.
KEYS = {
    "session_id": ("session_id", "id", "conversation_id", "dialogue_id", "dialog_id"),
    "turns": ("turns", "messages", "conversations", "conversation", "dialog", "dialogue"),
    "role": ("role", "from", "speaker", "sender"),
    "text": ("text", "content", "value", "utterance"),
    "intents": ("intents",),
    "acts": ("acts",),
}
AS_THEY_ARE: Mapping[str, str] = MappingProxyType({})
# The project's own form, in which no other name is known.
_OWN = {name: name for name in KEYS}
# Roles in which nobody speaks: instructions to a model, and what programs answer to its calls.
_SILENT = {"system", "developer", "tool", "function", "function_call", "observation"}
_HEAD = 1 << 20  # characters
_ROWS = 1024  # of Parquet, read at a time
_BUFFER = 1 << 20  # bytes of a column read at a time; without it, its whole row group is read


def read_messages(
    path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str] = AS_THEY_ARE
) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields each dialogue; one without an id is named by file and line.

    A message without a text, such as a call of a tool, has an empty one; of a list of parts, the
    texts are joined. Messages of systems, developers and tools are left out where two others speak.
    Turns without roles have "".

    Args:
        path: the file.
        bad_lines: counts unusable dialogues, numbered from 1 if they are not lines.
        columns: a mapping from KEYS to the names in the file, where these are not known.

    Raises:
        InputError: the file cannot be read, or there are too many bad lines.
    """

    def parse(number: int, value: Any) -> tuple[str, list[Utterance]]:
        name, turns = parse_dialogue(value, columns)
        if len({turn.role for turn in turns} - _SILENT) > 1:
            turns = [turn for turn in turns if turn.role not in _SILENT]
        return name or f"{path.name}-{number}", turns

    if is_parquet(path):
        return convert(read_parquet(path), parse, path, bad_lines)
    try:
        with open_text(path, bad_lines.encoding) as file:
            head = file.read(_HEAD).lstrip()
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if head.startswith("[") and not _is_line_of_several(head):
        elements = read_members(path, bad_lines, array=True)
        values: Iterable[tuple[int, Any]] = ((number, value) for number, (_, value) in elements)
        return convert(values, parse, path, bad_lines)
    return read_json_lines(path, bad_lines, parse)


def _is_line_of_several(head: str) -> bool:
    """Whether the first line is a value of its own and others follow it."""
    line, _, rest = head.partition("\n")
    try:
        parse_json(line)
    except ValueError:
        return False
    return bool(rest.strip())


def read_jsonl(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields the session of each line, in the form that `prepare_data` writes."""
    return read_json_lines(path, bad_lines, lambda number, value: parse_dialogue(value, _OWN))


def parse_dialogue(value: Any, columns: Mapping[str, str] = _OWN) -> tuple[str, list[Utterance]]:
    """Converts a JSON value to a session.

    Args:
        value: an object with a list of messages; or a list alone, whose session has the id "".
        columns: a mapping from KEYS to the names in the value; other names are looked for. By
            default, all names of the project's own form, which `session_to_dict` writes.

    Raises:
        ValueError: the value is not a session; the message says why.
    """
    name, messages = "", value
    if not isinstance(value, list):
        key = _find_key("turns", columns, value)
        messages = get_field(value, key or " or ".join(KEYS["turns"]), list)
        name = value.get(_find_key("session_id", columns, value))
        if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
            if "session_id" in columns:
                raise ValueError(
                    f'expected "{columns["session_id"]}" to be a text, found {name!r:.40}'
                )
            name = ""
    if messages and all(isinstance(message, str) for message in messages):
        return str(name), [Utterance("", text) for text in messages]
    found = dict.fromkeys(key for m in messages if isinstance(m, dict) for key in m)
    keys = {name: _find_key(name, columns, found) for name in KEYS}
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


def _find_key(name: str, columns: Mapping[str, str], found: Any) -> str:
    """The key for a name: that of `columns`, or the first known one among those found, or ""."""
    known = (columns[name],) if name in columns else KEYS[name]
    return next((key for key in known if isinstance(found, Mapping) and key in found), "")


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


# Parquet


def is_parquet(path: pathlib.Path) -> bool:
    """Whether a file is Parquet, or by its name should be."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1" or path.suffix == ".parquet"
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


@contextlib.contextmanager
def open_parquet(path: pathlib.Path) -> Iterator["pq.ParquetFile"]:
    """Opens a Parquet file; its `schema_arrow` has the names and types of its columns.

    Raises:
        InputError: pyarrow is not installed; or, also while the file is read, it is not Parquet.
    """
    pyarrow = require("pyarrow", "parquet", f"reading {path}")
    parquet = require("pyarrow.parquet", "parquet", f"reading {path}")
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as Parquet: {reason}") from error


def read_parquet(
    path: pathlib.Path, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, values by column) for each row; times become microseconds.

    Args:
        path: the file.
        columns: the columns to read; None for all.

    Raises:
        InputError: as `open_parquet`.
    """
    number = 0
    with open_parquet(path) as file:
        import pyarrow as pa

        for batch in file.iter_batches(_ROWS, columns=columns, use_threads=False):
            fields = {
                name: column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
                if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
                else column
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
            for row in zip(*(column.to_pylist() for column in fields.values()), strict=True):
                number += 1
                yield number, dict(zip(fields, row, strict=True))
