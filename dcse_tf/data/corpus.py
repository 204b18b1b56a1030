"""Reads the sessions of a corpus as the options say. This module does not use TensorFlow."""

import collections
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dcse_tf.data.dialogue import (
    GivenCandidates,
    Session,
    Turn,
    drop_blank,
    fold_spaces,
    join_turns,
)
from dcse_tf.data.formats import FORMATS, RawSession, messages, table
from dcse_tf.data.formats.advice import advise
from dcse_tf.data.html import strip_html
from dcse_tf.data.options import CorpusOptions
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines, resolve_inputs
from dcse_tf.progress import Progress


def read_sessions(
    config: CorpusOptions, bad_lines: BadLines, dropped: collections.Counter[str]
) -> Iterator[Session]:
    """Yields all sessions of the input, with turns joined but no session filtered out.

    Args:
        config: what to read.
        bad_lines: counts unusable lines.
        dropped: a counter; its "empty_utterances" counts utterances without text.

    Raises:
        InputError: a file cannot be read, or there are too many bad lines.
    """
    for raw in read_raw_sessions(config, bad_lines):
        yield join_session(raw, config, dropped)


def read_files(
    paths: Sequence[pathlib.Path], config: CorpusOptions, bad_lines: BadLines
) -> Iterator[RawSession]:
    """Yields the sessions of files as the format's reader does; raises as `read_sessions`."""
    columns, alternate = config.column_names(), config.alternate_roles
    raw: Iterator[RawSession]
    if config.format == "table":
        raw = table.read_tables(paths, bad_lines, columns, config.delimiter, alternate)
    elif config.format == "messages":
        read = messages.read_sessions
        raw = itertools.chain.from_iterable(read(p, bad_lines, columns, alternate) for p in paths)
    else:
        raw = itertools.chain.from_iterable(
            FORMATS[config.format].read(path, bad_lines) for path in paths
        )
    try:
        yield from raw
    except InputError as error:
        named = [path for path in paths if str(error).startswith(f"{path}:")]
        advice = advise(named[0], config.format, config.encoding) if named else ""
        if not advice:
            raise
        raise InputError(f"{error}; {advice}") from error


def read_raw_sessions(config: CorpusOptions, bad_lines: BadLines) -> Iterator[RawSession]:
    """Yields all sessions of the input as the format's reader does; raises as `read_sessions`."""
    raw = read_files(resolve_inputs(config.input), config, bad_lines)
    progress = Progress("sessions read")
    limited = itertools.islice(raw, config.max_sessions or None)
    for number, session in enumerate(limited, start=1):
        yield session
        progress.update(number)
    progress.close()


def describe_dropped(dropped: Mapping[str, int], bad_lines: int) -> str:
    """What was left out, for the message that nothing is left."""
    joined = dropped.get("short_by_joining")
    why = "`join_consecutive`=false keeps them, `alternate_roles` gives them two speakers"
    return (
        f"{dropped['short_sessions']} sessions too short"
        + (f" ({joined} by joining turns that have one role: {why})" if joined else "")
        + f", {dropped['empty_utterances']} utterances without text, {bad_lines} bad lines"
    )


# A session as readers yield it, but a turn may be a plain tuple.
RawTurns = tuple[str, Sequence[Turn]] | tuple[str, Sequence[Turn], GivenCandidates]


def join_session(
    raw: RawTurns, config: CorpusOptions, dropped: collections.Counter[str]
) -> Session:
    """Makes a session from a reader's output, and counts what is lost.

    `dropped` counts the utterances without text, and the sessions that are too short because turns
    of one speaker were joined. A response with given candidates is never joined to the turn before
    it.
    """
    session_id, turns, *given = raw
    if config.strip_html:
        turns = [(turn[0], strip_html(turn[1]), turn[2], turn[3]) for turn in turns]
    spoken = drop_blank(turns)
    dropped["empty_utterances"] += len(turns) - len(spoken)
    if config.alternate_roles:
        spoken = [("ab"[place % 2], *turn[1:]) for place, turn in enumerate(spoken)]
    if not given:
        session = join_turns(session_id, spoken, config.join_consecutive)
        if len(session.turns) < config.min_turns <= len(spoken):
            dropped["short_by_joining"] += 1
        return session
    before, response = (
        join_turns(session_id, part, config.join_consecutive) for part in (spoken[:-1], spoken[-1:])
    )
    texts = given[0].negatives
    negatives = tuple(map(fold_spaces, map(strip_html, texts) if config.strip_html else texts))
    turns = before.turns + response.turns
    return Session(session_id, turns, given[0]._replace(negatives=negatives))


# A chunk ends with the session that reaches one of these limits. This many turns make the overhead
# of calling the tokenizer negligible; the limit on characters bounds memory if turns are long.
_TURNS = 4096
_CHARACTERS = 1 << 20


class Chunk(NamedTuple):
    """Sessions in order, as columns: sending one object per turn would cost eight times as much.

    Attributes:
        session_ids: the id of each session.
        splits: the split of each session.
        lengths: the number of turns of each session.
        roles, texts, intents, acts: the fields of each turn, over all sessions.
        given: the candidates of each session; empty if no session has any.
    """

    session_ids: list[str]
    splits: list[str]
    lengths: list[int]
    roles: list[str]
    texts: list[str]
    intents: list[tuple[str, ...]]
    acts: list[tuple[str, ...]]
    given: list[GivenCandidates]

    def sessions(self) -> Iterator[RawTurns]:
        """Yields the sessions as the reader yielded them."""
        turns = zip(self.roles, self.texts, self.intents, self.acts)
        for number, (session_id, length) in enumerate(zip(self.session_ids, self.lengths)):
            own = list(itertools.islice(turns, length))
            yield (session_id, own, self.given[number]) if self.given else (session_id, own)


def split_into_chunks(
    sessions: Iterable[RawSession], find_split: Callable[[RawSession], str]
) -> Iterator[Chunk]:
    """Divides sessions into chunks, whose boundaries depend only on the sessions themselves.

    Args:
        sessions: the sessions.
        find_split: gives the split of each; it is called once for each session, in order.
    """
    iterator = iter(sessions)
    while (chunk := _read_chunk(iterator, find_split)).session_ids:
        yield chunk


def _read_chunk(sessions: Iterator[RawSession], find_split: Callable[[RawSession], str]) -> Chunk:
    # Copying turns into columns releases each turn's tuple at once. Keeping thousands of tuples
    # would trigger garbage collections, which scan all of TensorFlow's objects and take longer
    # than the reading.
    chunk = Chunk([], [], [], [], [], [], [], [])
    left, negatives = _CHARACTERS, 0
    for session in sessions:
        session_id, turns, *given = session
        chunk.session_ids.append(session_id)
        chunk.splits.append(find_split(session))
        chunk.lengths.append(len(turns))
        for role, text, intents, acts in turns:
            chunk.roles.append(role)
            chunk.texts.append(text)
            chunk.intents.append(intents)
            chunk.acts.append(acts)
            left -= len(text)
        for candidates in given:
            chunk.given.append(candidates)
            negatives += len(candidates.negatives)
            left -= sum(map(len, candidates.negatives))
        if left <= 0 or len(chunk.texts) + len(chunk.lengths) + negatives >= _TURNS:
            break
    return chunk
