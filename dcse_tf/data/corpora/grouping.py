"""Rows of utterances to sessions: what the formats with a turn a line share."""

import pathlib
from collections.abc import Iterable, Iterator

from dcse_tf.data.corpora.seen_ids import SeenIds
from dcse_tf.data.dialogue import Utterance
from dcse_tf.input_files import BadLines


def group_rows(
    rows: Iterable[tuple[int, str, Utterance]], path: pathlib.Path, bad_lines: BadLines
) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields sessions as they end, so that memory holds one of them.

    A row of a session that had ended is bad: pieces of one session must not become two, which
    could then be negatives of each other.

    Args:
        rows: (line number, session id, utterance), the rows of a session together and in order.
        path: the file, for messages.
        bad_lines: where rows that cannot be used are counted.
    """
    current: str | None = None
    turns: list[Utterance] = []
    ended = SeenIds()
    for number, session_id, utterance in rows:
        if session_id != current:
            if session_id in ended:
                bad_lines.report(
                    path,
                    number,
                    f"session {session_id!r} ended before this line; "
                    "the lines of a session must stand together",
                )
                continue
            if current is not None:
                yield current, turns
            ended.add(session_id)
            current, turns = session_id, []
        turns.append(utterance)
    if current is not None:
        yield current, turns
