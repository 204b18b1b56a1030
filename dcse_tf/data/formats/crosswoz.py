"""CrossWOZ (Zhu et al. 2020): `{train,val,test}.json[.zip]`, one JSON object of dialogues."""

import pathlib
from collections.abc import Iterator
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import read_members
from dcse_tf.input_files import BadLines

_ROLES = {"usr": "user", "sys": "system"}


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields a session for each dialogue, with user and system as roles.

    An intent is a dialogue act with its domain ("Request-酒店"); slots and values are left out. A
    dialogue of another form is reported by its number.

    Raises:
        InputError: the file is not one JSON object.
    """
    for number, session_id, dialogue in read_members(path):
        try:
            turns = [_parse(message) for message in dialogue["messages"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            bad_lines.report(path, number, f"dialogue {session_id}: unexpected form: {error!r}")
            continue
        yield session_id, turns


def _parse(message: dict[str, Any]) -> Utterance:
    role, text = message["role"], message["content"]
    if role not in _ROLES or not isinstance(text, str):
        raise ValueError("role must be usr or sys, content a text")
    intents = dict.fromkeys(_parse_act(act) for act in message["dialog_act"])
    return Utterance(_ROLES[role], text, tuple(intents))


def _parse_act(act: Any) -> str:
    if not isinstance(act, list) or len(act) < 2 or not all(isinstance(a, str) for a in act[:2]):
        raise ValueError("expected an act, its domain, slot and value, as a list of texts")
    return f"{act[0]}-{act[1]}"
