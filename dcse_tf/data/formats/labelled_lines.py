"""Lines of response-selection files: a label, the context's turns and a response, tab-separated.

A context is repeated for each candidate; label 1 marks the true response, label 0 a negative.
"""

import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dcse_tf.data.dialogue import Utterance, is_blank
from dcse_tf.input_files import BadLines, read_lines


class Candidate(NamedTuple):
    """A context with one of its candidates, as a reader of candidates yields it.

    Attributes:
        line: its line number in the file, from 1.
        label: 1 for the true response, 0 for a negative.
        context: the turns before the response, in order.
        response: the candidate's text.
        responder: the role of the response's speaker.
        group: id of the group that the file assigns it to; "" if groups are given by the context.
        dialogue: id of the dialogue that the group is from; "" if the file does not say.
        score: a teacher's score; None if the file has none.
    """

    line: int
    label: int
    context: tuple[Utterance, ...]
    response: str
    responder: str
    group: str = ""
    dialogue: str = ""
    score: float | None = None


def split_lines(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[int, int, list[str]]]:
    """Yields (line number, label, texts), the texts being the context's turns and the response."""
    for number, line in read_lines(path, bad_lines):
        label, *texts = line.split("\t")
        if label.strip() in ("0", "1") and len(texts) >= 2:
            yield number, int(label), texts
        else:
            bad_lines.report(
                path,
                number,
                "expected 0 or 1, the context's turns and the response, tab-separated; found "
                f"{len(texts) + 1} field(s), the first {label[:20]!r}",
            )


def drop_empty(
    path: pathlib.Path, rows: Iterable[Candidate], bad_lines: BadLines
) -> Iterator[Candidate]:
    """Drops turns with nothing to read; a candidate left without context or response is bad."""
    for row in rows:
        context = tuple(turn for turn in row.context if not is_blank(turn.text))
        if not context:
            bad_lines.report(path, row.line, "the context is empty")
        elif is_blank(row.response):
            bad_lines.report(path, row.line, "the response is empty")
        else:
            yield row._replace(context=context)
