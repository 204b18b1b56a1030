"""Sessions made of utterances: joining, white space, silence, HTML; and contexts."""

import json
import re
import unicodedata

import pytest

from dcse_tf.data.dialogue import Context, Session, Utterance, is_blank, make_session, strip_html

BLANK = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"}


def make(turns, join=True):
    return [(t.role, t.text) for t in make_session("s", [Utterance(*t) for t in turns], join).turns]


def test_consecutive_utterances_of_one_speaker_become_one_turn():
    turns = [
        ("a", "hi"), ("a", "there"), ("b", "hello"), ("b", "你好"), ("Agent", "!"), ("agent", "?"),
    ]  # fmt: skip
    assert make(turns) == [("a", "hi there"), ("b", "hello 你好"), *turns[4:]]
    assert make(turns, join=False) == turns


@pytest.mark.parametrize("silence", ["", " \t ", "\u3000", "\u200b", "\ufeff \x07", "\ue000"])
def test_silence_is_dropped_and_does_not_part_utterances_of_one_speaker(silence):
    assert make([("a", "hi"), ("b", silence), ("a", "there")]) == [("a", "hi there")]
    assert make([("a", silence)]) == []


def test_every_character_is_folded_as_a_pattern_folds_it():
    """White space is what a regular expression calls so; of rare characters every 97th."""
    for point in range(0x110000):
        if not (point < 0x3400 or 0xFB00 <= point < 0x10000 or point % 97 == 0):
            continue
        text = f"a {chr(point)}b{chr(point)}"
        assert make([("a", text)]) == [("a", re.sub(r"\s+", " ", text).strip())], ascii(text)
        assert is_blank(chr(point)) == (unicodedata.category(chr(point)) in BLANK), ascii(text)


def test_a_joined_turn_has_the_labels_of_all():
    turns = [
        Utterance("a", "hi", ("greet",), (" HI: ",)),
        Utterance("a", "x?", ("ask", "greet"), ("ASK: x",)),
        Utterance("b", "ok"),
    ]
    joined = make_session("s", turns).turns
    assert joined[0] == Utterance("a", "hi x?", ("greet", "ask"), ("HI:", "ASK: x"))
    assert joined[1] == Utterance("b", "ok")
    value = json.loads(json.dumps(Session("单 1", joined).to_dict()))
    assert value == {
        "session_id": "单 1",
        "turns": [
            {"role": "a", "text": "hi x?", "intents": ["greet", "ask"], "acts": ["HI:", "ASK: x"]},
            {"role": "b", "text": "ok"},
        ],
    }


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>Hello <b>wor</b>ld,<br/>you</p>", "Hello world, you"),
        ("a<script>x < 1</script>b<!-- no -->c", "a b c"),
        ("<style type='a'>p{}</style><div>Fish &amp; Co.&nbsp;&lt;3</div>", "Fish & Co. <3"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<ABBR title='x'>ok</ABBR><unknown>now", "ok now"),
        ("<script>never closed", "never closed"),
    ],
)
def test_html_is_stripped(html, text):
    assert " ".join(strip_html(html).split()) == text


def test_a_context_is_around_its_response():
    assert Context(2, "both").of(7, 1) == [0, 2, 3]
    assert Context(2, "before").of(7, 3) == [1, 2]
    assert Context(2, "both").offsets == (-2, -1, 1, 2)
