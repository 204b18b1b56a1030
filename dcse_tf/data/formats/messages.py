"""Dialogues that are lists of messages, as chat models and data sets of dialogues write them.

A dialogue is an object with a list of messages:

    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}

or a list alone. The file has a dialogue a line, or is one JSON array of them, or is Parquet with a
dialogue a row. A list of texts has no roles.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import (
    Sessions,
    convert,
    get_field,
    is_parquet,
    read_json_lines,
    read_json_value,
    read_parquet,
)
from dcse_tf.errors import InputError
from dcse_tf.input_files import UNREADABLE, BadLines, open_text, parse_json

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
        return convert(read_parquet(path), parse, path, bad_lines)
    if _is_array(path, bad_lines):
        values = read_json_value(path, bad_lines, list)
        return convert(enumerate(values, start=1), parse, path, bad_lines)
    return read_json_lines(path, bad_lines, parse)


def _is_array(path: pathlib.Path, bad_lines: BadLines) -> bool:
    """Whether a file is one JSON array, and not one with an array a line."""
    try:
        with open_text(path, bad_lines.encoding) as file:
            line, _, rest = file.read(_HEAD).lstrip().partition("\n")
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
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
