"""`{session_id}\\t{role}\\t{text}` lines, the lines of a session together and in order."""

import hashlib
import pathlib
from collections.abc import Iterator

from dcse_tf.input_files import BadLines, read_lines


def read_sessions(
    path: pathlib.Path, bad_lines: BadLines
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields sessions as they end, so that memory holds one of them.

    A line with another number of fields, or of a session that had ended, is bad: pieces of one
    session must not become two, which could then be negatives of each other.
    """
    current: str | None = None
    turns: list[tuple[str, str]] = []
    ended: set[bytes] = set()
    for number, line in read_lines(path, bad_lines):
        fields = line.split("\t")
        if len(fields) != 3 or not fields[0].strip():
            bad_lines.report(
                path, number, f"expected session_id<TAB>role<TAB>text, found {len(fields)} field(s)"
            )
            continue
        session_id, role, text = (field.strip() for field in fields)
        if session_id != current:
            # Eight bytes a session keep a corpus of millions in memory; ids may be long.
            key = hashlib.blake2b(session_id.encode(), digest_size=8).digest()
            if key in ended:
                bad_lines.report(
                    path,
                    number,
                    f"session {session_id!r} ended before this line; "
                    "the lines of a session must stand together",
                )
                continue
            if current is not None:
                yield current, turns
            ended.add(key)
            current, turns = session_id, []
        turns.append((role, text))
    if current is not None:
        yield current, turns
