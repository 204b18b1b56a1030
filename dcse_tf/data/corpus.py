"""The sessions of a corpus, read as the settings say. No TensorFlow here."""

import collections
import itertools
import time
from collections.abc import Iterable, Iterator

from absl import logging

from dcse_tf.config.corpus import CorpusOptions
from dcse_tf.data.corpora import READERS
from dcse_tf.data.dialogue import Session, is_silent, make_session
from dcse_tf.input_files import BadLines, resolve_inputs

_REPORT_SECONDS = 10.0


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
    reader = READERS[config.format]
    paths = resolve_inputs(config.input)
    raw = itertools.chain.from_iterable(reader(path, bad_lines) for path in paths)
    for session_id, turns in itertools.islice(raw, config.max_sessions or None):
        dropped["empty_utterances"] += sum(is_silent(turn.text) for turn in turns)
        yield make_session(session_id, turns, join=config.join_consecutive)


class Progress:
    """Counts sessions as they pass and says how far the job is."""

    def __init__(self) -> None:
        self.sessions = 0
        self._started = self._reported = time.monotonic()

    def watch(self, sessions: Iterable[Session]) -> Iterator[Session]:
        for session in sessions:
            self.sessions += 1
            yield session
            now = time.monotonic()
            if now - self._reported > _REPORT_SECONDS:
                self._reported = now
                rate = self.sessions / (now - self._started)
                logging.info("%d sessions read, %.0f a second", self.sessions, rate)
