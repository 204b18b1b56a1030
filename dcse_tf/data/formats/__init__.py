"""The corpus formats: readers of dialogue files, by the name that the option `format` takes.

Code outside the package can register its own:

    from dcse_tf import register_format
    from dcse_tf.data.dialogue import Utterance
    from dcse_tf.input_files import read_lines

    def read_pairs(path, bad_lines):
        for number, line in read_lines(path, bad_lines):
            question, tab, answer = line.partition("\\t")
            if tab:
                yield str(number), [Utterance("a", question), Utterance("b", answer)]
            else:
                bad_lines.report(path, number, "expected question<TAB>answer")

    register_format("pairs", read_pairs, help="a question and its answer per line")
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dcse_tf.data.dialogue import GivenCandidates, Utterance
from dcse_tf.data.formats import candidates, messages, published, table
from dcse_tf.input_files import BadLines

# An id and utterances and, in some formats, candidates for the last utterance.
RawSession = tuple[str, list[Utterance]] | tuple[str, list[Utterance], GivenCandidates]
Reader = Callable[[pathlib.Path, BadLines], Iterator[RawSession]]


@dataclasses.dataclass(frozen=True)
class Format:
    """How a kind of file is read.

    Attributes:
        read: reads a path and yields (session id, utterances in order), with `GivenCandidates` as a
            third item if the file has candidates. It reports unusable lines to the `BadLines` and
            continues.
        help: what the files are, in one line.
        has_intents, has_acts: whether utterances come with intents, with dialogue acts.
        has_candidates: whether sessions come with candidates for their last turn.
        columns: the names that the option `columns` accepts; the reader takes them as a third
            argument, a mapping to the names in the file.
    """

    read: Callable[..., Iterator[RawSession]]
    help: str
    has_intents: bool = False
    has_acts: bool = False
    has_candidates: bool = False
    columns: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class CandidateFormat:
    """How a kind of file of grouped candidates is read.

    Attributes:
        read: yields the candidates of a file, those of a group consecutively.
        help: what the files are, in one line.
        line_each: whether each line is one candidate, so that a number of lines can define groups.
    """

    read: candidates.CandidateReader
    help: str
    line_each: bool = False


FORMATS: dict[str, Format] = {}
CANDIDATE_FORMATS = {
    "jsonl": CandidateFormat(
        candidates.read_groups_jsonl,
        '{"id", "context": [{"role", "text"}], "responder", "candidates", "labels"} per line, as '
        "build_candidates writes them",
    ),
    "ecd": CandidateFormat(
        candidates.read_ecd_candidates, "{train,valid,test} of the E-commerce corpus", True
    ),
    "ubuntu": CandidateFormat(
        candidates.read_ubuntu_candidates,
        "{train,valid,test}.txt of the Ubuntu corpus, tab-separated",
        True,
    ),
}


def register_format(name: str, reader: Reader, *, help: str, **has: Any) -> None:
    """Adds a corpus format, which every option called `format` then accepts.

    Args:
        name: the value of the option.
        reader: see `Format`.
        help: what the files are, in one line for `--help`.
        **has: `has_intents`, which retrieval sets need, `has_acts` and `has_candidates`, see
            `Format`; False if not given.

    Raises:
        ValueError: another format has the name.
    """
    if name in FORMATS:
        raise ValueError(f"there is a corpus format {name!r} already")
    FORMATS[name] = Format(reader, help, **has)


def read_groups(
    path: pathlib.Path, format: str, bad_lines: BadLines, **settings: Any
) -> Iterator[candidates.CandidateGroup]:
    """Yields the groups of a file of candidates.

    Args:
        path: the file.
        format: a name in `CANDIDATE_FORMATS`.
        bad_lines: counts unusable lines and groups.
        **settings: see `group_candidates`.
    """
    read = CANDIDATE_FORMATS[format].read
    return candidates.group_candidates(read, path, bad_lines, **settings)


def _read_table(path: pathlib.Path, bad_lines: BadLines, *columns: Any) -> Iterator[RawSession]:
    return table.read_tables([path], bad_lines, *columns)


_LABELS = {"has_intents": True, "has_acts": True}
_LISTED = tuple(messages.KEYS)
FORMATS |= {
    "session_tsv": Format(
        published.read_session_tsv,
        "{session_id}\\t{role}\\t{text} per line, the lines of a session together",
    ),
    "jsonl": Format(
        messages.read_jsonl,
        '{"session_id", "turns": [{"role", "text"}]} per line, a turn may have "intents", "acts"',
        **_LABELS,
    ),
    "table": Format(
        _read_table,
        "CSV with any delimiter, or Parquet, with a turn a row: session_id, role, text and, if "
        "rows are not in order, time; with `spark_master` also Spark tables and ORC; `columns` if "
        "the columns have other names",
        columns=tuple(dict.fromkeys((*table.NAMES, *_LISTED))),
        **_LABELS,
    ),
    "messages": Format(
        messages.read_messages,
        '{"messages": [{"role", "content"}]} or {"conversations": [{"from", "value"}]} per line, '
        "in one JSON array or in Parquet; or lists of texts",
        columns=_LISTED,
        **_LABELS,
    ),
    "jddc": Format(published.read_jddc, "chat.txt of the JD corpus, 7 fields"),
    "mdc": Format(
        published.read_mdc,
        "{movie,restaurant,taxi}_all.tsv of the Microsoft Dialogue Corpus",
        has_intents=True,
    ),
    "ecd": Format(
        candidates.read_ecd,
        "train.txt of the response-selection release of the E-commerce corpus",
    ),
    "dialoguecse": Format(published.read_dialoguecse, "train_data.txt of the paper's authors"),
    "ubuntu": Format(
        candidates.read_ubuntu,
        "train.txt of the Ubuntu corpus for response selection, tab-separated",
    ),
    "chitchat": Format(
        published.read_chitchat, "dataset.json of the PyPI package chitchat-dataset"
    ),
    "sgd": Format(published.read_sgd, "dialogues_*.json of Schema-Guided Dialogue", **_LABELS),
}
FORMATS |= {
    "candidates" if name == "jsonl" else f"{name}_candidates": Format(
        functools.partial(candidates.read_given_sessions, kind.read),
        f"{kind.help}; sessions with their negatives",
        has_candidates=True,
    )
    for name, kind in CANDIDATE_FORMATS.items()
}
