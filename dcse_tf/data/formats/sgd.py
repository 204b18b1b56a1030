"""Schema-Guided Dialogue (Rastogi et al. 2020): `dialogues_*.json`, each a list of dialogues."""

import pathlib
from collections.abc import Iterator
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import get_field, read_elements
from dcse_tf.input_files import BadLines

_STATES_INTENT = "INFORM_INTENT"


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields a session for each dialogue, with user and system as roles.

    The intents of a turn are those that it states with the act INFORM_INTENT. "active_intent",
    which persists until another intent is stated, is not used: it would label "yes, that's right"
    too. Acts are written with their slots, such as "REQUEST:time"; an act without a slot ends with
    the colon. A dialogue of another form is reported by its number.

    Raises:
        InputError: the file is not one JSON array.
    """
    for number, dialogue in read_elements(path, bad_lines):
        try:
            session_id = get_field(dialogue, "dialogue_id", str)
            if not session_id:
                raise ValueError('expected "dialogue_id", found an empty text')
            turns = [_parse(turn) for turn in get_field(dialogue, "turns", list)]
        except ValueError as error:
            bad_lines.report(path, number, f"dialogue {number}: {error}")
            continue
        yield session_id, turns


def _parse(turn: dict[str, Any]) -> Utterance:
    role, text = (get_field(turn, name, str) for name in ("speaker", "utterance"))
    intents: dict[str, None] = {}
    acts: dict[str, None] = {}
    for frame in get_field(turn, "frames", list, []):
        for action in get_field(frame, "actions", list, []):
            act, slot = get_field(action, "act", str), get_field(action, "slot", str, "")
            acts[f"{act}:{slot}"] = None
            if act == _STATES_INTENT:
                values = get_field(action, "values", list)
                if not all(isinstance(value, str) for value in values):
                    raise ValueError(f'expected "values" to be texts, found {values!r:.40}')
                intents |= dict.fromkeys(values)
    return Utterance(role.lower(), text, tuple(intents), tuple(sorted(acts)))
