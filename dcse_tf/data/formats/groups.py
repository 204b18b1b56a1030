"""Grouped candidates: read from JSON Lines, and as sessions with negatives for their last turn.

Each line of the JSON Lines is a context with its candidates:

    {"id": "7:3", "dialogue": "7", "context": [{"role": "a", "text": "..."}], "responder": "b",
     "candidates": ["...", "..."], "labels": [1, 0], "scores": [2.5, -1.0]}

"dialogue" and "scores" may be left out. Groups of one dialogue share its contexts, so they go to
the same split, and their responses are no negatives of each other.
"""

import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dcse_tf.data.dialogue import GivenCandidates, Utterance
from dcse_tf.data.formats.labelled_lines import Candidate, drop_empty
from dcse_tf.data.formats.reading import SeenIds, read_json_lines
from dcse_tf.data.formats.response_windows import Window, name_dialogues
from dcse_tf.input_files import BadLines

GivenSession = tuple[str, list[Utterance], GivenCandidates]

# The largest float32, in which scores are kept.
_LARGEST_SCORE = 3e38


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[GivenSession]:
    """Yields a session for each group: the context and the true response, with the group's id.

    Either all groups of a file have scores or none has. A group without "dialogue" is its own
    dialogue.
    """
    rows = drop_empty(path, read_candidates(path, bad_lines), bad_lines)
    names = SeenIds()
    scored: bool | None = None
    for (name, line), piece in itertools.groupby(rows, key=lambda row: (row.group, row.line)):
        members = sorted(piece, key=lambda row: -row.label)
        problem = _find_problem(members)
        has_scores = members[0].score is not None
        if not problem and name in names:
            problem = f"the id {name!r} appears in the file for a second time"
        elif not problem and scored not in (None, has_scores):
            lacks = "has" if has_scores else "lacks"
            problem = f'expected "scores" in all groups or in none; this one {lacks} them'
        if problem:
            bad_lines.report(path, line, problem)
            continue
        names.add(name)
        scored = has_scores
        yield _make_session(name, members[0].dialogue or name, members)


def read_labelled_sessions(
    path: pathlib.Path,
    bad_lines: BadLines,
    read: Callable[[pathlib.Path, BadLines], Iterable[Candidate]],
    read_windows: Callable[[BadLines], Iterable[Window]],
) -> Iterator[GivenSession]:
    """Yields the sessions of a file with one candidate per line.

    A group is a line with label 1 and the lines with label 0 and the same context that follow it.
    Sessions are named by file and line. Their dialogues are those that `merge_windows` finds.

    Args:
        path: the file.
        bad_lines: counts unusable lines and groups.
        read: reads the file's candidates.
        read_windows: reads the context and response of each line with label 1, the same every time.
    """
    dialogues = name_dialogues(read_windows, bad_lines.again())
    for members in _split_runs(drop_empty(path, read(path, bad_lines), bad_lines)):
        line = members[0].line
        if problem := _find_problem(members):
            bad_lines.report(path, line, problem)
        else:
            yield _make_session(f"{path.name}-{line}", f"{path.name}-{dialogues[line]}", members)


def _split_runs(rows: Iterable[Candidate]) -> Iterator[list[Candidate]]:
    members: list[Candidate] = []
    for row in rows:
        if members and (row.label or row.context != members[0].context):
            yield members
            members = []
        members.append(row)
    if members:
        yield members


def _find_problem(members: list[Candidate]) -> str:
    """What is wrong with a group, whose true responses come first; "" if nothing is."""
    positives = sum(row.label for row in members)
    if not positives:
        return "expected a candidate with label 1, the true response, before the others"
    if positives > 1:
        return f"expected one candidate with label 1, found {positives}"
    if len(members) == 1:
        return "expected a candidate with label 0 beside the true response; there is none"
    return ""


def _make_session(name: str, dialogue: str, members: list[Candidate]) -> GivenSession:
    true, *others = members
    scores = tuple(row.score for row in members if row.score is not None)
    given = GivenCandidates(dialogue, tuple(row.response for row in others), scores)
    return name, [*true.context, Utterance(true.responder, true.response)], given


def read_candidates(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    """Yields the candidates of each line, in order; a line that is not a group is a bad line."""
    return itertools.chain.from_iterable(read_json_lines(path, bad_lines, _parse_group))


def _parse_group(number: int, value: Any) -> list[Candidate]:
    if not isinstance(value, dict):
        raise ValueError('expected {"id", "context", "responder", "candidates", "labels"}')
    name, responder = value.get("id"), value.get("responder")
    if not isinstance(name, str) or not name or not isinstance(responder, str):
        raise ValueError('expected "id" and "responder" to be texts')
    dialogue = value.get("dialogue", "")
    if not isinstance(dialogue, str):
        raise ValueError('expected "dialogue" to be a text')
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
    scores = _parse_scores(value.get("scores"), len(texts))
    context = tuple(Utterance(turn["role"], turn["text"]) for turn in turns)
    # JSON escapes can spell lone surrogates, which UTF-8 cannot encode.
    "".join(
        [name, dialogue, responder, *texts, *itertools.chain(*((t.role, t.text) for t in context))]
    ).encode()
    return [
        Candidate(number, label, context, text, responder, name, dialogue, score)
        for text, label, score in zip(texts, labels, scores, strict=True)
    ]


def _parse_scores(scores: Any, candidates: int) -> list[float] | list[None]:
    if scores is None:
        return [None] * candidates
    if not isinstance(scores, list) or len(scores) != candidates:
        found = f"{len(scores)} of them" if isinstance(scores, list) else f"{scores!r:.40}"
        raise ValueError(
            f'expected "scores" to be a number for each of {candidates} candidates, found {found}'
        )
    for score in scores:
        if type(score) not in (int, float) or not abs(score) <= _LARGEST_SCORE:
            raise ValueError(f'expected "scores" to be finite numbers, found {score!r:.40}')
    return [float(score) for score in scores]


def _is_turn(turn: object) -> bool:
    return (
        isinstance(turn, dict)
        and isinstance(turn.get("role"), str)
        and isinstance(turn.get("text"), str)
    )
