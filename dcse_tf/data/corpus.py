"""Reads the sessions of a corpus as the options say, and divides them into train, dev and test.

This module does not use TensorFlow.
"""

import collections
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dcse_tf.data.corpus_options import CorpusOptions, SplitOptions
from dcse_tf.data.dialogue import Session, Utterance, fold_spaces, make_session, strip_html
from dcse_tf.data.formats import FORMATS, RawSession
from dcse_tf.data.formats.exports import read_tables
from dcse_tf.errors import InputError
from dcse_tf.files import hash_number
from dcse_tf.input_files import BadLines, resolve_inputs
from dcse_tf.progress import Progress

_BY_CHANCE = 20  # characters


def read_sessions(
    config: CorpusOptions, bad_lines: BadLines, dropped: collections.Counter[str]
) -> Iterator[Session]:
    """Yields all sessions of the input, with turns joined but no session filtered out; `dropped`
    counts utterances without text as "empty_utterances".

    Raises:
        InputError: a file cannot be read, or there are too many bad lines.
    """
    for raw in read_raw_sessions(config, bad_lines):
        yield join_session(raw, config, dropped)


def read_raw_sessions(config: CorpusOptions, bad_lines: BadLines) -> Iterator[RawSession]:
    """Yields all sessions of the input as the format's reader does; raises as `read_sessions`."""
    raw = read_files(resolve_inputs(config.input), config, bad_lines)
    with Progress("sessions read") as progress:
        for number, session in enumerate(itertools.islice(raw, config.max_sessions or None), 1):
            yield session
            progress.update(number)


def read_files(
    paths: Sequence[pathlib.Path], config: CorpusOptions, bad_lines: BadLines
) -> Iterator[RawSession]:
    """Yields the sessions of files as the format's reader does; raises as `read_sessions`."""
    kind, columns = FORMATS[config.format], config.column_names()
    named = [columns] if kind.columns else []
    raw: Iterable[RawSession] = itertools.chain.from_iterable(
        kind.read(path, bad_lines, *named) for path in paths
    )
    if config.format == "table":  # a dialogue's rows may stand in several files
        raw = read_tables(paths, bad_lines, columns)
    for session in raw:
        if not config.alternate_roles and not any(turn.role for turn in session[1]) and session[1]:
            raise InputError(
                f"`input`={','.join(config.input)}: the turns of session {session[0]!r} have no "
                "roles; `alternate_roles` gives them to two speakers in turn"
            )
        yield session


def join_session(
    raw: RawSession, config: CorpusOptions, dropped: collections.Counter[str]
) -> Session:
    """Makes a session from a reader's output. A response with given candidates is never joined to
    the turn before it.

    `dropped` counts the utterances without text, and the sessions that are too short because turns
    of one speaker were joined.
    """
    session_id, turns, *given = raw
    if config.strip_html:
        turns = [Utterance(role, strip_html(text), *labels) for role, text, *labels in turns]
    spoken = make_session(session_id, turns, join=False).turns
    dropped["empty_utterances"] += len(turns) - len(spoken)
    if config.alternate_roles:
        spoken = tuple(turn._replace(role="ab"[n % 2]) for n, turn in enumerate(spoken))
    if not config.join_consecutive:
        session = Session(session_id, spoken)
    elif given:
        before = make_session(session_id, spoken[:-1])
        session = Session(session_id, before.turns + spoken[-1:])
    else:
        session = make_session(session_id, spoken)
        if len(session.turns) < config.min_turns <= len(spoken):
            dropped["short_by_joining"] += 1
    if not given:
        return session
    texts = map(strip_html, given[0].negatives) if config.strip_html else given[0].negatives
    negatives = tuple(map(fold_spaces, texts))
    return Session(session_id, session.turns, given[0]._replace(negatives=negatives))


def describe_dropped(dropped: Mapping[str, int], bad_lines: int) -> str:
    """What was left out, for the message that nothing is left."""
    joined = dropped.get("short_by_joining")
    why = "`join_consecutive`=false keeps them, `alternate_roles` gives them two speakers"
    return (
        f"{dropped['short_sessions']} sessions too short"
        + (f" ({joined} by joining turns that have one role: {why})" if joined else "")
        + f", {dropped['empty_utterances']} utterances without text, {bad_lines} bad lines"
    )


# The division into splits: copies of a session go to the same one


def content_key(turns: Iterable[Utterance]) -> int | None:
    """A number that copies of a session share: sessions with equal texts, whatever their speakers,
    ignoring case, white space and how the text is divided into turns.

    None for a session of fewer than 20 characters, such as two greetings. Those are often equal by
    chance, so that keeping them together would change the shares of the splits.
    """
    text = fold_spaces(" ".join([turn[1] for turn in turns])).casefold()
    return hash_number(text) if len(text) >= _BY_CHANCE else None


class Splitter:
    """Finds the split of each session, in the order in which they are read.

    The id decides, except that a copy of an earlier session goes where that one went; otherwise
    training would see what dev and test hold out. The id of the dialogue alone decides about
    sessions with given candidates, which are pieces of dialogues that must stay together.
    """

    def __init__(self, config: SplitOptions):
        self._config = config
        self._splits: dict[int, str] = {}  # of the first of the copies

    def __call__(self, session: RawSession) -> str:
        session_id, turns, *given = session
        if given:
            return self._config.split_of(given[0].dialogue)
        split = self._config.split_of(session_id)
        key = content_key(turns)
        return split if key is None else self._splits.setdefault(key, split)
