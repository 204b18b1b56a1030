"""Options for reading corpora and preparing them."""

import io
from collections.abc import Iterator

from dcse_tf.data.formats import FORMATS
from dcse_tf.files import hash_number
from dcse_tf.input_files import BadLines
from dcse_tf.options import OptionError, Options, option


class CorpusOptions(Options):
    """Which dialogue files to read, and how their turns are processed."""

    format: str = option("session_tsv", "Format of the input.", choices=FORMATS)
    input: tuple[str, ...] = option(
        (),
        "Files of dialogues, comma-separated; also .gz, .bz2, .xz, or .zip with one file inside; "
        "globs are allowed. package:NAME/FILE names a file inside an installed Python package.",
        required=True,
        path="files",
        on_cluster=True,
    )
    columns: tuple[str, ...] = option(
        (),
        "NAME:COLUMN for each column or field that has another name in the input, such as "
        f"session_id:ticket,text:body. The names in `format`=table: "
        f"{', '.join(FORMATS['table'].columns)}; in messages: "
        f"{', '.join(FORMATS['messages'].columns)}.",
    )
    encoding: str = option(
        "utf-8",
        "Encoding of the input, such as latin-1, gb18030 or utf-16. A file that begins with a "
        "byte-order mark has the encoding of the mark.",
    )
    strip_html: bool = option(
        False, "Remove HTML from texts: tags, scripts and comments; &amp; becomes &."
    )
    alternate_roles: bool = option(
        False, "Give the turns of each session, which have no roles, to speakers a and b in turn."
    )
    min_turns: int = option(
        2,
        "Leave out sessions with fewer turns (after joining). The paper: 4 for JDDC and ECD.",
        minimum=2,
    )
    join_consecutive: bool = option(
        True, "Join consecutive utterances of one speaker into one turn, as in the paper."
    )
    max_bad_lines: int = option(
        0, "Bad lines to skip before the job stops; they are named and counted.", minimum=0
    )
    max_sessions: int = option(
        0, "Stop reading after this many sessions (in a table: rows). 0: all.", minimum=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            io.TextIOWrapper(io.BytesIO(), self.encoding)
        except LookupError:
            self.refuse("encoding", "expected an encoding of texts that Python knows")
        known = FORMATS[self.format].columns if self.format in FORMATS else ()
        for entry in self.columns:
            name, _, column = entry.partition(":")
            if name not in known or not column:
                self.refuse(
                    "columns",
                    f"expected NAME:COLUMN, NAME one of {', '.join(known) or 'none'} with "
                    f"`format`={self.format}",
                )
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
        """The split of a dialogue that is no copy of another, see `Splitter`. It depends on the id
        and the seed, not on other dialogues.
        """
        position = hash_number(f"{self.seed}:{dialogue}") / 2**64
        if position < self.dev_fraction:
            return "dev"
        return "test" if position < self.dev_fraction + self.test_fraction else "train"


_SPECIAL = 5  # [PAD], [UNK], [CLS], [SEP], [MASK]


class PrepareOptions(SplitOptions):
    """Converts files of dialogues to sharded, tokenised TFRecords with a manifest."""

    output_dir: str = option(
        "",
        "Folder to write; it appears only when it is complete.",
        required=True,
        path="writes",
    )
    vocab: str = option(
        "",
        "Checkpoint whose vocabulary and casing are used: a folder, a hub name, package:NAME or a "
        "run directory. Give this or `vocab_size`.",
        path="reads",
    )
    prefix: str = option(
        "",
        'Text before every utterance, such as "query: " for E5, in training and use. Default: the '
        "default prompt of `vocab`.",
    )
    vocab_size: int = option(
        0, "Train a WordPiece vocabulary of at most this many entries. 0: do not.", minimum=0
    )
    lowercase: bool = option(
        True, "With `vocab_size`: lower-case the text and strip accents (BERT 'uncased')."
    )
    max_sequence_length: int = option(
        50,
        "Longest utterance, in tokens including [CLS] and [SEP]; longer ones are cut at the end. "
        "The paper: 100 for JDDC, 50 for MDC and ECD.",
        minimum=3,
    )
    shards: int = option(8, "Number of files of the train split.", minimum=1, maximum=10_000)
    overwrite: bool = option(False, "Replace `output_dir` if it exists.")
    spark_master: str = option(
        "",
        "Run on a Spark cluster, such as spark://HOST:7077, yarn, k8s://... or local[4], with a "
        "task for each file of `input`. All workers must reach the input and `output_dir`. The "
        "records are those that this machine would write.",
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

    def list_files(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        of_files = super().list_files()
        of_tables = self.spark_master and self.format == "table"
        return (own for own in of_files if own[0] != "input" or not of_tables)
