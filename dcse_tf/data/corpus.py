"""The sessions of a corpus, read as the settings say. No TensorFlow here."""

import collections
import itertools
from collections.abc import Iterator, Sequence

from dcse_tf.config.corpus import CorpusOptions
from dcse_tf.data.corpora import READERS, RawSession
from dcse_tf.data.dialogue import Session, Turn, drop_silent, join_turns
from dcse_tf.input_files import BadLines, resolve_inputs
from dcse_tf.progress import Progress


def read_sessions(
    config: CorpusOptions, bad_lines: BadLines, dropped: collections.Counter[str]
) -> Iterator[Session]:
    """All sessions of the input, joined, not yet filtered.

    Args:
        config: what to read.
        bad_lines: where lines that cannot be used are counted.
        dropped: "empty_utterances" counts the silent ones.

    Raises:
        InputError: a file cannot be read, or there are too many bad lines.
    """
    for raw in read_raw_sessions(config, bad_lines):
        yield join_session(raw, config, dropped)


def read_raw_sessions(config: CorpusOptions, bad_lines: BadLines) -> Iterator[RawSession]:
    """All sessions of the input as the format's reader gives them; raises as `read_sessions`."""
    reader = READERS[config.format]
    paths = resolve_inputs(config.input)
    raw = itertools.chain.from_iterable(reader(path, bad_lines) for path in paths)
    progress = Progress("sessions read")
    limited = itertools.islice(raw, config.max_sessions or None)
    for number, session in enumerate(limited, start=1):
        yield session
        progress.update(number)


def join_session(
    raw: tuple[str, Sequence[Turn]], config: CorpusOptions, dropped: collections.Counter[str]
) -> Session:
    """The session of what a reader gave; the silent utterances are counted."""
    session_id, turns = raw
    heard = drop_silent(turns)
    dropped["empty_utterances"] += len(turns) - len(heard)
    return join_turns(session_id, heard, config.join_consecutive)
