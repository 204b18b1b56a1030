"""The E-commerce Dialogue Corpus as released for response selection (Zhang et al. 2018).

Each line has a label, the context's turns and a response, tab-separated, with spaces between words.
A context is repeated for each candidate; label 1 marks the true response. Speakers alternate, and
the response is the agent's.
"""

import pathlib
import re
from collections.abc import Iterator

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import groups
from dcse_tf.data.formats.labelled_lines import Candidate, split_lines
from dcse_tf.data.formats.response_windows import Window, merge_windows
from dcse_tf.input_files import BadLines

# The spaces of the word segmentation. A space between two Latin words or numbers is kept, as it may
# be part of the original text.
_SEGMENTATION = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields the dialogues that the lines are windows of, with customer and agent as roles.

    Negatives are dropped, and windows of one dialogue are merged (`response_windows`). Sessions are
    named by file and line.
    """
    for number, turns in merge_windows(lambda bad: _read_windows(path, bad), bad_lines):
        yield f"{path.name}-{number}", turns


def read_candidates(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    """Yields the candidate of each line, in order."""
    for number, label, texts in split_lines(path, bad_lines):
        *context, response = _parse_turns(texts)
        yield Candidate(number, label, tuple(context), response.text, response.role)


def read_given_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[groups.GivenSession]:
    """Yields a session for each true response, with the file's negatives for its context."""
    yield from groups.read_labelled_sessions(
        path, bad_lines, read_candidates, lambda bad: _read_windows(path, bad)
    )


def _read_windows(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Window]:
    for number, label, texts in split_lines(path, bad_lines):
        if label:
            yield number, _parse_turns(texts)


def _parse_turns(texts: list[str]) -> list[Utterance]:
    return [_parse_turn(text, len(texts) - place) for place, text in enumerate(texts)]


def _parse_turn(text: str, from_end: int) -> Utterance:
    """Makes a turn from its text and its position from the end, which is 1 for the response."""
    text = _SEGMENTATION.sub("", " ".join(text.split()))
    return Utterance("agent" if from_end % 2 else "customer", text)
