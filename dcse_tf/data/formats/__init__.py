"""The corpus formats: readers of dialogue files, by the name that the option `format` takes.

A format is a module with a reader, registered here. Code outside the package can register its own:

    from dcse_tf.data.dialogue import Utterance
    from dcse_tf.data.formats import register_format
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
import pathlib
from collections.abc import Callable, Iterator

from dcse_tf.data.dialogue import GivenCandidates, Utterance
from dcse_tf.data.formats import (
    chitchat,
    crosswoz,
    dialoguecse,
    ecd,
    groups,
    jddc,
    jsonl,
    labelled,
    mdc,
    messages,
    session_tsv,
    sgd,
    table,
    ubuntu,
)
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
        has_intents: whether utterances come with intents.
        has_acts: whether utterances come with dialogue acts.
        has_candidates: whether sessions come with candidates for their last turn.
    """

    read: Reader
    help: str
    has_intents: bool = False
    has_acts: bool = False
    has_candidates: bool = False


FORMATS: dict[str, Format] = {}


def register_format(
    name: str,
    reader: Reader,
    *,
    help: str,
    has_intents: bool = False,
    has_acts: bool = False,
    has_candidates: bool = False,
) -> None:
    """Adds a corpus format, which every option called `format` then accepts.

    Args:
        name: the value of the option.
        reader: see `Format`.
        help: what the files are, in one line for `--help`.
        has_intents: whether utterances come with intents, which retrieval sets need.
        has_acts: whether utterances come with dialogue acts.
        has_candidates: whether sessions come with candidates for their last turn.

    Raises:
        ValueError: another format has the name.
    """
    if name in FORMATS:
        raise ValueError(f"there is a corpus format {name!r} already")
    FORMATS[name] = Format(reader, help, has_intents, has_acts, has_candidates)


register_format(
    "session_tsv",
    session_tsv.read_sessions,
    help="{session_id}\\t{role}\\t{text} per line, the lines of a session together",
)
register_format(
    "jsonl",
    jsonl.read_sessions,
    help='{"session_id", "turns": [{"role", "text"}]} per line, a turn may have "intents", "acts"',
    has_intents=True,
    has_acts=True,
)
register_format(
    "table",
    table.read_sessions,
    help="CSV with any delimiter, or Parquet, with a turn a row: session_id, role, text and, if "
    "rows are not in order, time; or id and reply_to instead of session_id; with `spark_master` "
    "also Spark tables and ORC; `columns` if the columns have other names",
    has_intents=True,
    has_acts=True,
)
register_format(
    "messages",
    messages.read_sessions,
    help='{"messages": [{"role", "content"}]} or {"conversations": [{"from", "value"}]} per line, '
    "in one JSON array or in Parquet; lists of texts; lines of texts that end in __eou__",
    has_intents=True,
    has_acts=True,
)
register_format(
    "labelled",
    labelled.read_sessions,
    help="CSV or TSV of sentences and labels, for the task labelled: each label is a session",
    has_intents=True,
)
register_format(
    "chitchat",
    chitchat.read_sessions,
    help="dataset.json of the PyPI package chitchat-dataset",
)
register_format(
    "mdc",
    mdc.read_sessions,
    help="{movie,restaurant,taxi}_all.tsv of the Microsoft Dialogue Corpus",
    has_intents=True,
)
register_format("jddc", jddc.read_sessions, help="chat.txt of the JD corpus, 7 fields")
register_format(
    "ecd",
    ecd.read_sessions,
    help="train.txt of the response-selection release of the E-commerce corpus",
)
register_format(
    "dialoguecse",
    dialoguecse.read_sessions,
    help="train_data.txt of the paper's authors",
)
register_format(
    "sgd",
    sgd.read_sessions,
    help="dialogues_*.json of Schema-Guided Dialogue",
    has_intents=True,
    has_acts=True,
)
register_format(
    "crosswoz", crosswoz.read_sessions, help="train.json[.zip] of CrossWOZ", has_intents=True
)
register_format(
    "ubuntu",
    ubuntu.read_sessions,
    help="train.txt of the Ubuntu corpus for response selection, tab-separated",
)
register_format(
    "ubuntu_csv",
    ubuntu.read_csv_sessions,
    help="{train,valid,test}.csv of the Ubuntu corpus, as Lowe et al. write them",
)
register_format(
    "ubuntu_ids",
    ubuntu.read_ids_sessions,
    help="train.txt of Gu et al.'s copy of the Ubuntu corpus, with responses.txt beside it",
)
register_format(
    "candidates",
    groups.read_sessions,
    help="groups as build_candidates writes them: per line a context, its response and negatives",
    has_candidates=True,
)
register_format(
    "ecd_candidates",
    ecd.read_given_sessions,
    help="train.txt of the E-commerce corpus with its negatives",
    has_candidates=True,
)
register_format(
    "ubuntu_candidates",
    ubuntu.read_given_sessions,
    help="train.txt of the Ubuntu corpus, tab-separated, with its negatives",
    has_candidates=True,
)
