"""CrossWOZ (Zhu et al. 2020): `{train,val,test}.json[.zip]`, one JSON object of dialogues."""

import pathlib
from collections.abc import Iterator
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import get_field, read_members
from dcse_tf.input_files import BadLines

_ROLES = {"usr": "user", "sys": "system"}


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields a session for each dialogue, with user and system as roles.

    An intent is a dialogue act with its domain ("Request-酒店"); slots and values are left out. A
    dialogue of another form is reported by its number.

    Raises:
        InputError: the file is not one JSON object.
    """
    for number, session_id, dialogue in read_members(path, bad_lines):
        try:
            turns = [_parse(message) for message in get_field(dialogue, "messages", list)]
        except ValueError as error:
            bad_lines.report(path, number, f"dialogue {session_id}: {error}")
            continue
        yield session_id, turns


def _parse(message: dict[str, Any]) -> Utterance:
    role, text = (get_field(message, name, str) for name in ("role", "content"))
    if role not in _ROLES:
        raise ValueError(f'expected "role" to be usr or sys, found {role[:20]!r}')
    intents = dict.fromkeys(_parse_act(act) for act in get_field(message, "dialog_act", list))
    return Utterance(_ROLES[role], text, tuple(intents))


def _parse_act(act: Any) -> str:
    if not isinstance(act, list) or len(act) < 2 or not all(isinstance(a, str) for a in act[:2]):
        raise ValueError("expected an act, its domain, slot and value, as a list of texts")
    return f"{act[0]}-{act[1]}"
