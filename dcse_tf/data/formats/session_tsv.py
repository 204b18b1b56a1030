"""`{session_id}\\t{role}\\t{text}` lines, the lines of a session together and in order."""

import pathlib
from collections.abc import Iterator

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import group_rows, unquote
from dcse_tf.input_files import BadLines, read_lines


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields each session when its last line is read; a line without three fields is bad.

    Quotes around a whole field are removed.
    """
    return group_rows(_read_rows(path, bad_lines), path, bad_lines)


def _read_rows(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[int, str, Utterance]]:
    for number, line in read_lines(path, bad_lines):
        fields = [unquote(field).strip() for field in line.split("\t")]
        if len(fields) != 3 or not fields[0]:
            bad_lines.report(
                path,
                number,
                f"expected session_id<TAB>role<TAB>text (`format`=session_tsv), found "
                f"{len(fields)} field(s)",
            )
            continue
        session_id, role, text = fields
        yield number, session_id, Utterance(role, text)
