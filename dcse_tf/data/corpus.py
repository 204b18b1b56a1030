"""Which dialogues a job reads and how, and their division into train, dev and test.

Commands import the options and must answer --help at once, so this module does not use TensorFlow.
"""

import collections
import io
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from dcse_tf.data.dialogue import Session, Utterance, fold_spaces, make_session, strip_html
from dcse_tf.data.formats import FORMATS, Format
from dcse_tf.data.formats.reading import read_tables
from dcse_tf.errors import InputError
from dcse_tf.files import hash_number
from dcse_tf.input_files import BadLines, resolve_inputs
from dcse_tf.options import OptionError, Options, load_plugins, option
from dcse_tf.progress import Progress

_SPECIAL = 5  # entries of a vocabulary: [PAD], [UNK], [CLS], [SEP], [MASK]
_BY_CHANCE = 20  # characters
Dropped = collections.Counter[str]  # how many of what was left out, by reason
Paths = Sequence[pathlib.Path]


class CorpusOptions(Options):
    """Which dialogue files to read, and how their turns are processed."""

    formats: ClassVar[Mapping[str, Format]] = FORMATS

    format: str = option("session_tsv", "Format of the input.", choices=FORMATS)
    input: tuple[str, ...] = option(
        (),
        "Files of dialogues, comma-separated, also globs, compressed (.gz, .bz2, .xz), or "
        "package:NAME/FILE of an installed Python package.",
        required=True,
        path="files",
    )
    columns: tuple[str, ...] = option(
        (),
        "NAME:COLUMN for each column or field that has another name in the input. The names in "
        f"`format`=table: {', '.join(FORMATS['table'].columns)}; in messages: "
        f"{', '.join(FORMATS['messages'].columns)}.",
    )
    encoding: str = option(
        "utf-8", "Encoding of input without a byte-order mark, such as latin-1 or gb18030."
    )
    strip_html: bool = option(False, "Remove tags, scripts and comments of HTML from texts.")
    alternate_roles: bool = option(
        False, "Give the turns of each session, which have no roles, to speakers a and b in turn."
    )
    min_turns: int = option(
        2, "Fewest turns of a session, after joining. The paper: 4 for JDDC and ECD.", minimum=2
    )
    join_consecutive: bool = option(
        True, "Join consecutive utterances of one speaker into one turn, as in the paper."
    )
    max_bad_lines: int = option(
        0, "Bad lines to skip before the job stops; they are named and counted.", minimum=0
    )
    max_sessions: int = option(
        0, "Stop after this many sessions (with csv and tsv: sentences). 0: all.", minimum=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            io.TextIOWrapper(io.BytesIO(), self.encoding)
        except LookupError:
            self.refuse("encoding", "expected an encoding of texts that Python knows")
        known = self.formats[self.format].columns
        for entry in self.columns:
            name, _, column = entry.partition(":")
            if name not in known or not column:
                names = f"{', '.join(known) or 'none'} with `format`={self.format}"
                self.refuse("columns", f"expected NAME:COLUMN, NAME one of {names}")
        if len(self.column_names()) < len(self.columns):
            self.refuse("columns", "one of them is given twice")

    def column_names(self) -> dict[str, str]:
        """A dict from the names in `columns` to the input's column names."""
        return dict(entry.split(":", 1) for entry in self.columns)

    def count_bad_lines(self, named: int = 20) -> BadLines:
        """A count of the input's bad lines, of which it names some."""
        return BadLines(self.max_bad_lines, named, encoding=self.encoding)


class SplitOptions(CorpusOptions):
    """Which dialogues to read, and how they are divided into train, dev and test."""

    dev_fraction: float = option(
        0.05, "Share of the sessions that go to the dev split.", minimum=0.0, maximum=0.5
    )
    test_fraction: float = option(
        0.05, "Share of the sessions that go to the test split.", minimum=0.0, maximum=0.5
    )
    seed: int = option(0, "Seed of the split into train, dev and test.", minimum=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dev_fraction + self.test_fraction >= 1.0:
            self.refuse("test_fraction", "with `dev_fraction` it leaves nothing to train on")

    def split_of(self, dialogue: str) -> str:
        """The split of a dialogue that is no copy of another, see `Splitter`, by its id."""
        position = hash_number(f"{self.seed}:{dialogue}") / 2**64
        if position < self.dev_fraction:
            return "dev"
        return "test" if position < self.dev_fraction + self.test_fraction else "train"


class PrepareOptions(SplitOptions):
    """Converts files of dialogues to sharded, tokenised TFRecords with a manifest."""

    output_dir: str = option(
        "", "Folder to write; it appears when it is complete.", required=True, path="writes"
    )
    vocab: str = option(
        "",
        "Checkpoint whose vocabulary and casing are used: a folder, a hub name, package:NAME or a "
        "run directory. Give this or `vocab_size`.",
        path="reads",
    )
    prefix: str = option(
        "", 'Text before every utterance, such as "query: ". Default: that of `vocab`, if any.'
    )
    vocab_size: int = option(
        0, "Train a WordPiece vocabulary of at most this many entries. 0: do not.", minimum=0
    )
    lowercase: bool = option(
        True, "With `vocab_size`: lower-case the text and strip accents (BERT 'uncased')."
    )
    max_sequence_length: int = option(
        50,
        "Tokens of an utterance, with [CLS] and [SEP]; longer ones are cut at the end. The paper: "
        "100 for JDDC, 50 for MDC and ECD.",
        minimum=3,
    )
    shards: int = option(8, "Number of files of the train split.", minimum=1, maximum=10_000)
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")
    spark_master: str = option(
        "",
        "Run on a Spark cluster, such as spark://HOST:7077, yarn, k8s://... or local[4], a task a "
        "file. All workers must reach `input` and `output_dir`.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.vocab) == bool(self.vocab_size):
            raise OptionError("give either `vocab` (a checkpoint) or `vocab_size` (train one)")
        if 0 < self.vocab_size <= _SPECIAL:
            self.refuse("vocab_size", f"expected more than the {_SPECIAL} special entries")
        if self.vocab and not self.lowercase:
            self.refuse("lowercase", "`vocab` has its own casing; only with `vocab_size`")
        if self.spark_master and not self.vocab:
            self.refuse("spark_master", "train a vocabulary on one machine, and give `vocab`")
        if self.spark_master and self.max_sessions:
            self.refuse("max_sessions", "not with `spark_master`, which reads all files at once")


def read_sessions(
    config: CorpusOptions, bad_lines: BadLines, dropped: Dropped
) -> Iterator[Session]:
    """Yields all sessions of the input, with turns joined but no session filtered out; `dropped` as
    in `join_session`. Raises InputError if a file cannot be read or has too many bad lines.
    """
    return (join_session(raw, config, dropped) for raw in read_raw_sessions(config, bad_lines))


def read_long_sessions(config: CorpusOptions, dropped: Dropped) -> Iterator[Session]:
    """`read_sessions` of `min_turns` turns or more. `dropped` also counts the shorter ones and, at
    the end, the bad lines. Raises InputError if no session was long enough.
    """
    bad_lines, found = config.count_bad_lines(), False
    dropped.update(short_sessions=0, empty_utterances=0)
    for session in read_sessions(config, bad_lines, dropped):
        if len(session.turns) < config.min_turns:
            dropped["short_sessions"] += 1
        else:
            found = True
            yield session
    dropped["bad_lines"] = bad_lines.count
    if not found:
        told = f"no session of at least {config.min_turns} turns ({describe_dropped(dropped)})"
        raise InputError(f"`input`={','.join(config.input)}: {told}")


def read_raw_sessions(config: CorpusOptions, bad_lines: BadLines) -> Iterator[Session]:
    """Yields all sessions of the input, the turns without HTML if asked for; see `join_session`."""
    raw = read_files(resolve_inputs(config.input), config, bad_lines)
    with Progress("sessions read") as progress:
        for number, session in enumerate(itertools.islice(raw, config.max_sessions or None), 1):
            yield session
            progress.update(number)


def read_files(
    paths: Paths, config: CorpusOptions, bad_lines: BadLines, beside: Paths = ()
) -> Iterator[Session]:
    """`read_raw_sessions` of some files, of all those `beside` them. Readers name what has no id by
    file and line; files of one name, such as partitions, are named from where their paths part.
    """
    load_plugins()  # a worker of Spark has got its options without parsing them
    kind, columns = config.formats[config.format], config.column_names()
    named = [columns] if kind.columns else []
    alike = itertools.groupby(sorted(beside or paths, key=lambda x: x.name), lambda x: x.name)
    roots = {name: os.path.commonpath([x.absolute().parent for x in own]) for name, own in alike}

    def read(path: pathlib.Path) -> Iterator[tuple]:
        own, place = f"{path.name}-", f"{os.path.relpath(path, roots[path.name])}-"
        for session_id, turns, *given in kind.read(path, bad_lines, *named):
            given = [x._replace(dialogue=x.dialogue.replace(own, place)) for x in given]
            yield session_id.replace(own, place), turns, *given

    found: Iterable[tuple] = itertools.chain.from_iterable(map(read, paths))
    if config.format == "table":  # a dialogue's rows may stand in several files
        found = read_tables(paths, bad_lines, columns)
    known = config.alternate_roles
    for session_id, turns, *given in found:
        spoken = turns[:-1] if given else turns  # a group always has the responder's role
        known = known or any(turn.role for turn in spoken)
        # Where other sessions have roles, one without is taken for a single speaker's.
        if not known and len(spoken) > 1:
            told = f"{','.join(config.input)}: the turns of session {session_id!r} have no roles"
            advice = "`alternate_roles` gives them to two speakers in turn"
            raise InputError(f"`input`={told}; {advice}")
        if config.strip_html:
            turns = [turn._replace(text=strip_html(turn.text)) for turn in turns]
        yield Session(session_id, tuple(turns), *given)


def join_session(raw: Session, config: CorpusOptions, dropped: Dropped) -> Session:
    """Cleans the texts of a session that was read, and joins its turns.

    `dropped` counts the utterances without text, and the sessions that are too short because turns
    of one speaker were joined.
    """
    session_id, turns, given = raw.session_id, raw.turns, raw.given
    if config.alternate_roles:
        turns = tuple(turn._replace(role="ab"[n % 2]) for n, turn in enumerate(turns))
    spoken = make_session(session_id, turns, join=False).turns
    dropped["empty_utterances"] += len(turns) - len(spoken)
    if given and not make_session(session_id, turns[-1:]).turns:  # a response of HTML alone
        spoken = ()
    joined = spoken
    if config.join_consecutive:
        # A response with given candidates is never joined to the turn before it.
        end = len(spoken) - bool(given)
        joined = make_session(session_id, spoken[:end]).turns + spoken[end:]
    if not given:
        if len(joined) < config.min_turns <= len(spoken):
            dropped["short_by_joining"] += 1
        return Session(session_id, joined)
    strip = strip_html if config.strip_html else str
    negatives = tuple(fold_spaces(strip(text)) for text in given.negatives)
    return Session(session_id, joined, given._replace(negatives=negatives))


def describe_dropped(dropped: Mapping[str, int]) -> str:
    """What was left out, for the message that nothing is left."""
    joined = dropped.get("short_by_joining")
    by_joining = (
        f" ({joined} by joining turns that have one role: `join_consecutive`=false keeps them, "
        "`alternate_roles` gives them two speakers)"
    )
    return (
        f"{dropped['short_sessions']} sessions too short{by_joining if joined else ''}, "
        f"{dropped['empty_utterances']} utterances without text, {dropped['bad_lines']} bad lines"
    )


def content_key(turns: Iterable[Utterance]) -> int | None:
    """A number that sessions with equal texts share, whatever their speakers, case, white space and
    division into turns.

    None for a session of fewer than 20 characters, such as two greetings. Those are often equal by
    chance, so that keeping them together would change the shares of the splits.
    """
    text = fold_spaces(" ".join([turn.text for turn in turns])).casefold()
    return hash_number(text) if len(text) >= _BY_CHANCE else None


class Splitter:
    """Finds the split of each session, in the order in which they are read.

    The id decides, except that a copy of an earlier session goes where that one went; otherwise
    training would see what dev and test hold out. The id of the dialogue alone decides about
    sessions with given candidates, which are pieces of dialogues that must stay together. `known`
    has the splits of sessions that were read before, by their `content_key`.
    """

    def __init__(self, config: SplitOptions, known: Mapping[int, str] = {}):
        self._config, self._splits = config, dict(known)

    def __call__(self, session: Session) -> str:
        split = self._config.split_of(session.dialogue)
        key = None if session.given else content_key(session.turns)
        return split if key is None else self._splits.setdefault(key, split)
