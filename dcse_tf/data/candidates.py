"""Grouped candidates: contexts with true and other responses, as in published test files.

A candidate format is a reader, registered here. This module does not use TensorFlow.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import ecd, groups, ubuntu
from dcse_tf.data.formats.labelled_lines import Candidate, drop_empty
from dcse_tf.data.formats.reading import SeenIds
from dcse_tf.input_files import BadLines

Reader = Callable[[pathlib.Path, BadLines], Iterator[Candidate]]


@dataclasses.dataclass(frozen=True)
class CandidateGroup:
    """A context and its candidate responses.

    Attributes:
        id: its id from the file, or else made of the file's name and a line number.
        context: the turns before the response, in order.
        candidates: the texts of the candidates, in the file's order.
        labels: 1 for a true response, 0 for a negative; one per candidate.
        responder: the role of the response's speaker.
        dialogue: id of the dialogue that the group is from; "" if unknown.
        scores: a teacher's scores, one per candidate; () if there are none.
    """

    id: str
    context: tuple[Utterance, ...]
    candidates: tuple[str, ...]
    labels: tuple[int, ...]
    responder: str
    dialogue: str = ""
    scores: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class CandidateFormat:
    """How a kind of candidate file is read.

    Attributes:
        read: yields the candidates of a file, those of a group consecutively. It reports unusable
            lines to the `BadLines` and continues.
        help: what the files are, in one line.
        line_each: whether each line is one candidate, so that a number of lines can define groups.
    """

    read: Reader
    help: str
    line_each: bool = False


def read_groups(
    path: pathlib.Path,
    format: str,
    bad_lines: BadLines,
    *,
    several_positives: bool = False,
    lines: int = 0,
) -> Iterator[CandidateGroup]:
    """Yields the groups of a file, each with at least one true response and one negative.

    Context turns with nothing to read are dropped.

    Args:
        path: the file.
        format: a name in `CANDIDATE_FORMATS`.
        bad_lines: counts unusable lines and groups.
        several_positives: whether a group may have several true responses.
        lines: number of lines per group, if the format has one candidate per line; 0 to group
            neighbouring lines with the same context.
    """
    rows = drop_empty(path, CANDIDATE_FORMATS[format].read(path, bad_lines), bad_lines)
    if lines:
        pieces = itertools.groupby(rows, key=lambda row: (row.line - 1) // lines)
    else:
        pieces = itertools.groupby(rows, key=_identify)
    ended = SeenIds()
    for _, piece in pieces:
        members = list(piece)
        problem = _find_problem(members, several_positives, lines)
        if not problem and not lines:
            key = members[0].group or repr(members[0].context)
            problem = _describe_return(members[0]) if key in ended else ""
            ended.add(key)
        if problem:
            bad_lines.report(path, members[0].line, problem)
        else:
            yield _make_group(path, members)


def _identify(row: Candidate) -> tuple:
    """A key shared by the candidates of a group: its id and line, or else its context."""
    return (row.group, row.line) if row.group else (row.group, row.context)


def _describe_return(row: Candidate) -> str:
    if row.group:
        return f"the id {row.group!r} appears in the file for a second time"
    return (
        "this context ended before; the candidates of a context must stand together (if groups "
        "may share a context, `candidates_lines` says how many lines a group has)"
    )


def _find_problem(members: list[Candidate], several_positives: bool, lines: int) -> str:
    """What is wrong with a group; "" if nothing is."""
    contexts = len({row.context for row in members})
    positives = sum(row.label for row in members)
    if lines and (contexts > 1 or len(members) != lines):
        return (
            f"expected {lines} lines of one context (`candidates_lines`), found {len(members)} "
            f"of {contexts} context(s)"
        )
    if not positives:
        return "expected a candidate with label 1, the true response; the group has none"
    if positives == len(members):
        return "expected a candidate with label 0 beside the true response; the group has none"
    if positives > 1 and not several_positives:
        return (
            f"expected one candidate with label 1, found {positives}; `several_positives` allows "
            "them, and if neighbouring groups share a context, `candidates_lines` parts them"
        )
    return ""


def _make_group(path: pathlib.Path, members: list[Candidate]) -> CandidateGroup:
    true = next(row for row in members if row.label)
    return CandidateGroup(
        members[0].group or f"{path.name}-{members[0].line}",
        true.context,
        tuple(row.response for row in members),
        tuple(row.label for row in members),
        true.responder,
        true.dialogue,
        tuple(row.score for row in members if row.score is not None),
    )


# The project's own format


def group_to_dict(group: CandidateGroup) -> dict[str, Any]:
    """Converts a group to the JSON object that the candidate format `jsonl` reads."""
    return {
        "id": group.id,
        **({"dialogue": group.dialogue} if group.dialogue else {}),
        "context": [{"role": turn.role, "text": turn.text} for turn in group.context],
        "responder": group.responder,
        "candidates": list(group.candidates),
        "labels": list(group.labels),
        **({"scores": list(group.scores)} if group.scores else {}),
    }


CANDIDATE_FORMATS = {
    "jsonl": CandidateFormat(
        groups.read_candidates,
        '{"id", "context": [{"role", "text"}], "responder", "candidates", "labels"} per line, as '
        "build_candidates writes them",
    ),
    "ecd": CandidateFormat(
        ecd.read_candidates,
        "{train,valid,test} of the E-commerce corpus, one candidate per line",
        line_each=True,
    ),
    "ubuntu": CandidateFormat(
        ubuntu.read_candidates,
        "{train,valid,test}.txt of the Ubuntu corpus, tab-separated, one candidate per line",
        line_each=True,
    ),
    "ubuntu_csv": CandidateFormat(
        ubuntu.read_csv_candidates,
        "{valid,test}.csv of the Ubuntu corpus, one context with all its candidates per row",
    ),
    "ubuntu_ids": CandidateFormat(
        ubuntu.read_ids_candidates,
        "{valid,test}.txt of Gu et al.'s copy of the Ubuntu corpus, with responses.txt beside it",
    ),
}
