"""The corpus formats: readers of dialogue files, by the name that the option `format` takes.

Code outside the package can register its own, see docs/extending.md.
"""

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import candidates, published, reading
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines
from dcse_tf.options import is_edited

Reader = Callable[[pathlib.Path, BadLines], Iterator[tuple]]


@dataclasses.dataclass(frozen=True)
class Format:
    """How a kind of file is read."""

    # Reads a path and yields (session id, utterances in order), with `GivenCandidates` as a third
    # item if the file has candidates. It reports unusable lines to the `BadLines` and continues.
    read: Callable[..., Iterator[tuple]]
    help: str
    has_intents: bool = False  # whether utterances come with intents
    has_acts: bool = False
    # The names that the option `columns` accepts; the reader takes them as a third argument, a
    # mapping to the names in the file.
    columns: Sequence[str] = ()
    read_candidates: candidates.GroupReader | None = None  # of files of candidates, if any


FORMATS: dict[str, Format] = {}
CANDIDATE_FORMATS: dict[str, Format] = {}  # those of them that files of groups have


def register_format(name: str, reader: Reader, *, help: str = "", **more: Any) -> None:
    """Adds a corpus format, which every option called `format` then accepts; ValueError if another
    has its name. A reader that was edited, of the same module and name, replaces the earlier one.

    Args:
        name: the value of the option.
        reader: see `Format`.
        help: one line about the files, by default the first paragraph of the reader's docstring.
        **more: further attributes of `Format`, such as `has_intents=True`, which retrieval sets
            need. With `read_candidates`, the format also reads grouped candidates, and sessions
            with their negatives as the format NAME_candidates.
    """
    if name in FORMATS and not is_edited(reader, FORMATS[name].read):
        raise ValueError(f"there is a corpus format {name!r} already")
    paragraph = (inspect.getdoc(reader) or "").partition("\n\n")[0]
    help = help or " ".join(paragraph.split()).removesuffix(".")
    if not reader.__module__.startswith("dcse_tf."):
        reader = functools.update_wrapper(functools.partial(_check_sessions, reader, name), reader)
    FORMATS[name] = kind = Format(reader, help, **more)
    if kind.read_candidates:
        CANDIDATE_FORMATS[name] = kind
        FORMATS["candidates" if name == "jsonl" else f"{name}_candidates"] = Format(
            functools.partial(candidates.read_given_sessions, kind.read_candidates),
            f"files of groups in the format {name}: sessions with negatives for their last turn",
        )


def _check_sessions(read: Callable[..., Any], name: str, *given: Any) -> Iterator[tuple]:
    """Yields the sessions of a reader from outside the package; InputError for anything else."""
    for session in read(*given):
        match session:
            case (str(), [*turns], *_) if all(map(_is_utterance, turns)):
                yield session
            case _:
                wanted = "a text as id, and a list of Utterance of texts, with tuples of labels"
                raise InputError(f"`format`={name}: expected {wanted}; found {session!r:.300}")


def _is_utterance(value: object) -> bool:
    fields = str, str, tuple, tuple
    return isinstance(value, Utterance) and all(map(isinstance, value, fields))


def read_groups(
    path: pathlib.Path, format: str, bad_lines: BadLines, several_positives: bool = False
) -> Iterator[candidates.CandidateGroup]:
    """Yields the groups of a file of candidates, in one of `CANDIDATE_FORMATS`, each with a true
    response, or several if that is allowed, and a negative. The others count as bad lines.
    """
    read = CANDIDATE_FORMATS[format].read_candidates
    assert read
    return (group for _, group in candidates.check_groups(read, path, bad_lines, several_positives))


_LABELS: Any = {"has_intents": True, "has_acts": True}
register_format("session_tsv", published.read_session_tsv)
register_format(
    "jsonl", reading.read_jsonl, read_candidates=candidates.read_groups_jsonl, **_LABELS
)
register_format(
    "table",
    lambda path, *rest: reading.read_tables([path], *rest),
    help="CSV with any delimiter, or Parquet, with a turn a row: session_id, role, text and, if "
    "rows are not in order, time; with `spark_master` no CSV, but Spark tables and ORC, too; "
    "`columns` if the columns have other names",
    columns=reading.NAMES,
)
register_format("messages", reading.read_messages, columns=tuple(reading.KEYS), **_LABELS)
register_format("jddc", published.read_jddc)
register_format("mdc", published.read_mdc, has_intents=True)
register_format(
    "ecd",
    candidates.ECD.read_dialogues,
    help="{train,valid,test} of the E-commerce corpus, as released for response selection",
    read_candidates=candidates.ECD.read_groups,
)
register_format("dialoguecse", published.read_dialoguecse)
register_format(
    "ubuntu",
    candidates.UBUNTU.read_dialogues,
    help="{train,valid,test}.txt of the Ubuntu corpus for response selection, tab-separated",
    read_candidates=candidates.UBUNTU.read_groups,
)
register_format("mutual", candidates.read_mutual, read_candidates=candidates.read_mutual_groups)
register_format("chitchat", published.read_chitchat)
register_format("sgd", published.read_sgd, **_LABELS)
