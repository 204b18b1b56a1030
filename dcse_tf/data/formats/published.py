"""Readers of published corpora, a function each, and of plain lines of session, role and text.

A reader takes a path and a `BadLines`, and yields (session id, utterances in order). Its
docstring's first paragraph is the help of its format.
"""

import itertools
import operator
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.candidates import merge_windows
from dcse_tf.data.formats.reading import Sessions, convert, get_field, read_json_members, unquote
from dcse_tf.input_files import BadLines, read_lines


def _read_session_lines(
    path: pathlib.Path,
    bad_lines: BadLines,
    parse: Callable[[str], tuple[str, Utterance]],
    header: str | None = None,
) -> Sessions:
    """Yields each session when its last line is read, so that memory holds only one.

    A line of a session that has already ended is bad: two pieces of one session must not become two
    sessions, which could then be negatives of each other. The first line may be a header, whose
    first field is `header`.
    """
    begun: set[str] = set()
    current = ""

    def parse_next(number: int, line: str) -> tuple[str, Utterance]:
        nonlocal current
        session_id, utterance = parse(line)
        if session_id != current and session_id in begun:
            raise ValueError(f"session {session_id!r} ended before; keep its lines together")
        begun.add(current := session_id)
        return session_id, utterance

    lines = (
        (number, line)
        for number, line in read_lines(path, bad_lines)
        if number > 1 or line.partition("\t")[0].strip().lower() != header
    )
    rows = convert(lines, parse_next, path, bad_lines)
    for session_id, members in itertools.groupby(rows, operator.itemgetter(0)):
        yield session_id, [utterance for _, utterance in members]


def _require(fields: Sequence[str], holds: bool, expected: str) -> None:
    """Raises ValueError unless the fields of a line are what was expected."""
    if not holds:
        raise ValueError(f"expected {expected}, tab-separated; found {len(fields)} field(s)")


def read_session_tsv(path: pathlib.Path, bad_lines: BadLines) -> Sessions:
    """session_id, role and text, tab-separated, the lines of a session together, quotes or not."""

    def parse(line: str) -> tuple[str, Utterance]:
        fields = [unquote(field).strip() for field in line.split("\t")]
        names = "session_id, role and text (`format`=session_tsv)"
        _require(fields, len(fields) == 3 and bool(fields[0]), names)
        return fields[0], Utterance(fields[1], fields[2])

    return _read_session_lines(path, bad_lines, parse)


# The paper's corpora

_SENDERS = {"0": "customer", "1": "agent"}
_NOTHING = {"nan", "null", "none"}
# "[数字x]" replaces a number that the publisher removed. The brackets and the x are not language
# and would be extra tokens for BERT, so only the word inside is kept.
_PLACEHOLDER = re.compile(r"\[([^\[\]\s]{1,8}?)x\]")
_EMOTICON = re.compile(r"#E-[0-9A-Za-z]*(?:\[数字x\])?")
_MESSAGE_BREAK = "!@@@!"
# What the shop's software writes in the customer's name before anyone has spoken: which button was
# pressed, order cards, links to products.
_OPENING = re.compile(
    r"(?:(?:"
    r"(?:我要)?(?:转)?人工(?:客服)?(?=\s|$)"
    r"|京东快递\(移动端\)"
    r"|请选择咨询订单|订单业务咨询"
    r"|顾客通过点击\S*?信息发送[:：]?"
    r"|咨询订单号[:：]\S*(?:\s+(?:订单金额|下单时间|商品ID)[:：]\S*(?:\s+\[时间x\]\S*)?)*"
    r"|\[订单编号[:：](?:[^\[\]]|\[[^\[\]]*\])*\]"
    r"|\[链接x\]|\[商品快照\]"
    r")\s*)+"
)


def read_jddc(path: pathlib.Path, bad_lines: BadLines) -> Sessions:
    """chat.txt of JDDC, the JD customer service corpus: 7 fields.

    The fields are session, user, waiter_send (1 = agent), transferred, repeat, sku and text.
    Placeholders become the word inside ("[数字x]": "数字"). Emoticon codes, and the marks between
    several messages of one turn, become spaces. What the shop's software writes in the customer's
    name at the start ("人工客服", an order card) is removed.
    """

    def parse(line: str) -> tuple[str, Utterance]:
        fields = line.split("\t", 6)  # a tab inside the text is part of it
        session_id, sender = fields[0].strip(), fields[2].strip() if len(fields) > 2 else ""
        names = "session, user, 0 or 1 (agent), transferred, repeat, sku, text"
        _require(fields, len(fields) == 7 and sender in _SENDERS and bool(session_id), names)
        text = fields[6].strip()
        text = "" if text.lower() in _NOTHING else text
        return session_id, Utterance(_SENDERS[sender], text)

    for session_id, turns in _read_session_lines(path, bad_lines, parse, "session_id"):
        opening, clean = True, []
        for role, text, *_ in turns:
            opening = opening and role == "customer"
            if opening and (boilerplate := _OPENING.match(text.lstrip())):
                text = text.lstrip()[boilerplate.end() :]
            text = _EMOTICON.sub(" ", text.replace(_MESSAGE_BREAK, " "))
            clean.append(Utterance(role, _PLACEHOLDER.sub(r"\1", text)))
        yield session_id, clean


_ACT = re.compile("[a-z][a-z_ ]*", re.IGNORECASE)


def read_mdc(path: pathlib.Path, bad_lines: BadLines) -> Sessions:
    """{movie,restaurant,taxi}_all.tsv of the Microsoft Dialogue Corpus, with a header.

    The columns are session.ID, Message.ID, Message.Timestamp, Message.From (user or agent),
    Message.Text, and one or more dialogue acts, whose name before the bracket is an intent.
    Sessions are numbered afresh in each domain's file, so their ids begin with the file's name up
    to "_".
    """
    domain = path.name.split("_")[0].split(".")[0].lower()

    def parse(line: str) -> tuple[str, Utterance]:
        fields = [unquote(field).strip() for field in line.split("\t")]
        role = fields[3].lower() if len(fields) > 4 else ""
        expected = "session.ID, Message.ID, Message.Timestamp, user or agent, Message.Text, acts"
        _require(fields, bool(fields[0]) and role in ("user", "agent"), expected)
        names = (field.partition("(")[0].rstrip() for field in fields[5:])
        intents = dict.fromkeys(name.lower() for name in names if _ACT.fullmatch(name))
        return f"{domain}-{fields[0]}", Utterance(role, fields[4], tuple(intents))

    return _read_session_lines(path, bad_lines, parse, "session.id")


def read_dialoguecse(path: pathlib.Path, bad_lines: BadLines) -> Sessions:
    """train_data.txt of DialogueCSE's authors.

    Six tab-separated fields: turns before the response, joined by "|"; turns after it, likewise;
    the roles as "before-response-after", each a list of 0 or 1 joined by "|"; a constant; candidate
    responses joined by "|", the true one first; their labels. The negatives are dropped, and rows
    of one dialogue are merged (`merge_windows`). Sessions are named by file and line.
    """

    def parse(number: int, line: str) -> tuple[int, list[Utterance]]:
        fields = line.split("\t")
        names = "turns before, turns after, roles, a constant, responses, labels"
        _require(fields, len(fields) == 6, names)
        before, after, roles, _, responses, labels = fields
        if labels.split("|")[0].strip() != "1":
            raise ValueError("expected the true response first: label 1")
        parts = roles.strip().split("-")
        texts = [*_split(before), responses.split("|")[0], *_split(after)]
        speakers = [role for part in parts for role in _split(part)]
        if len(parts) != 3 or len(speakers) != len(texts) or not set(speakers) <= set(_SENDERS):
            wanted = f"{len(texts)} roles, 0 or 1, as before-response-after"
            raise ValueError(f"expected {wanted}; found {roles[:40]!r}")
        return number, [Utterance(_SENDERS[role], text) for role, text in zip(speakers, texts)]

    windows = convert(read_lines(path, bad_lines), parse, path, bad_lines)
    for numbers, turns in merge_windows(windows):
        yield f"{path.name}-{numbers[0]}", turns


def _split(text: str) -> list[str]:
    return text.split("|") if text else []


def read_chitchat(path: pathlib.Path, bad_lines: BadLines) -> Sessions:
    """dataset.json of the PyPI package chitchat-dataset (MIT).

    It maps ids to `{"messages": [[{"text", "sender", ...}, ...], ...]}`; each inner list has the
    messages of one turn, whose role is the sender.
    """

    def parse(number: int, member: tuple[str, Any]) -> tuple[str, list[Utterance]]:
        session_id, conversation = member
        groups = get_field(conversation, "messages", list)
        if not all(isinstance(messages, list) for messages in groups):
            raise ValueError('expected "messages" to be a list of lists')
        return session_id, [
            Utterance(get_field(message, "sender", str), get_field(message, "text", str))
            for messages in groups
            for message in messages
        ]

    return read_json_members(path, bad_lines, dict, parse)


def read_sgd(path: pathlib.Path, bad_lines: BadLines) -> Sessions:
    """dialogues_*.json of Schema-Guided Dialogue (Rastogi et al. 2020), each one JSON array.

    The intents of a turn are those that it states with the act INFORM_INTENT. "active_intent",
    which persists until another intent is stated, is not used: it would label "yes, that's right"
    too. Acts are written with their slots, such as "REQUEST:time"; an act without a slot ends with
    the colon.
    """

    def parse_turn(turn: Any) -> Utterance:
        role, text = (get_field(turn, name, str) for name in ("speaker", "utterance"))
        intents: list[str] = []
        acts = set()
        for frame in get_field(turn, "frames", list, []):
            for action in get_field(frame, "actions", list, []):
                act = get_field(action, "act", str)
                acts.add(f"{act}:{get_field(action, 'slot', str, '')}")
                if act == "INFORM_INTENT":
                    intents += map(str, get_field(action, "values", list))
        return Utterance(role.lower(), text, tuple(dict.fromkeys(intents)), tuple(sorted(acts)))

    def parse(number: int, dialogue: Any) -> tuple[str, list[Utterance]]:
        if not (session_id := get_field(dialogue, "dialogue_id", str)):
            raise ValueError('expected "dialogue_id", found an empty text')
        return session_id, [parse_turn(turn) for turn in get_field(dialogue, "turns", list)]

    return read_json_members(path, bad_lines, list, parse)
