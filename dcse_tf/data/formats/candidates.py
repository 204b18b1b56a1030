"""Files of contexts with candidate responses: one candidate a line, or a group in a JSON object.

A line for a candidate has a label (1: the true response), the context's turns and the response,
tab-separated; a context is repeated for each of its candidates. A group is

    {"id": "7:3", "dialogue": "7", "context": [{"role": "a", "text": "..."}], "responder": "b",
     "candidates": ["...", "..."], "labels": [1, 0]}

"dialogue" may be left out. Groups of one dialogue share its contexts, so they go to the same split,
and their responses are no negatives of each other. In a file of lines, contexts that overlap are
windows of one dialogue.
"""

import collections
import dataclasses
import itertools
import operator
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dcse_tf.data.dialogue import GivenCandidates, Utterance, is_blank
from dcse_tf.data.formats import reading
from dcse_tf.data.formats.reading import Sessions, get_field
from dcse_tf.files import hash_number
from dcse_tf.input_files import BadLines, read_lines


@dataclasses.dataclass(frozen=True)
class CandidateGroup:
    """A context and its candidate responses."""

    id: str  # from the file, or else made of the file's name and a line number
    context: tuple[Utterance, ...]  # the turns before the response, in order
    candidates: tuple[str, ...]  # their texts, in the file's order
    labels: tuple[int, ...]  # 1 for a true response, 0 for a negative
    responder: str  # the role of the response's speaker
    dialogue: str = ""  # id of the dialogue that the group is from; "" if unknown

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
        return [*self.context, Utterance(self.responder, self.candidates[self.labels.index(1)])]


# Yields groups with their line numbers; the last argument says whether a group may have several
# true responses.
GroupReader = Callable[[pathlib.Path, BadLines, bool], Iterator[tuple[int, CandidateGroup]]]


def check_groups(
    read: GroupReader, path: pathlib.Path, bad_lines: BadLines, several_positives: bool = False
) -> Iterator[tuple[int, CandidateGroup]]:
    """Yields those groups of a file that have a true response and a negative, and an id of their
    own; the others count as bad lines. Turns with nothing to read are left out.
    """
    known: set[str] = set()
    advice = "" if several_positives else "; evaluate's `several_positives` allows several"

    def check(number: int, group: CandidateGroup) -> tuple[int, CandidateGroup]:
        context = tuple(turn for turn in group.context if not is_blank(turn.text))
        if not context or any(map(is_blank, itertools.compress(group.candidates, group.labels))):
            raise ValueError(f"the {'response' if context else 'context'} is empty")
        if len(set(group.labels)) < 2:
            told = "expected candidates with label 1 and with label 0, found only one of them"
            raise ValueError(told + (advice if any(group.labels) else ""))
        if (true := sum(group.labels)) > 1 and not several_positives:
            raise ValueError(f"expected one candidate with label 1, found {true}{advice}")
        if group.id in known:
            raise ValueError(f"the id {group.id!r} is another group's")
        known.add(group.id)
        return number, dataclasses.replace(group, context=context)

    return reading.convert(read(path, bad_lines, several_positives), check, path, bad_lines)


def read_given_sessions(
    read: GroupReader, path: pathlib.Path, bad_lines: BadLines
) -> Iterator[tuple[str, list[Utterance], GivenCandidates]]:
    """Yields a session for each group: the context, the true response, and the group's negatives.
    Dialogues that the file does not name are those that `merge_windows` finds.
    """
    # The second reading tells of bad lines.
    groups = check_groups(read, path, BadLines(sys.maxsize, 0, bad_lines.encoding))
    # Speakers may be named by their distance from the response, so otherwise in every window.
    unnamed = (
        (group.id, [turn._replace(role="") for turn in group.window])
        for _, group in groups
        if not group.dialogue
    )
    names = {name: own[0] for own, _ in merge_windows(unnamed) for name in own}
    for _, group in check_groups(read, path, bad_lines):
        dialogue = group.dialogue or names.get(group.id, group.id)
        negatives = itertools.compress(group.candidates, map(operator.not_, group.labels))
        yield group.id, group.window, GivenCandidates(dialogue, tuple(negatives))


def read_groups_jsonl(
    path: pathlib.Path, bad_lines: BadLines, several_positives: bool = False
) -> Iterator[tuple[int, CandidateGroup]]:
    """See `GroupReader`; a line that is not a group is a bad line."""

    def parse(number: int, value: Any) -> tuple[int, CandidateGroup]:
        name, responder = (get_field(value, key, str) for key in ("id", "responder"))
        dialogue = get_field(value, "dialogue", str, "")
        _, turns = reading.parse_dialogue(get_field(value, "context", list), {})
        texts, labels = (tuple(get_field(value, key, list)) for key in ("candidates", "labels"))
        if not name or not all(isinstance(text, str) for text in texts):
            raise ValueError('expected "id" and all of "candidates" to be texts')
        if len(labels) != len(texts) or not all(type(k) is int and k in (0, 1) for k in labels):
            raise ValueError('expected "labels" to have 0 or 1 for each of "candidates"')
        return number, CandidateGroup(name, tuple(turns), texts, labels, responder, dialogue)

    return reading.read_json_lines(path, bad_lines, parse)


@dataclasses.dataclass(frozen=True)
class CandidateLines:
    """Readers of files with one candidate a line."""

    parse: Callable[[list[str]], list[Utterance]]  # makes turns of texts, the response last
    # Whether speakers are named only after windows have been merged, a and b in turn. If either may
    # give a window's response, speakers named by their distance from it would be different ones for
    # the same turn in two windows.
    name_afterwards: bool = False

    def _read(
        self, path: pathlib.Path, bad_lines: BadLines
    ) -> Iterator[tuple[int, int, list[Utterance], Utterance]]:
        """Yields (line number, label, context, response) of each line."""

        def parse(number: int, line: str) -> tuple[int, int, list[Utterance], Utterance]:
            label, *texts = line.split("\t")
            if label.strip() not in ("0", "1") or len(texts) < 2:
                told = f"{len(texts) + 1} field(s), the first {label[:20]!r}"
                wanted = "0 or 1, the context's turns and the response, tab-separated"
                raise ValueError(f"expected {wanted}; found {told}")
            *context, response = self.parse(texts)
            return number, int(label), context, response

        return reading.convert(read_lines(path, bad_lines), parse, path, bad_lines)

    def read_groups(
        self, path: pathlib.Path, bad_lines: BadLines, several_positives: bool = False
    ) -> Iterator[tuple[int, CandidateGroup]]:
        """See `GroupReader`. Neighbouring lines with the same context are a group, but another true
        response begins another group unless there may be several in one.
        """
        for context, same in itertools.groupby(self._read(path, bad_lines), operator.itemgetter(2)):
            members = list(same)
            positives = [place for place, (_, label, *_) in enumerate(members) if label]
            starts = [0, *positives[1:]] if not several_positives else [0]
            for begin, end in itertools.pairwise([*starts, len(members)]):
                lines, labels, _, responses = zip(*members[begin:end], strict=True)
                true = responses[labels.index(max(labels))]
                texts = tuple(response.text for response in responses)
                name = f"{path.name}-{lines[0]}"
                yield lines[0], CandidateGroup(name, tuple(context), texts, labels, true.role)

    def read_dialogues(self, path: pathlib.Path, bad_lines: BadLines) -> Sessions:
        """Yields the dialogues that the lines are windows of (`merge_windows`), named by file and
        line, without negatives.
        """
        rows = self._read(path, bad_lines)
        windows = ((line, [*context, response]) for line, label, context, response in rows if label)
        if self.name_afterwards:
            windows = ((line, [t._replace(role="") for t in turns]) for line, turns in windows)
        for lines, turns in merge_windows(windows):
            if self.name_afterwards:
                turns = [turn._replace(role="ab"[n % 2]) for n, turn in enumerate(turns)]
            yield f"{path.name}-{lines[0]}", turns


# The spaces of the word segmentation. A space between two Latin words or numbers is kept, as it may
# be part of the original text.
_SEGMENTATION = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")


def _parse_ecd(texts: list[str]) -> list[Utterance]:
    roles = itertools.cycle(["agent", "customer"])
    plain = (_SEGMENTATION.sub("", " ".join(text.split())) for text in reversed(texts))
    return list(map(Utterance, roles, plain))[::-1]


# The E-commerce Dialogue Corpus as released for response selection (Zhang et al. 2018): spaces
# between words; speakers alternate, and the response is the agent's.
ECD = CandidateLines(_parse_ecd)

_TURN_END = re.compile("__eot__", re.IGNORECASE)
_TAG = re.compile("__eo[tus]__", re.IGNORECASE)


def _parse_ubuntu(texts: list[str]) -> list[Utterance]:
    """The turns of a line, whose speakers alternate, and the response is b's.

    Texts may have the tags __eou__ (end of utterance) and __eot__ (end of turn). If a context has
    an __eot__, its turns end only there; otherwise each field is a turn. The tags are removed.
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
UBUNTU = CandidateLines(_parse_ubuntu, name_afterwards=True)

_MUTUAL_TURN = re.compile(r"(?:^|\s)([mf]) [:;]\s")


def _split_mutual(text: Any) -> list[Utterance]:
    """The turns of a text such as "m : hello . f : hi , tom ."."""
    start, *parts = _MUTUAL_TURN.split(text if isinstance(text, str) else "")
    if start.strip() or not parts:
        raise ValueError(f'expected turns that begin with "m : " or "f : ", found {text!r:.60}')
    return [Utterance(*turn) for turn in zip(parts[::2], map(str.strip, parts[1::2]), strict=True)]


def read_mutual_groups(
    path: pathlib.Path, bad_lines: BadLines, several_positives: bool = False
) -> Iterator[tuple[int, CandidateGroup]]:
    """See `GroupReader`, of MuTual (Cui et al. 2020): {"article", "options", "answers", "id"}.

    Contexts of one dialogue have different lengths, down to one turn, by which it is named.
    """

    def parse(number: int, value: Any) -> tuple[int, CandidateGroup]:
        name, answer = (get_field(value, key, str) for key in ("id", "answers"))
        turns = _split_mutual(get_field(value, "article", str))
        options = [_split_mutual(text) for text in get_field(value, "options", list)]
        letters = "ABCDEFGHIJ"[: len(options)]
        if len(answer) != 1 or answer not in letters or any(len(each) != 1 for each in options):
            got = f"found {answer!r:.20} and {[*map(len, options)]} turns"
            raise ValueError(f'expected "answers" to be one of {letters}, a turn an option; {got}')
        texts = tuple(turn.text for (turn,) in options)
        labels = tuple(int(letter == answer) for letter in letters)
        dialogue = f"{hash_number(repr(turns[0])):016x}"
        responder = options[letters.index(answer)][0].role
        return number, CandidateGroup(name, tuple(turns), texts, labels, responder, dialogue)

    return reading.read_json_lines(path, bad_lines, parse)


def read_mutual(path: pathlib.Path, bad_lines: BadLines) -> Sessions:
    """{train,dev}.jsonl of MuTual: an article, four options, and the letter of the right one.

    Yields its dialogues, each once and without the options of its questions.
    """
    groups = read_mutual_groups(path, bad_lines)
    for lines, turns in merge_windows((line, [*group.context]) for line, group in groups):
        yield f"{path.name}-{lines[0]}", turns


# Windows: a line has the turns around a response. As sessions of their own, lines of one dialogue
# would count turns twice, and become negatives of each other.

# A window that begins with the last turns of another continues it, if they share at least this many
# turns and characters; less may be greetings and thanks, which all dialogues share.
_JOINING_TURNS = 3
_JOINING_CHARACTERS = 10


def merge_windows(
    windows: Iterable[tuple[Any, list[Utterance]]],
) -> Iterator[tuple[list[Any], list[Utterance]]]:
    """Yields every dialogue once: the numbers, or names, of its windows, the first being that of
    the one that begins it, and its turns.

    A window whose turns are all contained in another, consecutively, is dropped. A window that
    begins with the last three or more turns of another (of ten or more characters) is joined to it.
    Any smaller overlap counts as a different dialogue.
    """
    known: dict[tuple[str, str], int] = {}
    numbers: list[Any] = []
    coded: list[tuple[int, ...]] = []  # the windows, each turn as an index into the distinct ones
    for number, turns in windows:
        numbers.append(number)
        coded.append(tuple(known.setdefault(turn[:2], len(known)) for turn in turns))
    utterances = [Utterance(*turn) for turn in known]

    containers, inside = _find_containers(coded), collections.defaultdict[int, list[int]](list)
    for window in containers:
        inside[_follow(containers, window)].append(numbers[window])
    kept = [window for window in range(len(coded)) if window not in containers]
    follower, shared = _find_followers(coded, kept, [len(turn.text) for turn in utterances])

    chains = []  # each dialogue's windows
    for head in set(kept) - set(follower.values()):
        chain = [head]
        while chain[-1] in follower:
            chain.append(follower[chain[-1]])
        chains.append(chain)
    for chain in sorted(chains, key=max):  # in the order in which their last lines are read
        own = [number for window in chain for number in (numbers[window], *inside[window])]
        codes = (code for window in chain for code in coded[window][shared.get(window, 0) :])
        yield own, [utterances[code] for code in codes]


def _follow(next_of: Mapping[int, int], window: int) -> int:
    """The last window that one leads to."""
    while window in next_of:
        window = next_of[window]
    return window


def _find_containers(windows: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """Maps each window that is inside another to it, or to the first of several equal ones."""
    first: dict[tuple[int, ...], int] = {}
    containers = {}
    for number, turns in enumerate(windows):
        if first.setdefault(turns, number) != number:
            containers[number] = first[turns]
    sizes = sorted(set(map(len, first)))
    for turns, number in first.items():
        for size in sizes[: sizes.index(len(turns))]:
            for start in range(len(turns) - size + 1):
                if (inside := first.get(turns[start : start + size])) is not None:
                    containers.setdefault(inside, number)
    return containers


def _find_followers(
    windows: Sequence[tuple[int, ...]], kept: Sequence[int], characters: Sequence[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Finds the window that continues each of those `kept`, at most one, and how many turns such a
    window shares with the one before, given the length of each distinct turn in characters. Longer
    overlaps are matched first; among equal ones, the first in the file.
    """
    follower: dict[int, int] = {}
    shared: dict[int, int] = {}
    longest = max((len(windows[window]) for window in kept), default=0)
    for size in range(longest - 1, _JOINING_TURNS - 1, -1):
        longer = [window for window in kept if len(windows[window]) > size]
        beginnings: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)
        for window in longer:
            if window not in shared:
                beginnings[windows[window][:size]].append(window)
        for window in longer:
            overlap = windows[window][-size:]
            if window in follower or overlap not in beginnings:
                continue
            if sum(characters[turn] for turn in overlap) < _JOINING_CHARACTERS:
                continue
            # One whose chain ends with this window would close a circle.
            able = (each for each in beginnings[overlap] if _follow(follower, each) != window)
            if (choice := next(able, None)) is not None:
                beginnings[overlap].remove(choice)
                follower[window], shared[choice] = choice, size
    return follower, shared
