"""Settings of `prepare_data`."""

import dataclasses

from dcse_tf.config.base import ConfigError, Options, option

CORPUS_FORMATS = ("session_tsv", "jsonl", "chitchat")


@dataclasses.dataclass(frozen=True)
class PrepareConfig(Options):
    """From files of dialogues to sharded, tokenised TFRecords with a manifest."""

    format: str = option(
        "session_tsv",
        "Format of the input: session_tsv ({session_id}\\t{role}\\t{text} a line, the lines of a "
        'session together), jsonl ({"session_id", "turns": [{"role", "text"}]} a line), chitchat '
        "(dataset.json of the PyPI package chitchat-dataset).",
        choices=CORPUS_FORMATS,
    )
    input: tuple[str, ...] = option(
        (),
        "Files of dialogues, comma-separated; plain or .gz, globs allowed, or "
        "package:NAME/FILE for a file inside an installed Python package.",
        required=True,
    )
    output_dir: str = option(
        "", "Folder to write; it appears only when it is complete.", required=True
    )
    vocab: str = option(
        "",
        "Checkpoint whose WordPiece vocabulary and casing are used: a folder, a hub name, "
        "package:NAME or a run directory. Give this or --vocab_size.",
    )
    vocab_size: int = option(
        0,
        "Train a WordPiece vocabulary of at most this many entries on the train split instead of "
        "taking one from --vocab. 0: do not.",
        minimum=0,
    )
    lowercase: bool = option(
        True, "With --vocab_size: lower-case the text and strip accents (BERT 'uncased')."
    )
    max_sequence_length: int = option(
        50,
        "Longest utterance, in tokens with [CLS] and [SEP]; the rest is cut. The paper: 100 for "
        "JDDC, 50 for MDC and ECD.",
        minimum=3,
    )
    min_turns: int = option(
        2,
        "Sessions with fewer turns (after joining) are dropped. The paper: 4 for JDDC and ECD.",
        minimum=2,
    )
    join_consecutive: bool = option(
        True, "Join consecutive utterances of one speaker into one turn, as in the paper."
    )
    dev_fraction: float = option(
        0.05, "Share of the sessions that go to the dev split.", minimum=0.0, maximum=0.5
    )
    test_fraction: float = option(
        0.05, "Share of the sessions that go to the test split.", minimum=0.0, maximum=0.5
    )
    shards: int = option(8, "Number of TFRecord files of the train split.", minimum=1)
    max_bad_lines: int = option(
        0, "Bad lines that are skipped, named and counted before the job stops.", minimum=0
    )
    max_sessions: int = option(0, "Stop reading after this many sessions. 0: read all.", minimum=0)
    seed: int = option(0, "Seed of the split into train, dev and test.", minimum=0)
    overwrite: bool = option(False, "Replace --output_dir if it exists.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.vocab) == bool(self.vocab_size):
            raise ConfigError("give either --vocab (a checkpoint) or --vocab_size (train one)")
