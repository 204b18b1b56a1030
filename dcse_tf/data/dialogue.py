"""Dialogues as Python objects: utterances, sessions, joining. No TensorFlow here."""

import dataclasses
import re
import unicodedata
from collections.abc import Iterable

_WHITESPACE = re.compile(r"\s+")
_SILENT = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"}


@dataclasses.dataclass(frozen=True)
class Utterance:
    """What one speaker said in one turn."""

    role: str
    text: str


@dataclasses.dataclass(frozen=True)
class Session:
    """A dialogue: its turns in order."""

    session_id: str
    turns: tuple[Utterance, ...]


def is_silent(text: str) -> bool:
    """Whether a text has nothing to read: white space and control characters alone.

    A character that is younger than this Python's Unicode (category Cn) can be read.
    """
    return all(unicodedata.category(char) in _SILENT for char in text)


def make_session(session_id: str, turns: Iterable[tuple[str, str]], join: bool = True) -> Session:
    """Builds a session from (role, text) pairs in order.

    White space is folded, so that a session survives being written as lines; silent texts are
    dropped, before joining, so that silence does not part two utterances of one speaker.

    Args:
        session_id: the session's name.
        turns: (role, text) pairs.
        join: whether consecutive utterances of one speaker become one turn (paper, section 5.1.1).
    """
    utterances: list[Utterance] = []
    for role, text in turns:
        if is_silent(text):
            continue
        text = _WHITESPACE.sub(" ", text).strip()
        if join and utterances and utterances[-1].role == role:
            utterances[-1] = Utterance(role, f"{utterances[-1].text} {text}")
        else:
            utterances.append(Utterance(role, text))
    return Session(session_id, tuple(utterances))


def session_to_dict(session: Session) -> dict:
    """The JSON Lines form of a session, which the `jsonl` format reads."""
    turns = [{"role": turn.role, "text": turn.text} for turn in session.turns]
    return {"session_id": session.session_id, "turns": turns}
