"""Sessions by the chunk, in a form that is cheap to send to another process. No TensorFlow here."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dcse_tf.data.corpora import RawSession
from dcse_tf.data.dialogue import Turn

# A chunk ends with the session that reaches one of these. Turns pay for what a call of the
# tokenizer costs; characters bound the memory, whatever the length of a turn.
_TURNS = 4096
_CHARACTERS = 1 << 20


class Chunk(NamedTuple):
    """Sessions in order, as columns: an object a turn costs eight times as much to send.

    Attributes:
        session_ids: of each session.
        lengths: turns of each session.
        roles, texts, intents: of each turn.
    """

    session_ids: list[str]
    lengths: list[int]
    roles: list[str]
    texts: list[str]
    intents: list[tuple[str, ...]]

    def sessions(self) -> Iterator[tuple[str, list[Turn]]]:
        turns = zip(self.roles, self.texts, self.intents)
        for session_id, length in zip(self.session_ids, self.lengths):
            yield session_id, list(itertools.islice(turns, length))


def split_into_chunks(sessions: Iterable[RawSession]) -> Iterator[Chunk]:
    """Chunks of sessions in order; where they end depends on the sessions alone."""
    iterator = iter(sessions)
    while (chunk := _read_chunk(iterator)).session_ids:
        yield chunk


def _read_chunk(sessions: Iterator[RawSession]) -> Chunk:
    # A turn's tuple is let go at once: held by the thousand, they set off garbage collections,
    # which look through all of TensorFlow and take longer than the reading.
    chunk = Chunk([], [], [], [], [])
    left = _CHARACTERS
    for session_id, turns in sessions:
        chunk.session_ids.append(session_id)
        chunk.lengths.append(len(turns))
        for role, text, intents in turns:
            chunk.roles.append(role)
            chunk.texts.append(text)
            chunk.intents.append(intents)
            left -= len(text)
        if left <= 0 or len(chunk.texts) + len(chunk.lengths) >= _TURNS:
            break
    return chunk
