"""Parquet with a session per row, or with a turn per row; the schema decides which.

Rows that are sessions have the columns session_id and turns, a list of structs with the fields of a
jsonl turn. Rows that are turns have session_id, role and text; the rows of a session stand together
and in order.
"""

import pathlib
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import jsonl
from dcse_tf.data.formats.reading import group_rows
from dcse_tf.errors import InputError, require
from dcse_tf.input_files import BadLines

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = ("session_id", "turns", "role", "text", "intents", "acts")
_AS_THEY_ARE: Mapping[str, str] = MappingProxyType({})
_ROWS = 1024  # read at a time
_BUFFER = 1 << 20  # bytes of a column read at a time; without it, its whole row group is read


def read_sessions(
    path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str] = _AS_THEY_ARE
) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields each session when its last row is read; a row with a null is bad.

    Args:
        path: the file.
        bad_lines: counts unusable rows; they are numbered from 1.
        columns: a mapping from NAMES to the file's column names, where these differ.

    Raises:
        InputError: the file is not Parquet or lacks the columns, or pyarrow is not installed.
    """
    pyarrow = require("pyarrow", "parquet", "`format`=parquet")
    parquet = require("pyarrow.parquet", "parquet", "`format`=parquet")
    names = {name: columns.get(name, name) for name in NAMES}
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
            if has_session_rows(file.schema_arrow, columns, str(path)):
                rows = _read_rows(file, [names["session_id"], names["turns"]], path, bad_lines)
                yield from _parse_sessions(rows, names, path, bad_lines)
            else:
                wanted = [names["session_id"], names["role"], names["text"]]
                rows = _read_rows(file, wanted, path, bad_lines)
                yield from group_rows(_parse_turns(rows, path, bad_lines), path, bad_lines)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as Parquet: {reason}") from error


def has_session_rows(schema: "pa.Schema", columns: Mapping[str, str], where: str) -> bool:
    """Whether the rows of a table are sessions; otherwise they are turns.

    Args:
        schema: the schema of the table.
        columns: see `read_sessions`.
        where: names the table in the error message.

    Raises:
        InputError: the table has the columns of neither, or a name in `columns` is not read.
    """
    session_id, turns, role, text, *_ = (columns.get(name, name) for name in NAMES)
    kinds = {name: schema.field(name).type for name in schema.names if schema.names.count(name) < 2}
    if _is_id(kinds.get(session_id)):
        if _is_list_with(kinds.get(turns), role, text):
            fields = kinds[turns].value_type
            read = [name for name in NAMES if fields.get_field_index(columns.get(name, name)) >= 0]
            reason = f"the structs in {turns} have no such field"
            _refuse_unread(columns, ("session_id", "turns", *read), where, reason)
            return True
        if _is_text(kinds.get(role)) and _is_text(kinds.get(text)):
            reason = "a row is a turn, of which only session_id, role and text are read"
            _refuse_unread(columns, ("session_id", "role", "text"), where, reason)
            return False
    found = ", ".join(f"{field.name} ({field.type})" for field in schema)
    raise InputError(
        f"{where}: expected the columns {session_id} (text or integer), {role} and {text} (texts), "
        f"or {session_id} and {turns} (a list of structs with {role} and {text}), under these "
        f"names or those of `columns`; found {found or 'none'}"
    )


def _refuse_unread(
    columns: Mapping[str, str], read: Collection[str], where: str, reason: str
) -> None:
    """Refuses a name in `columns` that would be ignored, except "order", which Spark sorts by."""
    for name, column in columns.items():
        if name not in (*read, "order"):
            raise InputError(f"{where}: `columns`={name}:{column}: {reason}")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if kind is not None and types.is_dictionary(kind):
        kind = kind.value_type
    return kind is not None and (
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    )


def _is_id(kind: Any) -> bool:
    from pyarrow import types

    return _is_text(kind) or (kind is not None and types.is_integer(kind))


def _is_list_with(kind: Any, *fields: str) -> bool:
    from pyarrow import types

    if kind is None or not (types.is_list(kind) or types.is_large_list(kind)):
        return False
    turn = kind.value_type
    return types.is_struct(turn) and all(
        turn.get_field_index(name) >= 0 and _is_text(turn.field(name).type) for name in fields
    )


def _read_rows(
    file: Any, wanted: list[str], path: pathlib.Path, bad_lines: BadLines
) -> Iterator[tuple[int, tuple]]:
    """Yields (row number from 1, the row's values)."""
    number = 0
    for batch in file.iter_batches(_ROWS, columns=wanted, use_threads=False):
        for values in _decode(batch, wanted):
            number += 1
            if values is None:
                bad_lines.report(path, number, "not UTF-8")
            else:
                yield number, values


def _decode(batch: Any, wanted: list[str]) -> Iterator[tuple | None]:
    """Yields the values of each row, None for one that is not UTF-8."""
    try:
        columns = [batch.column(name).to_pylist() for name in wanted]
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            yield None
        else:
            for place in range(batch.num_rows):
                yield from _decode(batch.slice(place, 1), wanted)
    else:
        yield from zip(*columns, strict=True)


def _parse_sessions(
    rows: Iterator[tuple[int, tuple]],
    names: Mapping[str, str],
    path: pathlib.Path,
    bad_lines: BadLines,
) -> Iterator[tuple[str, list[Utterance]]]:
    fields = {name: names[name] for name in ("role", "text", "intents", "acts")}
    for number, (session_id, turns) in rows:
        # Fields that jsonl would leave out are null in Parquet.
        parsed = turns and [
            turn and {name: turn[own] for name, own in fields.items() if turn.get(own) is not None}
            for turn in turns
        ]
        try:
            yield jsonl.parse_session({"session_id": session_id, "turns": parsed})
        except ValueError as error:
            bad_lines.report(path, number, str(error))


def _parse_turns(
    rows: Iterator[tuple[int, tuple]], path: pathlib.Path, bad_lines: BadLines
) -> Iterator[tuple[int, str, Utterance]]:
    for number, (session_id, role, text) in rows:
        if session_id is None or session_id == "":
            bad_lines.report(path, number, "the session's id is null or empty")
        elif role is None or text is None:
            what = "role" if role is None else "text"
            bad_lines.report(path, number, f"session {str(session_id)!r}: the {what} is null")
        else:
            yield number, str(session_id), Utterance(role, text)
