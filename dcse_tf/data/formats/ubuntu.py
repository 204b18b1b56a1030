"""The Ubuntu Dialogue Corpus (Lowe et al. 2015), as released for response selection.

The tab-separated copy of version 1 has one line per candidate: a label, the context's utterances
and a response. Lowe's CSV files have a header: Context, Utterance, Label for training; Context,
Ground Truth Utterance, Distractor_0, ... for validation and test.

The copy of version 1 shared by Gu et al. (2019, 2020) has one line per context, tab-separated: a
number, the context with __EOS__ between utterances, the ids of its true responses and those of its
other responses. Several ids are separated by |; NA means none. The texts are in responses.txt in
the same folder, an id and a text per line. Utterances between __EOS__ are treated like the
tab-separated fields of the other copy.

All copies may have the tags __eou__ (end of utterance) and __eot__ (end of turn) in a text, in
upper or lower case. If a context has an __eot__, its turns end only there, so that the utterances
of a turn become one text; otherwise each field is a turn. The tags are removed from the texts.

Speakers alternate: counted back from the response, the turns are b's, a's, b's, ... But if every
turn of a context begins with a tag such as <ann>, the tags name the speakers, including the
response's if it has one, and are removed from the texts.
"""

import pathlib
import re
from collections.abc import Callable, Iterable, Iterator

from dcse_tf.data.dialogue import Utterance, is_blank
from dcse_tf.data.formats import groups
from dcse_tf.data.formats.labelled_lines import Candidate, split_lines
from dcse_tf.data.formats.reading import read_table
from dcse_tf.data.formats.response_windows import Window, merge_windows
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines, read_lines

_TURN_END = re.compile("__eot__", re.IGNORECASE)
_UTTERANCE_END = re.compile("__eos__", re.IGNORECASE)
_TAG = re.compile("__eo[tus]__", re.IGNORECASE)
_SPEAKER = re.compile(r"\s*<([^\s<>]{1,40})>\s")
_UNKNOWN = "unknown"  # the responder, if the context has a single speaker
_LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
_TRAIN = ["Context", "Utterance", "Label"]
_TEST = ["Context", "Ground Truth Utterance"]


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields the dialogues that the tab-separated lines are windows of.

    Negatives are dropped, and windows of one dialogue are merged (`response_windows`). If the file
    names no speakers, a and b alternate in each dialogue, a first. Sessions are named by file and
    line.
    """
    yield from _merge(path, bad_lines, _read_lines)


def read_csv_sessions(
    path: pathlib.Path, bad_lines: BadLines
) -> Iterator[tuple[str, list[Utterance]]]:
    """`read_sessions` for Lowe's CSV files."""
    yield from _merge(path, bad_lines, _read_rows)


def read_ids_sessions(
    path: pathlib.Path, bad_lines: BadLines
) -> Iterator[tuple[str, list[Utterance]]]:
    """`read_sessions` for the copy with response ids."""
    yield from _merge(path, bad_lines, _read_ids)


def read_candidates(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    """Yields the candidate of each tab-separated line, in order."""
    yield from map(_name_speakers, _read_lines(path, bad_lines))


def read_csv_candidates(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    """Yields the candidates of each row of Lowe's CSV files, in order.

    In the validation and test files each row is a group, the true response first. In the training
    file neighbouring rows with the same context are a group.
    """
    yield from map(_name_speakers, _read_rows(path, bad_lines))


def read_ids_candidates(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    """Yields the candidates of the copy with ids. Each line is a group, true responses first."""
    yield from map(_name_speakers, _read_ids(path, bad_lines))


def read_given_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[groups.GivenSession]:
    """Yields a session for each true response of the tab-separated lines, with its negatives."""
    yield from groups.read_labelled_sessions(
        path, bad_lines, read_candidates, lambda bad: _windows(_read_lines(path, bad))
    )


def _read_lines(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    for number, label, texts in split_lines(path, bad_lines):
        yield _parse(number, label, texts[:-1], texts[-1])


def _read_rows(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    rows = read_table(path, bad_lines)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    if header != _TRAIN and (header[:2] != _TEST or len(header) < 3):
        raise InputError(
            f"{path}:1: expected the header {','.join(_TRAIN)} or {','.join(_TEST)},Distractor_0,"
            f"...; found {','.join(header)[:100]!r}"
        )
    for number, row in rows:
        if len(row) != len(header):
            bad_lines.report(path, number, f"expected {len(header)} field(s), found {len(row)}")
        elif header != _TRAIN:
            for place, response in enumerate(row[1:]):
                name = f"{path.name}-{number}"
                yield _parse(number, int(place == 0), row[:1], response, name)
        elif row[2].strip() in _LABELS:
            yield _parse(number, _LABELS[row[2].strip()], row[:1], row[1])
        else:
            bad_lines.report(path, number, f"expected a Label of 0 or 1, found {row[2][:20]!r}")


def _read_ids(path: pathlib.Path, bad_lines: BadLines) -> Iterator[Candidate]:
    texts = _read_responses(path, bad_lines)
    for number, line in read_lines(path, bad_lines):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != 4:
            bad_lines.report(
                path,
                number,
                "expected a number, the context, and the ids of its true and its other responses, "
                f"tab-separated; found {len(fields)} field(s)",
            )
            continue
        true, others = ([i for i in ids.split("|") if i != "NA"] for ids in fields[2:])
        unknown = [i for i in (*true, *others) if i not in texts]
        if unknown:
            bad_lines.report(path, number, f"no response {unknown[0]!r} in responses.txt")
            continue
        if not (true or others):
            bad_lines.report(path, number, "expected the id of a response, found NA twice")
        turns = [turn for turn in _UTTERANCE_END.split(fields[1]) if turn.strip()]
        for place, response in enumerate((*true, *others)):
            label, name = int(place < len(true)), f"{path.name}-{number}"
            yield _parse(number, label, turns, texts[response], name)


def _read_responses(corpus: pathlib.Path, bad_lines: BadLines) -> dict[str, str]:
    path = corpus.with_name("responses.txt")
    if not path.is_file():
        raise InputError(f"{corpus}: expected {path.name} beside it, with the responses' texts")
    texts = {}
    for number, line in read_lines(path, bad_lines):
        name, tab, text = line.partition("\t")
        if tab and "\t" not in text:
            texts[name.strip()] = text
        else:
            bad_lines.report(path, number, "expected a response's id and its text, tab-separated")
    return texts


def _merge(
    path: pathlib.Path,
    bad_lines: BadLines,
    read: Callable[[pathlib.Path, BadLines], Iterator[Candidate]],
) -> Iterator[tuple[str, list[Utterance]]]:
    for number, turns in merge_windows(lambda bad: _windows(read(path, bad)), bad_lines):
        # Speakers are named only after merging. Either speaker may give a window's response, so
        # named by distance from it, the same turn would have different speakers in two windows.
        named = [turn.role or "ab"[place % 2] for place, turn in enumerate(turns)]
        yield f"{path.name}-{number}", list(map(Utterance, named, (turn.text for turn in turns)))


def _windows(rows: Iterable[Candidate]) -> Iterator[Window]:
    for row in rows:
        if row.label:
            yield row.line, [*row.context, Utterance(row.responder, row.response)]


def _name_speakers(row: Candidate) -> Candidate:
    """Gives the turns alternating speakers if the file does not name them."""
    if row.responder:
        return row
    turns = len(row.context)
    roles = ["ba"[(turns - place) % 2] for place in range(turns)]
    texts = (turn.text for turn in row.context)
    return row._replace(context=tuple(map(Utterance, roles, texts)), responder="b")


def _parse(line: int, label: int, fields: list[str], response: str, group: str = "") -> Candidate:
    """Parses a candidate. Unless every turn of the context names its speaker, all roles are ""."""
    if any(_TURN_END.search(field) for field in fields):
        fields = _TURN_END.split(" ".join(fields))
        if is_blank(_clean(fields[-1])):  # nothing follows the last tag
            fields.pop()
    speakers = [_SPEAKER.match(field) for field in fields]
    roles = [speaker[1] for speaker in speakers if speaker]
    responder = ""
    if fields and len(roles) == len(fields):
        fields = [field[speaker.end() :] for field, speaker in zip(fields, speakers) if speaker]
        own = _SPEAKER.match(response)
        if own:
            responder, response = own[1], response[own.end() :]
        else:  # the last speaker before it other than the previous turn's
            others = (role for role in reversed(roles) if role != roles[-1])
            responder = next(others, _UNKNOWN)
    else:
        roles = [""] * len(fields)
    context = tuple(map(Utterance, roles, map(_clean, fields)))
    return Candidate(line, label, context, _clean(response), responder, group)


def _clean(text: str) -> str:
    return " ".join(_TAG.sub(" ", text).split())
