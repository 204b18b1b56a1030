"""The corpus readers by the name of their format.

A reader is `read_sessions(path, bad_lines) -> Iterator[(session_id, turns)]` with turns as
utterances in order. It reports lines that it cannot use to `bad_lines` and goes on.
"""

import pathlib
from collections.abc import Callable, Iterator

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import (
    chitchat,
    crosswoz,
    dialoguecse,
    ecd,
    jddc,
    jsonl,
    mdc,
    session_tsv,
    sgd,
)
from dcse_tf.input_files import BadLines

RawSession = tuple[str, list[Utterance]]
Reader = Callable[[pathlib.Path, BadLines], Iterator[RawSession]]

READERS: dict[str, Reader] = {
    "session_tsv": session_tsv.read_sessions,
    "jsonl": jsonl.read_sessions,
    "chitchat": chitchat.read_sessions,
    "mdc": mdc.read_sessions,
    "jddc": jddc.read_sessions,
    "ecd": ecd.read_sessions,
    "dialoguecse": dialoguecse.read_sessions,
    "sgd": sgd.read_sessions,
    "crosswoz": crosswoz.read_sessions,
}
