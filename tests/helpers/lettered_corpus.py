"""A corpus whose every token can be read off its id.

Turn t of session s says "s{s} t{t}" and then as many of the words "w0", "w1", ... as asked for.
Ids by hand: the special tokens are 0 to 4, "s0" is 5, and so on in the order of `TOKENS`.
"""

import pathlib

from written_dialogues import json_lines

from dcse_tf.data.corpus import PrepareOptions
from dcse_tf.data.manifest import Manifest
from dcse_tf.data.prepare import prepare

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = (PAD, UNK, CLS, SEP, MASK)
SESSIONS, TURNS, WORDS = 60, 8, 12
TOKENS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *(f"s{number}" for number in range(SESSIONS)),
    *(f"t{number}" for number in range(TURNS)),
    *(f"w{number}" for number in range(WORDS)),
]
FIRST_TURN = 5 + SESSIONS
FIRST_WORD = FIRST_TURN + TURNS


def turn_ids(session: int, turn: int, words: int = 0) -> list[int]:
    """The ids of a turn, with [CLS] and [SEP]."""
    return [CLS, 5 + session, FIRST_TURN + turn, *range(FIRST_WORD, FIRST_WORD + words), SEP]


def write_vocabulary_folder(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n")
    return folder


def write_sessions(path: pathlib.Path, turns: list[int], words: int = 0) -> pathlib.Path:
    """Writes sessions 0, 1, ... of the numbers of turns given, in the JSON Lines form."""
    tail = "".join(f" w{word}" for word in range(words))
    sessions = {
        f"id {session}": [("ab"[turn % 2], f"s{session} t{turn}{tail}") for turn in range(count)]
        for session, count in enumerate(turns)
    }
    path.write_text(json_lines(sessions))
    return path


def prepare_sessions(
    folder: pathlib.Path, turns: list[int], words: int = 0, **settings
) -> Manifest:
    """Prepares such sessions, all for training, into `folder / "data"`."""
    values = {
        "format": "jsonl",
        "input": (str(write_sessions(folder / "sessions.jsonl", turns, words)),),
        "output_dir": str(folder / "data"),
        "vocab": str(write_vocabulary_folder(folder / "vocab")),
    }
    values |= {"dev_fraction": 0.0, "test_fraction": 0.0, "shards": 3}
    return prepare(PrepareOptions(**values | settings))
