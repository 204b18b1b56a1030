"""Dialogues as Python objects: utterances, sessions, contexts, joining. No TensorFlow here."""

import dataclasses
import html
import re
from collections.abc import Iterable
from typing import NamedTuple

from dcse_tf.bert.blanks import is_blank

# Self-supervised tasks that a re-ranker can learn besides matching (Xu et al. 2020, section 2.3).
AUXILIARY_TASKS = ("next_session", "restoration", "incoherence", "consistency")


class Utterance(NamedTuple):
    """What one speaker (role) said in one turn, with labels where the corpus has any: the intents
    that the speaker expresses, and the dialogue acts, each with its slot if it has one
    ("REQUEST:time").
    """

    role: str
    text: str
    intents: tuple[str, ...] = ()
    acts: tuple[str, ...] = ()


class GivenCandidates(NamedTuple):
    """Other responses (negatives) that a file gives for the last turn of a session, and the id of
    the dialogue that the session is a piece of.
    """

    dialogue: str
    negatives: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Session:
    """A dialogue: its id, its turns in order, and candidates for the last turn, if the corpus gives
    any.
    """

    session_id: str
    turns: tuple[Utterance, ...]
    given: GivenCandidates | None = None

    @property
    def dialogue(self) -> str:
        """The id of the dialogue that the session is from; its own id if it is a whole dialogue."""
        return self.given.dialogue if self.given else self.session_id

    def list_texts(self) -> list[str]:
        """The texts of the turns, then of given negatives."""
        return [turn.text for turn in self.turns] + list(self.given.negatives if self.given else ())

    def to_dict(self) -> dict:
        """The JSON object that the `jsonl` format reads; "dialogue" only if it is not the id."""
        turns = [
            {
                **{"role": role, "text": text},
                **({"intents": list(intents)} if intents else {}),
                **({"acts": list(acts)} if acts else {}),
            }
            for role, text, intents, acts in self.turns
        ]
        dialogue = {"dialogue": self.dialogue} if self.given else {}
        return {"session_id": self.session_id, "turns": turns, **dialogue}


@dataclasses.dataclass(frozen=True)
class Context:
    """Which turns around a response form its context (paper, section 3.1): at most `turns` on each
    side, "both" sides or only those "before" it.

    Training, response selection and explanations all use this definition. For example,
    `Context(2, "both").of(num_turns=7, response=1)` is `[0, 2, 3]`.
    """

    turns: int
    side: str

    @property
    def offsets(self) -> tuple[int, ...]:
        """Positions of the context's turns relative to the response, in order."""
        after = range(1, self.turns + 1) if self.side == "both" else ()
        return (*range(-self.turns, 0), *after)

    @property
    def slots(self) -> int:
        """Maximum number of context turns."""
        return len(self.offsets)

    @property
    def first_response(self) -> int:
        """Index of the first turn that can be a response: one that has a context."""
        return 0 if self.side == "both" else 1

    def of(self, num_turns: int, response: int) -> list[int]:
        """The indices of a response's context turns, in order, in a session of `num_turns`."""
        around = (response + offset for offset in self.offsets)
        return [turn for turn in around if 0 <= turn < num_turns]


def make_session(session_id: str, turns: Iterable[Utterance], join: bool = True) -> Session:
    """Builds a session from utterances in order.

    Runs of white space become one space, in labels too, so that a session can be written as lines
    and read back. Texts with nothing to read are dropped before joining, so that they do not
    separate two utterances of one speaker. With `join`, consecutive utterances of one speaker
    become one turn, with the labels of all of them (paper, section 5.1.1).
    """
    joined: list[Utterance] = []
    for role, text, intents, acts in turns:
        # Most texts begin with a letter or a digit, which makes the call unnecessary.
        if not text[:1].isalnum() and is_blank(text):
            continue
        text = fold_spaces(text)
        if intents or acts:
            intents, acts = (
                tuple(dict.fromkeys(map(fold_spaces, labels))) for labels in (intents, acts)
            )
        if join and joined and joined[-1].role == role:
            last = joined.pop()
            text = f"{last.text} {text}"
            intents, acts = (
                tuple(dict.fromkeys(labels))
                for labels in (last.intents + intents, last.acts + acts)
            )
        joined.append(Utterance(role, text, intents, acts))
    return Session(session_id, tuple(joined))


def fold_spaces(text: str) -> str:
    """Replaces each run of white space, as `str.split` defines it, by one space."""
    # A fast path for most texts: the only printable white space is the space.
    if "  " not in text and text.isprintable():
        return text.strip()
    return " ".join(text.split())


_UNREAD = re.compile(r"<!--.*?-->|<(script|style|head|title)\b.*?</\1\s*>", re.I | re.S)
# Tags within a line; any other stands between words.
_INLINE = re.compile(
    r"</?(?:a|abbr|b|bdi|bdo|cite|code|del|dfn|em|font|i|ins|kbd|mark|q|s|samp|small|span|strike|"
    r"strong|sub|sup|tt|u|var|wbr)\b[^<>]*>",
    re.I,
)
_TAG = re.compile(r"</?[a-z!?][^<>]*>", re.I)


def strip_html(text: str) -> str:
    """The readable text of a piece of HTML: tags become spaces or, within a line, nothing.

    Scripts, styles and comments are left out, and entities such as &amp; become characters.
    """
    text = _INLINE.sub("", _UNREAD.sub(" ", text))
    return html.unescape(_TAG.sub(" ", text))
