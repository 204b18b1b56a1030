"""Grouped candidates: contexts with true and other responses, as published test files have them.

A format of candidates is a reader and a line here. No TensorFlow here.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dcse_tf.data.dialogue import Utterance, is_silent
from dcse_tf.data.formats import ecd, ubuntu
from dcse_tf.data.formats.labelled_lines import Candidate
from dcse_tf.data.formats.reading import SeenIds
from dcse_tf.input_files import BadLines, parse_json, read_lines

Reader = Callable[[pathlib.Path, BadLines], Iterator[Candidate]]


@dataclasses.dataclass(frozen=True)
class CandidateGroup:
    """A context and its candidate responses.

    Attributes:
        id: names it; from the file, or of the file's name and a line.
        context: the turns before the response, in order.
        candidates: texts, in the file's order.
        labels: 1 for a true response, 0 for another one.
        responder: the role of whoever gives the response.
    """

    id: str
    context: tuple[Utterance, ...]
    candidates: tuple[str, ...]
    labels: tuple[int, ...]
    responder: str


@dataclasses.dataclass(frozen=True)
class CandidateFormat:
    """How a kind of file of candidates is read.

    Attributes:
        read: yields the candidates of a file, those of a group one after another. It reports lines
            that it cannot use to the `BadLines` and continues.
        help: what the files are, in one line.
        line_each: whether a line is a candidate, so that lines can be counted off to groups.
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
    """Yields the groups of a file, each with a true response and another one at least.

    Turns of a context without anything to read are left out.

    Args:
        path: the file.
        format: a name in `CANDIDATE_FORMATS`.
        bad_lines: where lines and groups that cannot be used are counted.
        several_positives: whether a group may have several true responses.
        lines: how many lines a group has, if the format has a candidate a line; 0 if neighbouring
            lines of one context are a group.
    """
    rows = _drop_empty(path, CANDIDATE_FORMATS[format].read(path, bad_lines), bad_lines)
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
    """Equal for the candidates of a group: of one line if that is a group, or of one context."""
    return (row.group, row.line) if row.group else (row.group, row.context)


def _describe_return(row: Candidate) -> str:
    if row.group:
        return f"the id {row.group!r} stands in the file for a second time"
    return (
        "this context ended before; the candidates of a context must stand together (if groups "
        "may share a context, `candidates_lines` says how many lines a group has)"
    )


def _drop_empty(
    path: pathlib.Path, rows: Iterable[Candidate], bad_lines: BadLines
) -> Iterator[Candidate]:
    for row in rows:
        context = tuple(turn for turn in row.context if not is_silent(turn.text))
        if not context:
            bad_lines.report(path, row.line, "the context is empty")
        elif is_silent(row.response):
            bad_lines.report(path, row.line, "the response is empty")
        else:
            yield row._replace(context=context)


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
    )


# Our own form


def group_to_dict(group: CandidateGroup) -> dict[str, Any]:
    """The JSON Lines form of a group, which the format `jsonl` reads."""
    return {
        "id": group.id,
        "context": [{"role": turn.role, "text": turn.text} for turn in group.context],
        "responder": group.responder,
        "candidates": list(group.candidates),
        "labels": list(group.labels),
    }


def _read_jsonl(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    for number, line in read_lines(path, bad_lines):
        try:
            yield from _parse_group(number, parse_json(line))
        except json.JSONDecodeError as error:
            bad_lines.report(path, number, f"not JSON: {error.msg} at column {error.colno}")
        except UnicodeEncodeError as error:
            bad_lines.report(path, number, f"half of a surrogate pair: {error.reason}")
        except ValueError as error:
            bad_lines.report(path, number, str(error))


def _parse_group(number: int, value: Any) -> list[Candidate]:
    if not isinstance(value, dict):
        raise ValueError('expected {"id", "context", "responder", "candidates", "labels"}')
    name, responder = value.get("id"), value.get("responder")
    if not isinstance(name, str) or not name or not isinstance(responder, str):
        raise ValueError('expected "id" and "responder" to be texts')
    turns, texts, labels = (value.get(key) for key in ("context", "candidates", "labels"))
    if not isinstance(turns, list) or not all(map(_is_turn, turns)):
        raise ValueError('expected "context" to be a list of {"role": text, "text": text}')
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError('expected "candidates" to be a list of texts')
    if not isinstance(labels, list) or not all(type(k) is int and k in (0, 1) for k in labels):
        raise ValueError('expected "labels" to be a list of 0 and 1')
    if len(texts) != len(labels) or not texts:
        raise ValueError(
            f'expected a label for each candidate, found {len(texts)} "candidates" and '
            f'{len(labels)} "labels"'
        )
    context = tuple(Utterance(turn["role"], turn["text"]) for turn in turns)
    # JSON can spell characters that UTF-8 cannot hold.
    "".join(
        [name, responder, *texts, *itertools.chain(*((t.role, t.text) for t in context))]
    ).encode()
    return [
        Candidate(number, label, context, text, responder, name)
        for text, label in zip(texts, labels, strict=True)
    ]


def _is_turn(turn: object) -> bool:
    return (
        isinstance(turn, dict)
        and isinstance(turn.get("role"), str)
        and isinstance(turn.get("text"), str)
    )


CANDIDATE_FORMATS = {
    "jsonl": CandidateFormat(
        _read_jsonl,
        '{"id", "context": [{"role", "text"}], "responder", "candidates", "labels"} a line, as '
        "build_candidates writes them",
    ),
    "ecd": CandidateFormat(
        ecd.read_candidates,
        "{train,valid,test} of the E-commerce corpus, a candidate a line",
        line_each=True,
    ),
    "ubuntu": CandidateFormat(
        ubuntu.read_candidates,
        "{train,valid,test}.txt of the Ubuntu corpus, tab-separated, a candidate a line",
        line_each=True,
    ),
    "ubuntu_csv": CandidateFormat(
        ubuntu.read_csv_candidates,
        "{valid,test}.csv of the Ubuntu corpus, a row a context and all its candidates",
    ),
    "ubuntu_ids": CandidateFormat(
        ubuntu.read_ids_candidates,
        "{valid,test}.txt of Gu et al.'s copy of the Ubuntu corpus, with responses.txt beside it",
    ),
}
