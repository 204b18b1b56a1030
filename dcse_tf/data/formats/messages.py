"""Dialogues that are lists of messages, as chat models and data sets of dialogues write them.

A dialogue is an object with a list of messages:

    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}

or a list alone. The file has a dialogue a line, or is one JSON array of them, or is Parquet with a
dialogue a row. A list of texts has no roles; nor has a line of text with "__eou__" after each turn.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import parquet
from dcse_tf.data.formats.jsonl import parse_labels
from dcse_tf.data.formats.reading import get_field, read_elements, read_json_lines
from dcse_tf.errors import InputError
from dcse_tf.input_files import UNREADABLE, BadLines, open_text, parse_json, read_lines

# The names of `columns`, with those that are looked for, in this order, if it does not say.
KEYS = {
    "session_id": ("session_id", "id", "conversation_id", "dialogue_id", "dialog_id"),
    "turns": ("turns", "messages", "conversations", "conversation", "dialog", "dialogue"),
    "role": ("role", "from", "speaker", "sender"),
    "text": ("text", "content", "value", "utterance"),
    "intents": ("intents",),
    "acts": ("acts",),
}
_AS_THEY_ARE: Mapping[str, str] = MappingProxyType({})
# Roles in which nobody speaks: instructions to a model, and what programs answer to its calls.
_SILENT = {"system", "developer", "tool", "function", "function_call", "observation"}
_TURN_END = "__eou__"
_HEAD = 1 << 20  # bytes
_NO_ROLES = "the turns have no roles; `alternate_roles` gives them to two speakers in turn"


def read_sessions(
    path: pathlib.Path,
    bad_lines: BadLines,
    columns: Mapping[str, str] = _AS_THEY_ARE,
    alternate_roles: bool = False,
) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields each dialogue; one without an id is named by file and line.

    A message without a text, such as a call of a tool, has an empty one; of a list of parts, the
    texts are joined. Messages of systems, developers and tools are left out where two others speak.

    Args:
        path: the file.
        bad_lines: counts unusable dialogues, numbered from 1 if they are not lines.
        columns: a mapping from KEYS to the names in the file, where these are not known.
        alternate_roles: whether to accept turns without roles, which then are "".

    Raises:
        InputError: the file cannot be read, or there are too many bad lines.
    """
    for number, value in _read_values(path, bad_lines, columns):
        try:
            name, turns = _parse(value, columns, alternate_roles)
            "".join([name, *(f"{turn.role}{turn.text}" for turn in turns)]).encode()
        except UnicodeEncodeError as error:
            bad_lines.report(path, number, f"half of a surrogate pair: {error.reason}")
        except ValueError as error:
            bad_lines.report(path, number, str(error))
        else:
            yield name or f"{path.name}-{number}", turns


def _read_values(
    path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str]
) -> Iterator[tuple[int, Any]]:
    if parquet.is_parquet(path):
        yield from _read_parquet(path, bad_lines, columns)
        return
    try:
        with open_text(path, bad_lines.encoding) as file:
            head = file.read(_HEAD).lstrip()
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if head.startswith(b"[") and not _is_line_of_several(head):
        yield from read_elements(path, bad_lines)
    elif not head.startswith((b"[", b"{")) and _TURN_END.encode() in head:
        for number, line in read_lines(path, bad_lines):
            yield number, [text for text in line.split(_TURN_END) if text.strip()]
    else:
        yield from read_json_lines(path, bad_lines, lambda number, value: (number, value))


def _is_line_of_several(head: bytes) -> bool:
    """Whether the first line is a value of its own and others follow it."""
    line, _, rest = head.partition(b"\n")
    try:
        parse_json(line)
    except ValueError:
        return False
    return bool(rest.strip())


def _read_parquet(
    path: pathlib.Path, bad_lines: BadLines, columns: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    schema = parquet.read_schema(path)
    turns = _find_key("turns", columns, schema.names)
    if not turns or not parquet.is_list(schema.field(turns).type):
        found = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise InputError(
            f"{path}: expected a column of lists, {', '.join(KEYS['turns'])} or that of "
            f"`columns`=turns:COLUMN; found {found or 'none'}"
        )
    of_turns = schema.field(turns).type.value_type
    for name, column in columns.items():
        struct = name not in ("session_id", "turns")
        if struct and (
            not hasattr(of_turns, "get_field_index") or of_turns.get_field_index(column) < 0
        ):
            raise InputError(
                f"{path}: `columns`={name}:{column}: the structs in {turns} have no such field"
            )
    wanted = [name for name in (_find_key("session_id", columns, schema.names), turns) if name]
    for number, values in parquet.read_rows(path, wanted, bad_lines):
        yield number, dict(zip(wanted, values, strict=True))


def _find_key(name: str, columns: Mapping[str, str], found: Sequence[str]) -> str:
    """The key for a name: that of `columns`, or the first known one among those found, or ""."""
    known = (columns[name],) if name in columns else KEYS[name]
    return next((key for key in known if key in found), "")


def _parse(
    value: Any, columns: Mapping[str, str], alternate_roles: bool
) -> tuple[str, list[Utterance]]:
    if isinstance(value, list):
        return "", _parse_messages(value, columns, alternate_roles)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object with a list of messages, found {value!r:.40}")
    turns = _find_key("turns", columns, list(value))
    if not turns and "turns" not in columns:
        raise ValueError(
            f"expected a list of messages under one of {', '.join(KEYS['turns'])}, or "
            f"`columns`=turns:KEY; found only {', '.join(value)[:200] or 'no field'}"
        )
    messages = get_field(value, turns or columns["turns"], list)
    key = _find_key("session_id", columns, list(value))
    name = value.get(key)
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        if "session_id" in columns:
            raise ValueError(f'expected "{columns["session_id"]}" to be a text, found {name!r:.40}')
        name = ""
    return str(name), _parse_messages(messages, columns, alternate_roles)


def _parse_messages(
    messages: list[Any], columns: Mapping[str, str], alternate_roles: bool
) -> list[Utterance]:
    if messages and all(isinstance(message, str) for message in messages):
        if not alternate_roles:
            raise ValueError(_NO_ROLES)
        return [Utterance("", text) for text in messages]
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(f"message {place}: expected an object, found {message!r:.40}")
    found = list(dict.fromkeys(key for message in messages for key in message))
    keys = {name: _find_key(name, columns, found) for name in KEYS}
    if messages and not keys["text"]:
        expected = columns.get("text") or " or ".join(KEYS["text"])
        raise ValueError(f"no message has {expected}; found {', '.join(found)[:200] or 'no field'}")
    if messages and not keys["role"] and not alternate_roles:
        raise ValueError(f"{_NO_ROLES}; found {', '.join(found)[:200]}")
    turns = []
    for place, message in enumerate(messages):
        role, text = message.get(keys["role"]), _join_parts(message.get(keys["text"]), place)
        if role is None or isinstance(role, list | dict | float):
            if not alternate_roles:
                raise ValueError(f'message {place}: expected "{keys["role"]}", found {role!r:.40}')
            role = ""
        labels = (
            parse_labels(message.get(keys[name]) or [], keys[name], place)
            for name in ("intents", "acts")
        )
        turns.append(Utterance(str(role).strip(), text, *labels))
    if len({turn.role for turn in turns} - _SILENT) > 1:
        return [turn for turn in turns if turn.role not in _SILENT]
    return turns


def _join_parts(content: Any, place: int) -> str:
    """The text of a message, which may be missing, or a list of parts such as texts and images."""
    if content is None:
        return ""
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return " ".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str):
        raise ValueError(
            f"message {place}: expected a text or a list of parts, found {content!r:.40}"
        )
    return content
