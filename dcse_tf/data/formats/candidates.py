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
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from dcse_tf.data.dialogue import GivenCandidates, Utterance, is_blank
from dcse_tf.data.formats.messages import parse_dialogue
from dcse_tf.data.formats.reading import SeenIds, convert, get_field, read_json_lines
from dcse_tf.data.formats.windows import Window, merge_windows, name_dialogues
from dcse_tf.input_files import BadLines, read_lines

GivenSession = tuple[str, list[Utterance], GivenCandidates]


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
    """

    line: int
    label: int
    context: tuple[Utterance, ...]
    response: str
    responder: str
    group: str = ""
    dialogue: str = ""


CandidateReader = Callable[[pathlib.Path, BadLines], Iterator[Candidate]]


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


# Groups


def group_candidates(
    read: CandidateReader,
    path: pathlib.Path,
    bad_lines: BadLines,
    *,
    several_positives: bool = False,
    lines: int = 0,
    true_first: bool = False,
) -> Iterator[CandidateGroup]:
    """Yields the groups of a file, each with at least one true response and one negative.

    Context turns with nothing to read are dropped.

    Args:
        read: reads the file's candidates, those of a group consecutively.
        path: the file.
        bad_lines: counts unusable lines and groups.
        several_positives: whether a group may have several true responses.
        lines: number of lines per group, if each line is a candidate; 0 to group neighbouring lines
            with the same context.
        true_first: whether a true response begins another group, even if its context is the same.
    """
    ended = SeenIds()
    numbered = ((row.line, row) for row in read(path, bad_lines))
    for members in _split_groups(
        convert(numbered, _drop_blank, path, bad_lines), lines, true_first
    ):
        first, contexts = members[0], len({row.context for row in members})
        positives, problem = sum(row.label for row in members), ""
        key = first.group or repr(first.context)
        if lines and (contexts > 1 or len(members) != lines):
            problem = (
                f"expected {lines} lines of one context (`candidates_lines`), found {len(members)} "
                f"of {contexts} context(s)"
            )
        elif positives in (0, len(members)):
            problem = "expected candidates with label 1 and with label 0, found only one of them"
        elif positives > 1 and not several_positives:
            problem = (
                f"expected one candidate with label 1, found {positives}; `several_positives` "
                "allows them, and if neighbouring groups share a context, `candidates_lines` parts "
                "them"
            )
        elif not lines and key in ended and (first.group or not true_first):
            problem = (
                f"{f'the id {first.group!r}' if first.group else 'this context'} ended before; the "
                "candidates of a group must stand together, unless `candidates_lines` says how "
                "many lines each has"
            )
        if problem:
            bad_lines.report(path, first.line, problem)
            continue
        ended.add(key)
        true = next(row for row in members if row.label)
        name = first.group or f"{path.name}-{first.line}"
        texts, labels = zip(*((row.response, row.label) for row in members), strict=True)
        yield CandidateGroup(name, true.context, texts, labels, true.responder, true.dialogue)


def _drop_blank(number: int, row: Candidate) -> Candidate:
    context = tuple(turn for turn in row.context if not is_blank(turn.text))
    if not context or is_blank(row.response):
        raise ValueError(f"the {'response' if context else 'context'} is empty")
    return row._replace(context=context)


def _split_groups(
    rows: Iterable[Candidate], lines: int, true_first: bool
) -> Iterator[list[Candidate]]:
    members: list[Candidate] = []
    for row in rows:
        if members:
            last = members[-1]
            if lines:
                same = (row.line - 1) // lines == (last.line - 1) // lines
            elif row.group:
                same = (row.group, row.line) == (last.group, last.line)
            else:
                same = row.context == last.context and not (true_first and row.label)
            if not same:
                yield members
                members = []
        members.append(row)
    if members:
        yield members


def read_given_sessions(
    read: CandidateReader, path: pathlib.Path, bad_lines: BadLines
) -> Iterator[GivenSession]:
    """Yields a session for each group: the context, the true response, and the group's negatives.

    Where the file does not name the dialogues of its groups, they are those that `merge_windows`
    finds, so that windows of one dialogue are not torn apart.
    """
    read_windows = functools.partial(_read_windows, read, path)
    dialogues = name_dialogues(read_windows, bad_lines.again())
    for group in group_candidates(read, path, bad_lines, true_first=True):
        negatives = tuple(t for t, label in zip(group.candidates, group.labels) if not label)
        true = group.candidates[group.labels.index(1)]
        line = int(group.id.rpartition("-")[2]) if dialogues else 0
        named = f"{path.name}-{dialogues[line]}" if dialogues else group.dialogue or group.id
        turns = [*group.context, Utterance(group.responder, true)]
        yield group.id, turns, GivenCandidates(named, negatives)


def read_groups_jsonl(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    """Yields the candidates of each line, in order; a line that is not a group is a bad line."""

    def parse(number: int, value: Any) -> list[Candidate]:
        name, responder = (get_field(value, key, str) for key in ("id", "responder"))
        dialogue = get_field(value, "dialogue", str, "")
        _, turns = parse_dialogue(
            {"session_id": "", "turns": get_field(value, "context", list)}, {}
        )
        texts, labels = (get_field(value, key, list) for key in ("candidates", "labels"))
        if not name or not all(isinstance(text, str) for text in texts):
            raise ValueError('expected "id" and all of "candidates" to be texts')
        if len(labels) != len(texts) or not all(type(k) is int and k in (0, 1) for k in labels):
            raise ValueError('expected "labels" to have 0 or 1 for each of "candidates"')
        return [
            Candidate(number, label, tuple(turns), text, responder, name, dialogue)
            for text, label in zip(texts, labels, strict=True)
        ]

    return itertools.chain.from_iterable(read_json_lines(path, bad_lines, parse))


# One candidate a line


def _read_labelled(
    path: pathlib.Path, bad_lines: BadLines, parse: Callable[[list[str]], list[Utterance]]
) -> Iterator[Candidate]:
    """Yields the candidate of each line; `parse` makes turns of its texts, the response last."""

    def convert_line(number: int, line: str) -> Candidate:
        label, *texts = line.split("\t")
        if label.strip() not in ("0", "1") or len(texts) < 2:
            raise ValueError(
                "expected 0 or 1, the context's turns and the response, tab-separated; found "
                f"{len(texts) + 1} field(s), the first {label[:20]!r}"
            )
        *context, response = parse(texts)
        return Candidate(number, int(label), tuple(context), response.text, response.role)

    return convert(read_lines(path, bad_lines), convert_line, path, bad_lines)


# The spaces of the word segmentation. A space between two Latin words or numbers is kept, as it may
# be part of the original text.
_SEGMENTATION = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")


def read_ecd_candidates(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    """Reads the E-commerce Dialogue Corpus as released for response selection (Zhang et al. 2018).

    There are spaces between words. Speakers alternate, and the response is the agent's.
    """

    def parse(texts: list[str]) -> list[Utterance]:
        roles = itertools.cycle(["agent", "customer"])
        plain = (_SEGMENTATION.sub("", " ".join(text.split())) for text in reversed(texts))
        return list(map(Utterance, roles, plain))[::-1]

    return _read_labelled(path, bad_lines, parse)


_TURN_END = re.compile("__eot__", re.IGNORECASE)
_TAG = re.compile("__eo[tus]__", re.IGNORECASE)
_SPEAKER = re.compile(r"\s*<([^\s<>]{1,40})>\s")


def read_ubuntu_candidates(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    """Reads the Ubuntu Dialogue Corpus (Lowe et al. 2015), the tab-separated copy of version 1.

    Texts may have the tags __eou__ (end of utterance) and __eot__ (end of turn). If a context has
    an __eot__, its turns end only there, so that the utterances of a turn become one text;
    otherwise each field is a turn. The tags are removed.

    Speakers alternate: counted back from the response, the turns are b's, a's, b's, ... But if
    every turn of a context begins with a tag such as <ann>, the tags name the speakers, including
    the response's if it has one, and are removed.
    """
    for row in _read_labelled(path, bad_lines, _parse_ubuntu):
        if not row.responder:
            turns = len(row.context)
            named = [t._replace(role="ba"[(turns - n) % 2]) for n, t in enumerate(row.context)]
            row = row._replace(context=tuple(named), responder="b")
        yield row


def _parse_ubuntu(texts: list[str]) -> list[Utterance]:
    """The turns of a line; unless every turn of the context names its speaker, all roles are ""."""
    *fields, response = texts
    if any(map(_TURN_END.search, fields)):
        fields = _TURN_END.split(" ".join(fields))
        if is_blank(_TAG.sub("", fields[-1])):  # nothing follows the last tag
            fields.pop()
    speakers = [_SPEAKER.match(field) for field in fields]
    roles, responder = [speaker[1] for speaker in speakers if speaker], ""
    if fields and len(roles) == len(fields):
        fields = [field[speaker.end() :] for field, speaker in zip(fields, speakers) if speaker]
        if own := _SPEAKER.match(response):
            responder, response = own[1], response[own.end() :]
        else:  # the last speaker before it other than the previous turn's
            others = (role for role in reversed(roles) if role != roles[-1])
            responder = next(others, "unknown")
    else:
        roles = [""] * len(fields)
    plain = (" ".join(_TAG.sub(" ", text).split()) for text in [*fields, response])
    return list(map(Utterance, [*roles, responder], plain))


# Dialogues from such lines


def read_ecd(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields the dialogues that the lines of the E-commerce corpus are windows of.

    Negatives are dropped, and windows of one dialogue are merged (`merge_windows`). Sessions are
    named by file and line.
    """
    return _merge(read_ecd_candidates, path, bad_lines)


def read_ubuntu(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """`read_ecd` for the Ubuntu corpus. If the file names no speakers, a and b alternate in each
    dialogue, a first.
    """
    # Speakers are named only after merging. Either speaker may give a window's response, so named
    # by distance from it, the same turn would have different speakers in two windows.
    read = lambda path, bad_lines: _read_labelled(path, bad_lines, _parse_ubuntu)  # noqa: E731
    for name, turns in _merge(read, path, bad_lines):
        yield name, [t._replace(role=t.role or "ab"[n % 2]) for n, t in enumerate(turns)]


def _merge(
    read: CandidateReader, path: pathlib.Path, bad_lines: BadLines
) -> Iterator[tuple[str, list[Utterance]]]:
    for number, turns in merge_windows(functools.partial(_read_windows, read, path), bad_lines):
        yield f"{path.name}-{number}", turns


def _read_windows(
    read: CandidateReader, path: pathlib.Path, bad_lines: BadLines
) -> Iterator[Window]:
    """Yields the turns of each true response, unless the file itself names the dialogues."""
    for row in read(path, bad_lines):
        if row.label and not row.group:
            yield row.line, [*row.context, Utterance(row.responder, row.response)]
