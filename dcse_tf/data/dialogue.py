"""Dialogues as Python objects: utterances, sessions, contexts, and what is done with their texts.

No TensorFlow here.
"""

import dataclasses
import functools
import html
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dcse_tf.bert.vocabulary import is_blank
from dcse_tf.errors import require


class Utterance(NamedTuple):
    """What one speaker (role) said in one turn, with labels where the corpus has any."""

    role: str
    text: str
    intents: tuple[str, ...] = ()  # that the speaker expresses
    acts: tuple[str, ...] = ()  # dialogue acts, each with its slot if it has one: "REQUEST:time"


class GivenCandidates(NamedTuple):
    """Other responses that a file gives for the last turn of a session."""

    dialogue: str  # the id of the dialogue that the session is a piece of
    negatives: tuple[str, ...]  # none if the file only names the dialogue


@dataclasses.dataclass(frozen=True)
class Session:
    """A dialogue, with candidates for its last turn if the corpus gives any."""

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
        told = (turn._asdict().items() for turn in self.turns)
        turns = [{k: v for k, v in turn if v or k in ("role", "text")} for turn in told]
        dialogue = {"dialogue": self.dialogue} if self.given else {}
        return {"session_id": self.session_id, "turns": turns, **dialogue}


@dataclasses.dataclass(frozen=True)
class Context:
    """Which turns around a response form its context (paper, section 3.1): at most `turns` on each
    side, "both" sides or only those "before" it.

    For example, `Context(2, "both").of(num_turns=7, response=1)` is `[0, 2, 3]`.
    """

    turns: int
    side: str

    @property
    def offsets(self) -> tuple[int, ...]:
        """Positions of the context's turns relative to the response, in order."""
        after = range(1, self.turns + 1) if self.side == "both" else ()
        return (*range(-self.turns, 0), *after)

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
        if join and joined and joined[-1].role == role:
            last = joined.pop()
            text, intents, acts = f"{last.text} {text}", last.intents + intents, last.acts + acts
        if intents or acts:
            folded = (map(fold_spaces, labels) for labels in (intents, acts))
            intents, acts = (tuple(dict.fromkeys(labels)) for labels in folded)
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
    """The readable text of a piece of HTML: tags become spaces or, within a line, nothing, scripts,
    styles and comments too, and entities such as &amp; become characters.
    """
    text = _INLINE.sub("", _UNREAD.sub(" ", text))
    return html.unescape(_TAG.sub(" ", text))


# Words, for BM25, word vectors and counts; BERT uses WordPiece instead

_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_OF_EMOJI = re.compile("[\u20e3\ufe00-\ufe0f]")  # the frame of a keycap, variation selectors
_CHARACTER = re.compile(r"[0-9a-z\u00df-\u024f]+|\S")


def make_splitter(kind: str) -> Callable[[str], list[str]]:
    """Makes a function that splits a text into its words, in lower case: "words", runs of letters
    and digits; "jieba", Chinese words, and any other symbol by itself (jieba's default mode, which
    agrees best with the paper's retrieval sets); "characters", by themselves, but Latin words and
    numbers as a whole; "auto", "jieba" for a text with a Chinese character, else "words".
    """
    splitters: dict[str, Callable[[str], list[str]]] = {
        "auto": lambda text: splitters["jieba" if _HAN.search(text) else "words"](text),
        "words": lambda text: _word().findall(text.casefold()),
        "jieba": lambda text: [w for w in _cut()(text.casefold()) if not w.isspace()],
        "characters": lambda text: _CHARACTER.findall(text.casefold()),
    }
    return splitters[kind]


@functools.cache  # takes a twentieth of a second
def list_marks() -> str:
    """Marks that belong to the letter before them, such as the vowel signs of Hindi and Thai."""
    chars = map(chr, range(0x300, 0x11000))
    return _OF_EMOJI.sub("", "".join(c for c in chars if unicodedata.category(c)[0] == "M"))


@functools.cache
def _word() -> re.Pattern[str]:
    marks = list_marks()
    return re.compile(rf"\w[\w{marks}]*(?:['’]\w[\w{marks}]*)*")


@functools.cache
def _cut() -> Callable[[str], list[str]]:
    # Imported only for Chinese text, because jieba takes a second to read its dictionary.
    jieba = require("jieba", extra="chinese", why="splitting Chinese text into words")
    jieba.setLogLevel(logging.WARNING)
    return jieba.lcut
