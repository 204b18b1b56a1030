"""Schema-Guided Dialogue (Rastogi et al. 2020): `dialogues_*.json`, each a list of dialogues."""

import pathlib
from collections.abc import Iterator
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import read_elements
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
    for number, dialogue in read_elements(path):
        try:
            session_id = dialogue["dialogue_id"]
            if not isinstance(session_id, str) or not session_id:
                raise TypeError("dialogue_id must be a text")
            turns = [_parse(turn) for turn in dialogue["turns"]]
        except (KeyError, TypeError, AttributeError) as error:
            bad_lines.report(path, number, f"dialogue {number}: unexpected form: {error!r}")
            continue
        yield session_id, turns


def _parse(turn: dict[str, Any]) -> Utterance:
    role, text = turn["speaker"], turn["utterance"]
    if not isinstance(role, str) or not isinstance(text, str):
        raise TypeError("speaker and utterance must be texts")
    intents: dict[str, None] = {}
    acts: dict[str, None] = {}
    for frame in turn.get("frames", ()):
        for action in frame.get("actions", ()):
            act, slot = action["act"], action.get("slot", "")
            if not isinstance(act, str) or not isinstance(slot, str):
                raise TypeError("act and slot must be texts")
            acts[f"{act}:{slot}"] = None
            if act == _STATES_INTENT:
                values = action["values"]
                if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
                    raise TypeError("values must be a list of texts")
                intents |= dict.fromkeys(values)
    return Utterance(role.lower(), text, tuple(intents), tuple(sorted(acts)))
