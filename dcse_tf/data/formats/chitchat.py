"""The conversations of the PyPI package `chitchat-dataset` (MIT), one JSON object in one file."""

import pathlib
from collections.abc import Iterator

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import get_field, read_members
from dcse_tf.input_files import BadLines


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields a session for each conversation, with the senders as roles.

    The file maps conversation ids to `{"messages": [[{"text", "sender", ...}, ...], ...]}`; each
    inner list has the messages of one turn. A conversation of another form is reported by its
    number, since the file is not divided into lines.

    Raises:
        InputError: the file is not one JSON object.
    """
    for number, session_id, conversation in read_members(path, bad_lines):
        try:
            groups = get_field(conversation, "messages", list)
            if not all(isinstance(messages, list) for messages in groups):
                raise ValueError('expected "messages" to be a list of lists')
            turns = [
                Utterance(get_field(message, "sender", str), get_field(message, "text", str))
                for messages in groups
                for message in messages
            ]
        except ValueError as error:
            bad_lines.report(path, number, f"conversation {session_id}: {error}")
            continue
        yield session_id, turns
