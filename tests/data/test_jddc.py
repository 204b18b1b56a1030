import collections
import re

import pytest
from shared_files import shared_file

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import jddc
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines

HEADER = "session_id\tuser_id\twaiter_send\tis_transfer\tis_repeat\tsku\tcontent"
CARD = "[订单编号:[订单x]，订单金额:[金额x]，下单时间:[日期x] [时间x]]"
BUTTON = "顾客通过点击web咚咚[站点x]信息发送:"
ORDER = "咨询订单号:[订单x] 订单金额:[金额x] 下单时间:[日期x]"


def row(session, sender, text):
    return f"{session}\tU7\t{sender}\t0\t0\tnan\t{text}"


def write(path, *lines):
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def read(path, limit=0):
    bad_lines = BadLines(limit)
    return list(jddc.read_sessions(path, bad_lines)), bad_lines.count


def clean(tmp_path, *messages):
    """What becomes of the texts of one session; each message is sender and text, "0你好"."""
    rows = [row("s", message[0], message[1:]) for message in messages]
    [(_, turns)], bad = read(write(tmp_path / "chat.txt", *rows))
    assert bad == 0
    return [" ".join(turn.text.split()) for turn in turns]


def test_a_message_a_line(tmp_path):
    path = write(
        tmp_path / "chat.txt",
        HEADER,
        row("s1", "0", "我的杯子碎了"),
        row(" s1 ", " 1 ", "  很抱歉，给您补寄一个\t好吗 "),
        row("s2", "1", "还在吗"),
    )
    first = [
        Utterance("customer", "我的杯子碎了"),
        Utterance("agent", "很抱歉，给您补寄一个\t好吗"),
    ]
    assert read(path) == ([("s1", first), ("s2", [Utterance("agent", "还在吗")])], 0)


def test_a_file_may_lack_the_header(tmp_path):
    path = write(tmp_path / "chat.txt", row("s1", "0", "你好"))
    assert read(path) == ([("s1", [Utterance("customer", "你好")])], 0)


@pytest.mark.parametrize("nothing", ["nan", "NaN", "null", "NULL", "none", " None ", "", "  "])
def test_a_text_that_says_nothing_is_empty(tmp_path, nothing):
    assert clean(tmp_path, f"0{nothing}", "1您好") == ["", "您好"]


@pytest.mark.parametrize("text", ["nano", "none of them", "不是nan"])
def test_a_text_with_such_a_word_stays(tmp_path, text):
    assert clean(tmp_path, f"1{text}") == [text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("大概[数字x]-[数字x]天", "大概数字-数字天"),
        ("寄到[地址x]，[姓名x]收", "寄到地址，姓名收"),
        ("[商品快照]在哪", "[商品快照]在哪"),  # without the x it is no placeholder
        ("[x]", "[x]"),
        ("[box]", "bo"),
        ("[ x]", "[ x]"),
        ("[[数字x]]", "[数字]"),
        ("[一二三四五六七八九x]", "[一二三四五六七八九x]"),  # longer than any
    ],
)
def test_a_placeholder_becomes_its_word(tmp_path, text, expected):
    assert clean(tmp_path, "1您好", f"0{text}", f"1{text}") == ["您好", expected, expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("好的#E-s[数字x]", "好的"),
        ("好的#E-s[数字x]谢谢", "好的 谢谢"),
        ("#E-s[数字x]#E-b[数字x]在吗", "在吗"),
        ("#E-2 在吗", "在吗"),
        ("在吗!@@@!我要退货!@@@!", "在吗 我要退货"),
        ("!@@@!", ""),
        ("3!@@@", "3!@@@"),
    ],
)
def test_emoticons_and_marks_between_messages_become_spaces(tmp_path, text, expected):
    assert clean(tmp_path, "1您好", f"0{text}", f"1{text}") == ["您好", expected, expected]


@pytest.mark.parametrize("text", ["#E-s谢谢您", "#E-s01谢谢您", "好#E-b退货"])
def test_an_emoticon_ends_where_the_words_begin(tmp_path, text):
    expected = text.replace("#E-s01", " ").replace("#E-s", " ").replace("#E-b", " ").strip()
    assert clean(tmp_path, f"1{text}") == [expected]


@pytest.mark.parametrize(
    "opening",
    [
        "人工客服",
        "人工",
        "我要转人工",
        "我要转人工 我要转人工",
        "人工客服 京东快递(移动端)",
        "请选择咨询订单",
        CARD,
        f"{CARD} {CARD}",
        "[订单编号:[数字x]，订单金额:，下单时间:]",
        "[订单编号:[数字x]，订单金额:[金额x]，下单时间:NaN-NaN-NaN NaN:NaN]",
        f"{BUTTON}{CARD}",
        f"{BUTTON}{CARD} {CARD} {BUTTON}{CARD}",
        ORDER,
        f"{ORDER} {ORDER}",
        "咨询订单号:[订单x] 订单金额:[金额x] 下单时间:[日期x] [时间x]",
        "咨询订单号:[订单x]    商品ID:[数字x] 订单业务咨询",
        "[链接x] [链接x]",
        "[商品快照]",
    ],
)
def test_what_the_programme_writes_at_the_start_is_removed(tmp_path, opening):
    said = "这个[数字x]元的能退吗 [链接x]"
    meant = "这个数字元的能退吗 链接"
    messages = [f"0{opening}", f"0 {opening} {said}", f"1{opening} {said}", f"0{opening}"]
    cleaned = clean(tmp_path, *messages)
    assert cleaned[:2] == ["", meant]
    # After the agent has spoken it is part of the talk, and the agent's own always is.
    assert cleaned[2].endswith(meant)
    assert len(cleaned[2]) > len(meant)
    assert cleaned[3]


@pytest.mark.parametrize(
    "said",
    [
        "人工怎么转",
        "我要转人工服务",
        "有订单编号么",
        "你好 人工客服",
        "能看订单吗",
        "咨询订单",
        "链接发我",
    ],
)
def test_what_the_customer_says_at_the_start_stays(tmp_path, said):
    assert clean(tmp_path, f"0{said}", "1您好") == [said, "您好"]


@pytest.mark.parametrize(
    "text",
    [
        "[订单编号:[订单x]，下单时间:[时间x] 你好 我买了[数字x]个",
        "[订单编号:[订单x]] 你好 下单时间:昨天，要[数字x]个 [图片x]",
    ],
)
def test_a_card_of_another_form_takes_nothing_of_what_the_customer_says(tmp_path, text):
    assert "你好" in clean(tmp_path, f"0{text}", "1您好")[0]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("nonsense", 1),
        ("s1\tU7\t0", 3),
        ("s1\tU7\t0\t0\t0\tnan", 6),
        (row("", "0", "你好"), 7),
        (row(" ", "0", "你好"), 7),
        (row("s1", "2", "你好"), 7),
        (row("s1", "", "你好"), 7),
        (row("s1", "customer", "你好"), 7),
        (HEADER, 7),
    ],
)
def test_a_line_of_another_form_is_bad(tmp_path, line, found):
    path = write(tmp_path / "chat.txt", row("s1", "0", "a"), line, row("s1", "1", "b"))
    expected = [("s1", [Utterance("customer", "a"), Utterance("agent", "b")])]
    assert read(path, limit=1) == (expected, 1)
    with pytest.raises(InputError, match=rf"chat\.txt:2: expected session, .*found {found} field"):
        read(path)


def test_a_session_that_comes_back_is_bad(tmp_path):
    rows = [row("s1", "0", "a"), row("s2", "0", "b"), row("s1", "1", "c")]
    with pytest.raises(InputError, match=r"chat\.txt:3: session 's1' ended before"):
        read(write(tmp_path / "chat.txt", *rows))


def test_the_first_session_does_not_wait_for_the_rest(tmp_path):
    path = write(tmp_path / "chat.txt", row("s1", "0", "a"), row("s2", "0", "b"), "nonsense")
    sessions = jddc.read_sessions(path, BadLines(0))
    assert next(sessions) == ("s1", [Utterance("customer", "a")])
    with pytest.raises(InputError):
        next(sessions)


def test_the_public_sample_is_all_read():
    path = shared_file("jddc_raw/chat_0.1per.txt")
    lines = path.read_bytes().decode().splitlines()
    expected = collections.defaultdict(list)
    for line in lines:
        fields = line.split("\t", 6)
        expected[fields[0]].append((("customer", "agent")[int(fields[2])], fields[6]))
    sessions, bad = read(path)
    assert (len(sessions), len(lines), bad) == (994, 12_136, 0)
    assert [session_id for session_id, _ in sessions] == list(expected)
    removed = 0
    for session_id, turns in sessions:
        assert [turn.role for turn in turns] == [role for role, _ in expected[session_id]]
        opening = True
        for turn, (role, text) in zip(turns, expected[session_id]):
            opening = opening and role == "customer"
            said, left = (_without_brackets(part) for part in (text, turn.text))
            # At the start something may be gone before it; further on there is all that was said.
            assert said.endswith(left) if opening else said == left
            assert not re.search(r"\[\w+x\]", turn.text)
            removed += said != left
    assert removed > 200


def _without_brackets(text):
    text = re.sub(r"\[(\w+)x\]", r"\1", text.replace("!@@@!", " "))
    return "" if text.strip().lower() in ("nan", "null", "none") else text.strip()
