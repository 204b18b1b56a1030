"""The Microsoft Dialogue Corpus: `{movie,restaurant,taxi}_all.tsv` of e2e_dialog_challenge.

After a header line, the tab-separated columns are session.ID, Message.ID, Message.Timestamp,
Message.From, Message.Text, and one or more dialogue acts. The name of an act, before its bracket,
is an intent.
"""

import pathlib
import re
from collections.abc import Iterator

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import group_rows, unquote
from dcse_tf.input_files import BadLines, read_lines

_ROLES = {"user", "agent"}
_ACT = re.compile("[a-z][a-z_ ]*", re.IGNORECASE)


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields each session when its last row is read.

    Session numbers start afresh in each domain's file, so they are prefixed with the file's name up
    to "_". Quotes around a text are removed. A line is bad if it has fewer than five fields, no
    session number, or a speaker other than user or agent.
    """
    return group_rows(_read_rows(path, bad_lines), path, bad_lines)


def _read_rows(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[int, str, Utterance]]:
    domain = path.name.split("_")[0].split(".")[0].lower()
    for number, line in read_lines(path, bad_lines):
        fields = [unquote(field).strip() for field in line.split("\t")]
        if number == 1 and fields[0].lower() == "session.id":
            continue
        role = fields[3].lower() if len(fields) > 4 else ""
        if not fields[0] or role not in _ROLES:
            bad_lines.report(
                path,
                number,
                "expected session.ID, Message.ID, Message.Timestamp, user or agent, Message.Text, "
                f"acts, tab-separated; found {len(fields)} field(s)"
                + (f", the fourth {fields[3][:20]!r}" if len(fields) > 3 else ""),
            )
            continue
        names = (field.partition("(")[0].rstrip() for field in fields[5:])
        intents = (name.lower() for name in names if _ACT.fullmatch(name))
        yield (
            number,
            f"{domain}-{fields[0]}",
            Utterance(role, fields[4], (*dict.fromkeys(intents),)),
        )
