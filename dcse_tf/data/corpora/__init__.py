"""The corpus readers by the name of their format.

A reader is `read_sessions(path, bad_lines) -> Iterator[(session_id, turns)]` with turns as (role,
text) pairs in order. It reports lines that it cannot use to `bad_lines` and goes on.
"""

import pathlib
from collections.abc import Callable, Iterator

from dcse_tf.data.corpora import chitchat, jsonl, session_tsv
from dcse_tf.input_files import BadLines

RawSession = tuple[str, list[tuple[str, str]]]
Reader = Callable[[pathlib.Path, BadLines], Iterator[RawSession]]

READERS: dict[str, Reader] = {
    "session_tsv": session_tsv.read_sessions,
    "jsonl": jsonl.read_sessions,
    "chitchat": chitchat.read_sessions,
}
