"""Settings of every job that reads dialogues."""

import dataclasses

from dcse_tf.config.base import Options, option

CORPUS_FORMATS = (
    "session_tsv",
    "jsonl",
    "chitchat",
    "mdc",
    "jddc",
    "ecd",
    "dialoguecse",
    "sgd",
    "crosswoz",
)


@dataclasses.dataclass(frozen=True)
class CorpusOptions(Options):
    """Which files of dialogues, and what becomes of their turns."""

    format: str = option(
        "session_tsv",
        "Format of the input: session_tsv ({session_id}\\t{role}\\t{text} a line, the lines of a "
        'session together), jsonl ({"session_id", "turns": [{"role", "text"}]} a line, a turn '
        'may have "intents"), chitchat (dataset.json of the PyPI package chitchat-dataset), mdc '
        "({movie,restaurant,taxi}_all.tsv of the Microsoft Dialogue Corpus), jddc (chat.txt of "
        "the JD corpus, 7 fields), ecd (train.txt of the response-selection release of the "
        "E-commerce corpus), dialoguecse (train_data.txt of the paper's authors), sgd "
        "(dialogues_*.json of Schema-Guided Dialogue), crosswoz (train.json[.zip]).",
        choices=CORPUS_FORMATS,
    )
    input: tuple[str, ...] = option(
        (),
        "Files of dialogues, comma-separated; plain, .gz or .zip with one file inside, globs "
        "allowed, or package:NAME/FILE for a file inside an installed Python package.",
        required=True,
        files=True,
    )
    min_turns: int = option(
        2,
        "Sessions with fewer turns (after joining) are dropped. The paper: 4 for JDDC and ECD.",
        minimum=2,
    )
    join_consecutive: bool = option(
        True, "Join consecutive utterances of one speaker into one turn, as in the paper."
    )
    max_bad_lines: int = option(
        0, "Bad lines that are skipped, named and counted before the job stops.", minimum=0
    )
    max_sessions: int = option(
        0, "Stop reading after this many sessions (of a table: rows). 0: all.", minimum=0
    )
