"""The conversations of the PyPI package `chitchat-dataset` (MIT), one JSON object in one file."""

import pathlib
from collections.abc import Iterator
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import read_members
from dcse_tf.input_files import BadLines


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields a session for each conversation, with the senders as roles.

    The file maps conversation ids to `{"messages": [[{"text", "sender", ...}, ...], ...]}`; each
    inner list has the messages of one turn. A conversation of another form is reported by its
    number, since the file is not divided into lines.

    Raises:
        InputError: the file is not one JSON object.
    """
    for number, session_id, conversation in read_members(path):
        try:
            turns = [_parse(message) for turn in conversation["messages"] for message in turn]
        except (KeyError, TypeError, UnicodeEncodeError) as error:
            bad_lines.report(path, number, f"conversation {session_id}: unexpected form: {error!r}")
            continue
        yield session_id, turns


def _parse(message: dict[str, Any]) -> Utterance:
    sender, text = message["sender"], message["text"]
    if not isinstance(sender, str) or not isinstance(text, str):
        raise TypeError("sender and text must be texts")
    text.encode()  # JSON escapes can spell lone surrogates, which UTF-8 cannot encode
    return Utterance(sender, text)
