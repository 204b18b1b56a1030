"""The E-commerce Dialogue Corpus as it is released, for response selection (Zhang et al. 2018).

A label, the context's turns and a response a line, tab-separated, words parted by spaces. A context
repeats once a candidate; label 1 marks the true response.
"""

import pathlib
import re
from collections.abc import Iterator

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.response_windows import Window, merge_windows
from dcse_tf.input_files import BadLines, read_lines

# The spaces of the word segmentation; one between two Latin words or numbers may be their own.
_SEGMENTATION = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields the dialogues that the lines are windows of, with customer and agent as roles.

    Negatives are dropped; windows of one dialogue are merged (`response_windows`). The response is
    the agent's, and speakers alternate. Sessions are named by file and line.
    """
    for number, turns in merge_windows(lambda bad: _read_windows(path, bad), bad_lines):
        yield f"{path.name}-{number}", turns


def _read_windows(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Window]:
    for number, line in read_lines(path, bad_lines):
        label, *texts = line.split("\t")
        if label.strip() not in ("0", "1") or len(texts) < 2:
            bad_lines.report(
                path,
                number,
                "expected 0 or 1, the context's turns and the response, tab-separated; found "
                f"{len(texts) + 1} field(s), the first {label[:20]!r}",
            )
        elif label.strip() == "1":
            yield (
                number,
                [_parse_turn(text, len(texts) - place) for place, text in enumerate(texts)],
            )


def _parse_turn(text: str, from_end: int) -> Utterance:
    """A turn by its place from the end, which is 1 for the response."""
    text = _SEGMENTATION.sub("", " ".join(text.split()))
    return Utterance("agent" if from_end % 2 else "customer", text)
