"""JSON Lines: `{"session_id": ..., "turns": [{"role": ..., "text": ...}, ...]}` on each line.

A turn may have "intents" and "acts", lists of labels.
"""

import pathlib
from collections.abc import Iterator

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import read_json_lines
from dcse_tf.input_files import BadLines


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields the session of each line; a line that is not a session is a bad line."""
    return read_json_lines(path, bad_lines, lambda number, value: parse_session(value))


def parse_session(value: object) -> tuple[str, list[Utterance]]:
    """Converts the JSON value of a line to a session.

    Raises:
        ValueError: the value is not a session; the message says why.
    """
    if not isinstance(value, dict) or not isinstance(value.get("turns"), list):
        raise ValueError('expected {"session_id": text, "turns": [...]}')
    session_id = value.get("session_id")
    if isinstance(session_id, bool) or not isinstance(session_id, str | int) or session_id == "":
        raise ValueError('expected "session_id" to be a text')
    str(session_id).encode()  # JSON escapes can spell lone surrogates, which UTF-8 cannot encode
    turns = []
    for index, turn in enumerate(value["turns"]):
        if not isinstance(turn, dict):
            raise ValueError(f'turn {index}: expected {{"role": text, "text": text}}')
        role, text = turn.get("role"), turn.get("text")
        if not isinstance(role, str) or not isinstance(text, str):
            raise ValueError(f'turn {index}: expected "role" and "text" to be texts')
        f"{role}{text}".encode()
        labels = (parse_labels(turn.get(name, []), name, index) for name in ("intents", "acts"))
        turns.append(Utterance(role, text, *labels))
    return str(session_id), turns


def parse_labels(labels: object, name: str, index: int) -> tuple[str, ...]:
    """Checks the labels of a turn; raises as `parse_session`."""
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f'turn {index}: expected "{name}" to be a list of texts')
    "".join(labels).encode()
    return tuple(labels)
