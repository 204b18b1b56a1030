"""Schema-Guided Dialogue (Rastogi et al. 2020): `dialogues_*.json`, a list of dialogues each."""

import pathlib
from collections.abc import Iterator
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import read_elements
from dcse_tf.input_files import BadLines

_NO_INTENT = "NONE"


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields a session a dialogue, with user and system as roles.

    The intents of a user's turn are the active intents of its frames; the system's turns have none.
    A dialogue of another form is reported with its number.

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
    states = (frame.get("state") for frame in turn.get("frames", ()))
    intents = dict.fromkeys(state["active_intent"] for state in states if state)
    intents.pop(_NO_INTENT, None)
    if not all(isinstance(intent, str) for intent in intents):
        raise TypeError("active_intent must be a text")
    return Utterance(role.lower(), text, tuple(intents))
