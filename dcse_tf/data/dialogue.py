"""Dialogues as Python objects: utterances, sessions, contexts, joining. No TensorFlow here."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from dcse_tf.bert.blanks import is_blank

# Self-supervised tasks that a re-ranker can learn besides matching (Xu et al. 2020, section 2.3).
AUXILIARY_TASKS = ("next_session", "restoration", "incoherence", "consistency")


class Utterance(NamedTuple):
    """What one speaker said in one turn, with labels where the corpus has any.

    Attributes:
        role: the speaker.
        text: the text of the utterance.
        intents: the intents that the speaker expresses.
        acts: the dialogue acts, each with its slot if it has one: "REQUEST:time".
    """

    role: str
    text: str
    intents: tuple[str, ...] = ()
    acts: tuple[str, ...] = ()


# An utterance, or a plain tuple of its fields.
Turn = tuple[str, str, tuple[str, ...], tuple[str, ...]]


class GivenCandidates(NamedTuple):
    """Candidates that a file gives for the last turn of a session, which is the true response.

    Attributes:
        dialogue: id of the dialogue that the session is a piece of.
        negatives: other responses to the same context.
        scores: a teacher's scores of the true response and then of each negative; () if there are
            none.
    """

    dialogue: str
    negatives: tuple[str, ...]
    scores: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Session:
    """A dialogue: its turns in order.

    Attributes:
        session_id: its id.
        turns: its turns, in order.
        given: candidates for the last turn, if the corpus gives any.
    """

    session_id: str
    turns: tuple[Utterance, ...]
    given: GivenCandidates | None = None

    @property
    def dialogue(self) -> str:
        """The id of the dialogue that the session is from; its own id if it is a whole dialogue."""
        return self.given.dialogue if self.given else self.session_id


@dataclasses.dataclass(frozen=True)
class Context:
    """Which turns around a response form its context (paper, section 3.1).

    Training, response selection and explanations all use this definition. For example,
    `Context(2, "both").of(num_turns=7, response=1)` is `[0, 2, 3]`.

    Attributes:
        turns: maximum number of context turns on each side.
        side: "both" for turns before and after the response, "before" for turns before it only.
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
        """Maximum number of context turns; near the ends of a session there are fewer."""
        return len(self.offsets)

    @property
    def first_response(self) -> int:
        """Index of the first turn that can be a response: one that has a context."""
        return 0 if self.side == "both" else 1

    def of(self, num_turns: int, response: int) -> list[int]:
        """Lists the context of a response.

        Args:
            num_turns: number of turns of the session.
            response: index of the response, from 0.

        Returns:
            The indices of the context's turns, in order.
        """
        around = (response + offset for offset in self.offsets)
        return [turn for turn in around if 0 <= turn < num_turns]


def make_session(session_id: str, turns: Iterable[Turn], join: bool = True) -> Session:
    """Builds a session from utterances in order.

    Runs of white space become one space, in labels too, so that a session can be written as lines
    and read back. Texts with nothing to read are dropped before joining, so that they do not
    separate two utterances of one speaker.

    Args:
        session_id: the session's id.
        turns: the utterances.
        join: whether to join consecutive utterances of one speaker into one turn, with the labels
            of all of them (paper, section 5.1.1).
    """
    return join_turns(session_id, drop_blank(turns), join)


def drop_blank(turns: Iterable[Turn]) -> list[Turn]:
    """Keeps the turns that have something to read."""
    # Most texts begin with a letter or a digit, which makes the call unnecessary.
    return [turn for turn in turns if turn[1][:1].isalnum() or not is_blank(turn[1])]


def join_turns(session_id: str, turns: Iterable[Turn], join: bool) -> Session:
    """Does the work of `make_session`, for turns without blank ones."""
    utterances: list[Utterance] = []
    for role, text, intents, acts in turns:
        if intents or acts:
            intents, acts = _fold_labels(intents), _fold_labels(acts)
        text = fold_spaces(text)
        if join and utterances and utterances[-1].role == role:
            last = utterances[-1]
            utterances[-1] = Utterance(
                role,
                f"{last.text} {text}",
                tuple(dict.fromkeys(last.intents + intents)),
                tuple(dict.fromkeys(last.acts + acts)),
            )
        else:
            utterances.append(Utterance(role, text, intents, acts))
    return Session(session_id, tuple(utterances))


def _fold_labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(fold_spaces, labels))) if labels else ()


def fold_spaces(text: str) -> str:
    """Replaces each run of white space, as `str.split` defines it, by one space."""
    # A fast path for most texts: the only printable white space is the space.
    if "  " not in text and text.isprintable():
        return text.strip()
    return " ".join(text.split())


def session_to_dict(session: Session) -> dict:
    """Converts a session to the JSON object that the `jsonl` format reads."""
    turns = []
    for role, text, intents, acts in session.turns:
        turn: dict[str, object] = {"role": role, "text": text}
        if intents:
            turn["intents"] = list(intents)
        if acts:
            turn["acts"] = list(acts)
        turns.append(turn)
    return {"session_id": session.session_id, "turns": turns}
