"""Files of contexts with candidate responses: one candidate a line, or a group in a JSON object.

The E-commerce and Ubuntu corpora have a line for each candidate: a label (1: the true response),
the context's turns and the response, tab-separated; a context is repeated for each of its
candidates. The project's own form has a group a line:

    {"id": "7:3", "dialogue": "7", "context": [{"role": "a", "text": "..."}], "responder": "b",
     "candidates": ["...", "..."], "labels": [1, 0]}

"dialogue" may be left out. Groups of one dialogue share its contexts, so they go to the same split,
and their responses are no negatives of each other.
"""

import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from dcse_tf.data.dialogue import GivenCandidates, Utterance, is_blank
from dcse_tf.data.formats.exports import parse_dialogue
from dcse_tf.data.formats.reading import (
    Sessions,
    convert,
    convert_lines,
    get_field,
    read_json_lines,
)
from dcse_tf.data.formats.windows import merge_windows, name_dialogues
from dcse_tf.input_files import BadLines

GivenSession = tuple[str, list[Utterance], GivenCandidates]


@dataclasses.dataclass(frozen=True)
class CandidateGroup:
    """A context and its candidate responses.

    Attributes:
        id: its id from the file, or else made of the file's name and a line number. context: the
        turns before the response, in order. candidates, labels: the texts in the file's order, and
        1 for a true response, 0 for a negative. responder: the role of the response's speaker.
        dialogue: id of the dialogue that the group is from; "" if unknown.
    """

    id: str
    context: tuple[Utterance, ...]
    candidates: tuple[str, ...]
    labels: tuple[int, ...]
    responder: str
    dialogue: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that the format `jsonl` reads."""
        return {
            "id": self.id,
            **({"dialogue": self.dialogue} if self.dialogue else {}),
            "context": [{"role": turn.role, "text": turn.text} for turn in self.context],
            "responder": self.responder,
            "candidates": list(self.candidates),
            "labels": list(self.labels),
        }

    @property
    def window(self) -> list[Utterance]:
        """The context and its first true response."""
        true = self.candidates[self.labels.index(1)]
        return [*self.context, Utterance(self.responder, true)]


# Yields groups with their line numbers; the last argument says whether a group may have several
# true responses.
GroupReader = Callable[[pathlib.Path, BadLines, bool], Iterator[tuple[int, CandidateGroup]]]


def check_groups(
    read: GroupReader, path: pathlib.Path, bad_lines: BadLines, several_positives: bool = False
) -> Iterator[tuple[int, CandidateGroup]]:
    """Yields those groups of a file that have a true response and a negative, and an id of their
    own; the others count as bad lines.
    """
    known: set[str] = set()
    for number, group in read(path, bad_lines, several_positives):
        advice = "; `several_positives` allows several true responses in a group"
        if len(set(group.labels)) < 2:
            problem = "expected candidates with label 1 and with label 0, found only one of them"
            bad_lines.report(path, number, problem + advice * (not several_positives))
        elif sum(group.labels) > 1 and not several_positives:
            problem = f"expected one candidate with label 1, found {sum(group.labels)}"
            bad_lines.report(path, number, problem + advice)
        elif group.id in known:
            bad_lines.report(path, number, f"the id {group.id!r} is another group's")
        else:
            known.add(group.id)
            yield number, group


def read_given_sessions(
    read: GroupReader, path: pathlib.Path, bad_lines: BadLines
) -> Iterator[GivenSession]:
    """Yields a session for each group: the context, the true response, and the group's negatives.

    Where the file does not name the dialogues of its groups, they are those that `merge_windows`
    finds, so that windows of one dialogue are not torn apart.
    """
    groups = check_groups(read, path, bad_lines.again())
    unnamed = ((line, group.window) for line, group in groups if group.id == _name(path, line))
    names = {line: _name(path, first) for line, first in name_dialogues(unnamed).items()}
    for line, group in check_groups(read, path, bad_lines):
        dialogue = group.dialogue or names.get(line, group.id)
        pairs = zip(group.candidates, group.labels, strict=True)
        negatives = tuple(text for text, label in pairs if not label)
        yield group.id, group.window, GivenCandidates(dialogue, negatives)


def _name(path: pathlib.Path, line: int) -> str:
    return f"{path.name}-{line}"


def _drop_blank(context: list[Utterance], response: str) -> tuple[Utterance, ...]:
    """The turns of a context with something to read; ValueError if a text or all are without."""
    kept = tuple(turn for turn in context if not is_blank(turn.text))
    if not kept or is_blank(response):
        raise ValueError(f"the {'response' if kept else 'context'} is empty")
    return kept


def read_groups_jsonl(
    path: pathlib.Path, bad_lines: BadLines, several_positives: bool = False
) -> Iterator[tuple[int, CandidateGroup]]:
    """See `GroupReader`; a line that is not a group is a bad line."""

    def parse(number: int, value: Any) -> tuple[int, CandidateGroup]:
        name, responder = (get_field(value, key, str) for key in ("id", "responder"))
        dialogue = get_field(value, "dialogue", str, "")
        _, turns = parse_dialogue(
            {"session_id": "", "turns": get_field(value, "context", list)}, {}
        )
        texts, labels = (tuple(get_field(value, key, list)) for key in ("candidates", "labels"))
        if not name or not all(isinstance(text, str) for text in texts):
            raise ValueError('expected "id" and all of "candidates" to be texts')
        if len(labels) != len(texts) or not all(type(k) is int and k in (0, 1) for k in labels):
            raise ValueError('expected "labels" to have 0 or 1 for each of "candidates"')
        context: tuple[Utterance, ...] = ()
        for text in texts:
            context = _drop_blank(turns, text)
        return number, CandidateGroup(name, context, texts, labels, responder, dialogue)

    return read_json_lines(path, bad_lines, parse)


# One candidate a line

Row = tuple[int, int, tuple[Utterance, ...], Utterance]  # line number, label, context, response


def _read_labelled(
    path: pathlib.Path, bad_lines: BadLines, parse: Callable[[list[str]], list[Utterance]]
) -> Iterator[Row]:
    """Yields the candidate of each line; `parse` makes turns of its texts, the response last."""

    def convert_line(number: int, line: str) -> Row:
        label, *texts = line.split("\t")
        if label.strip() not in ("0", "1") or len(texts) < 2:
            raise ValueError(
                "expected 0 or 1, the context's turns and the response, tab-separated; found "
                f"{len(texts) + 1} field(s), the first {label[:20]!r}"
            )
        *context, response = parse(texts)
        return number, int(label), tuple(context), response

    return convert_lines(path, bad_lines, convert_line)


def _read_line_groups(
    parse: Callable[[list[str]], list[Utterance]],
    path: pathlib.Path,
    bad_lines: BadLines,
    several_positives: bool = False,
) -> Iterator[tuple[int, CandidateGroup]]:
    """See `GroupReader`. Neighbouring lines with the same context are a group, but another true
    response begins another group unless there may be several in one.
    """

    def drop_blank(number: int, row: Row) -> Row:
        return number, row[1], _drop_blank(list(row[2]), row[3].text), row[3]

    numbered = ((row[0], row) for row in _read_labelled(path, bad_lines, parse))
    rows = convert(numbered, drop_blank, path, bad_lines)
    for context, same in itertools.groupby(rows, key=lambda row: row[2]):
        members = list(same)
        positives = [place for place, row in enumerate(members) if row[1]]
        starts = [0, *positives[1:]] if not several_positives else [0]
        for begin, end in itertools.pairwise([*starts, len(members)]):
            lines, labels, _, responses = zip(*members[begin:end], strict=True)
            true = responses[labels.index(max(labels))]
            texts = tuple(response.text for response in responses)
            name = _name(path, lines[0])
            yield lines[0], CandidateGroup(name, context, texts, labels, true.role)


def _read_windows(
    path: pathlib.Path, bad_lines: BadLines, parse: Callable[[list[str]], list[Utterance]]
) -> Sessions:
    """Yields the dialogues that the contexts and true responses are windows of."""
    rows = _read_labelled(path, bad_lines, parse)
    windows = ((line, [*context, response]) for line, label, context, response in rows if label)
    for number, turns in merge_windows(windows):
        yield _name(path, number), turns


# The spaces of the word segmentation. A space between two Latin words or numbers is kept, as it may
# be part of the original text.
_SEGMENTATION = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")


def _parse_ecd(texts: list[str]) -> list[Utterance]:
    roles = itertools.cycle(["agent", "customer"])
    plain = (_SEGMENTATION.sub("", " ".join(text.split())) for text in reversed(texts))
    return list(map(Utterance, roles, plain))[::-1]


# The E-commerce Dialogue Corpus as released for response selection (Zhang et al. 2018): spaces
# between words; speakers alternate, and the response is the agent's.
read_ecd_groups = functools.partial(_read_line_groups, _parse_ecd)


def read_ecd(path: pathlib.Path, bad_lines: BadLines) -> Sessions:
    """Yields the dialogues that the lines of the E-commerce corpus are windows of
    (`merge_windows`), named by file and line, without negatives.
    """
    return _read_windows(path, bad_lines, _parse_ecd)


_TURN_END = re.compile("__eot__", re.IGNORECASE)
_TAG = re.compile("__eo[tus]__", re.IGNORECASE)


def _parse_ubuntu(texts: list[str]) -> list[Utterance]:
    """The turns of a line, whose speakers alternate, and the response is b's.

    Texts may have the tags __eou__ (end of utterance) and __eot__ (end of turn). If a context has
    an __eot__, its turns end only there, so that the utterances of a turn become one text;
    otherwise each field is a turn. The tags are removed.
    """
    *fields, response = texts
    if any(map(_TURN_END.search, fields)):
        fields = _TURN_END.split(" ".join(fields))
        if is_blank(_TAG.sub("", fields[-1])):  # nothing follows the last tag
            fields.pop()
    plain = (" ".join(_TAG.sub(" ", text).split()) for text in [*fields, response])
    last = len(fields)
    return [Utterance("ba"[(last - place) % 2], text) for place, text in enumerate(plain)]


# The Ubuntu Dialogue Corpus (Lowe et al. 2015), the tab-separated copy of version 1.
read_ubuntu_groups = functools.partial(_read_line_groups, _parse_ubuntu)


def read_ubuntu(path: pathlib.Path, bad_lines: BadLines) -> Sessions:
    """`read_ecd` for the Ubuntu corpus; a and b alternate in each dialogue, a first."""

    # Speakers are named only after merging. Either speaker may give a window's response, so named
    # by distance from it, the same turn would have different speakers in two windows.
    def parse(texts: list[str]) -> list[Utterance]:
        return [turn._replace(role="") for turn in _parse_ubuntu(texts)]

    for name, turns in _read_windows(path, bad_lines, parse):
        yield name, [turn._replace(role="ab"[n % 2]) for n, turn in enumerate(turns)]
