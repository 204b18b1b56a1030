"""JDDC, the JD customer service corpus: one message per line, with 7 tab-separated fields.

The fields are session, user, waiter_send (1 = agent), transferred, repeat, sku and text.
"""

import pathlib
import re
from collections.abc import Iterator

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.reading import group_rows
from dcse_tf.input_files import BadLines, read_lines

_FIELDS = 7
_ROLES = {"0": "customer", "1": "agent"}
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


def read_sessions(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[str, list[Utterance]]]:
    """Yields each session when its last row is read, with customer and agent as roles.

    Placeholders become the word inside ("[数字x]": "数字"). Emoticon codes, and the marks between
    several messages of one turn, become spaces. What the shop's software writes in the customer's
    name at the start ("人工客服", an order card) is removed. A line with another number of fields,
    or with a sender other than 0 or 1, is bad.
    """
    for session_id, turns in group_rows(_read_rows(path, bad_lines), path, bad_lines):
        yield session_id, list(_clean(turns))


def _read_rows(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[int, str, Utterance]]:
    for number, line in read_lines(path, bad_lines):
        # A tab inside the text is part of it.
        fields = line.split("\t", _FIELDS - 1)
        if number == 1 and fields[0].strip().lower() == "session_id":
            continue
        session_id, sender = fields[0].strip(), fields[2].strip() if len(fields) > 2 else ""
        if len(fields) != _FIELDS or sender not in _ROLES or not session_id:
            bad_lines.report(
                path,
                number,
                "expected session, user, 0 or 1 (agent), transferred, repeat, sku, text, "
                f"tab-separated; found {len(fields)} field(s)",
            )
            continue
        text = fields[6].strip()
        if text.lower() in _NOTHING:
            text = ""
        yield number, session_id, Utterance(_ROLES[sender], text)


def _clean(turns: list[Utterance]) -> Iterator[Utterance]:
    opening = True
    for role, text, *_ in turns:
        opening = opening and role == "customer"
        if opening and (boilerplate := _OPENING.match(text.lstrip())):
            text = text.lstrip()[boilerplate.end() :]
        text = _EMOTICON.sub(" ", text.replace(_MESSAGE_BREAK, " "))
        yield Utterance(role, _PLACEHOLDER.sub(r"\1", text))
