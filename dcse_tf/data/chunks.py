"""Sessions by the chunk, in a form that is cheap to send to another process. No TensorFlow here."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dcse_tf.data.corpora import RawSession
from dcse_tf.data.dialogue import Utterance

# A chunk ends with the session that reaches one of these. Turns pay for what a call of the
# tokenizer costs; characters bound the memory, whatever the length of a turn.
_TURNS = 4096
_CHARACTERS = 1 << 20


class Chunk(NamedTuple):
    """Sessions in order, as columns: an object a turn costs eight times as much to send.

    Attributes:
        session_ids: of each session.
        lengths: turns of each session.
        roles: of each turn.
        texts: of each turn.
        intents: of each turn; None where no turn has any.
    """

    session_ids: tuple[str, ...]
    lengths: tuple[int, ...]
    roles: tuple[str, ...]
    texts: tuple[str, ...]
    intents: tuple[tuple[str, ...], ...] | None

    def sessions(self) -> Iterator[RawSession]:
        intents = itertools.repeat(()) if self.intents is None else self.intents
        turns = map(Utterance._make, zip(self.roles, self.texts, intents))
        for session_id, length in zip(self.session_ids, self.lengths):
            yield session_id, list(itertools.islice(turns, length))


def split_into_chunks(sessions: Iterable[RawSession]) -> Iterator[Chunk]:
    """Chunks of sessions in order; where they end depends on the sessions alone."""
    chunk: list[RawSession] = []
    turns = characters = 0
    for session in sessions:
        chunk.append(session)
        turns += len(session[1]) + 1  # a session without a turn counts too
        characters += sum(len(text) for _, text, _ in session[1])
        if turns >= _TURNS or characters >= _CHARACTERS:
            yield _pack(chunk)
            chunk, turns, characters = [], 0, 0
    if chunk:
        yield _pack(chunk)


def _pack(sessions: list[RawSession]) -> Chunk:
    turns = [turn for _, turns in sessions for turn in turns]
    roles, texts, intents = zip(*turns) if turns else ((), (), ())
    return Chunk(
        tuple(session_id for session_id, _ in sessions),
        tuple(len(turns) for _, turns in sessions),
        roles,
        texts,
        intents if any(intents) else None,
    )
