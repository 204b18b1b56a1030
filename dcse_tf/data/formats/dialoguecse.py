"""The training rows of DialogueCSE's authors (`train_data.txt`).

Six tab-separated fields: turns before the response, joined by "|"; turns after it, likewise; the
roles as "before-response-after", each a list of 0 or 1 joined by "|"; a constant; candidate
responses joined by "|", the true one first; their labels.
"""

import pathlib
from collections.abc import Iterator

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.response_windows import Window, merge_windows
from dcse_tf.input_files import BadLines, read_lines

_ROLES = {"0": "customer", "1": "agent"}


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields the dialogues that the rows are windows of, with customer and agent as roles.

    The sampled negatives are dropped, and rows of one dialogue are merged (`response_windows`).
    Sessions are named by file and line.
    """
    for number, turns in merge_windows(lambda bad: _read_windows(path, bad), bad_lines):
        yield f"{path.name}-{number}", turns


def _read_windows(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Window]:
    for number, line in read_lines(path, bad_lines):
        try:
            yield number, _parse(line.split("\t"))
        except ValueError as error:
            bad_lines.report(path, number, str(error))


def _parse(fields: list[str]) -> list[Utterance]:
    if len(fields) != 6:
        raise ValueError(
            "expected turns before, turns after, roles, a constant, responses, labels, "
            f"tab-separated; found {len(fields)} field(s)"
        )
    before, after, roles, _, responses, labels = fields
    if labels.split("|")[0].strip() != "1":
        raise ValueError("expected the true response first: label 1")
    parts = roles.strip().split("-")
    if len(parts) != 3:
        raise ValueError(f"expected roles before-response-after, found {roles[:40]!r}")
    texts = [*_split(before), responses.split("|")[0], *_split(after)]
    speakers = [role for part in parts for role in _split(part)]
    if len(speakers) != len(texts) or not set(speakers) <= set(_ROLES):
        raise ValueError(f"expected {len(texts)} roles, 0 or 1, found {roles[:40]!r}")
    return [Utterance(_ROLES[role], text) for role, text in zip(speakers, texts, strict=True)]


def _split(text: str) -> list[str]:
    return text.split("|") if text else []
