import json
import re
import unicodedata

import pytest

from dcse_tf.data.dialogue import Session, Utterance, is_blank, make_session, session_to_dict

BLANK = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"}


def make(session_id, turns, join=True):
    return make_session(session_id, [Utterance(*turn) for turn in turns], join)


def pairs(session):
    return [(turn.role, turn.text) for turn in session.turns]


def test_consecutive_utterances_of_one_speaker_become_one_turn():
    turns = [("a", "hi"), ("a", "there"), ("b", "hello"), ("b", "你好"), ("b", "!"), ("a", "bye")]
    expected = [("a", "hi there"), ("b", "hello 你好 !"), ("a", "bye")]
    assert pairs(make("s", turns)) == expected
    assert pairs(make("s", turns, join=False)) == turns


def test_empty_texts_do_not_part_two_utterances_of_one_speaker():
    turns = [("a", "hi"), ("b", ""), ("a", " \t "), ("b", "\u3000"), ("a", "there"), ("b", "ok")]
    assert pairs(make("s", turns)) == [("a", "hi there"), ("b", "ok")]
    assert pairs(make("s", turns, join=False)) == [("a", "hi"), ("a", "there"), ("b", "ok")]


@pytest.mark.parametrize("space", ["\n", "\r\n", "\t", "  ", "\u2028", "\u3000", "\x85", "\u00a0"])
def test_white_space_is_folded(space):
    session = make("s", [("a", f"{space}one{space}two{space}")])
    assert pairs(session) == [("a", "one two")]


@pytest.mark.parametrize("turns", [[], [("a", "")], [("a", " "), ("b", "\n")]])
def test_a_session_of_silence_has_no_turns(turns):
    assert make("s", turns) == Session("s", ())


@pytest.mark.parametrize("silence", ["\u200b", "\ufeff \x07", "\ue000", "\u00ad\t"])
def test_what_cannot_be_seen_is_silence(silence):
    turns = [("a", "hi"), ("b", silence), ("a", "there")]
    assert pairs(make("s", turns)) == [("a", "hi there")]


@pytest.mark.parametrize("text", ["?", "…", "👍", "\U0001fae8", "a\u200b"])
def test_what_can_be_seen_is_not_silence(text):
    """U+1FAE8, a shaking face, is younger than the Unicode of some Pythons."""
    assert pairs(make("s", [("a", text), ("b", "ok")])) == [("a", text), ("b", "ok")]


def test_every_character_is_folded_as_a_pattern_folds_it():
    """White space is what a regular expression calls so, in any company.

    Of ideographs, syllables, private use and what is not assigned every 97th.
    """
    for point in range(0x110000):
        if not (point < 0x3400 or 0xFB00 <= point < 0x10000 or point % 97 == 0):
            continue
        for text in (chr(point), f"a {chr(point)}b{chr(point)}"):
            expected = re.sub(r"\s+", " ", text).strip()
            blank = {unicodedata.category(char) for char in text} <= BLANK
            assert is_blank(text) == blank, ascii(text)
            turns = make_session("s", [Utterance("a", text)]).turns
            assert [turn.text for turn in turns] == ([] if blank else [expected]), ascii(text)


def test_roles_are_told_apart_by_their_exact_name():
    turns = [("Agent", "hi"), ("agent", "there")]
    assert pairs(make("s", turns)) == turns


def test_making_a_session_of_its_own_turns_changes_nothing():
    once = make("s", [("a", "x  y"), ("a", "z"), ("b", ""), ("b", "w")])
    assert make("s", pairs(once)) == once


def test_the_json_form_holds_everything():
    session = Session("单 1", (Utterance("客服", "您好“亲”"), Utterance("user", 'a "b" \\ c')))
    value = json.loads(json.dumps(session_to_dict(session)))
    assert value == {
        "session_id": "单 1",
        "turns": [{"role": "客服", "text": "您好“亲”"}, {"role": "user", "text": 'a "b" \\ c'}],
    }
    turns = [(turn["role"], turn["text"]) for turn in value["turns"]]
    assert make(value["session_id"], turns) == session


def test_a_joined_turn_has_the_intents_of_all():
    turns = [("a", "hi", ("greet",)), ("a", "book", ("ask", "greet")), ("b", "ok"), ("a", "no", ())]
    session = make("s", turns)
    assert [turn.intents for turn in session.turns] == [("greet", "ask"), (), ()]
    assert [turn.intents for turn in make("s", turns, join=False).turns] == [
        ("greet",),
        ("ask", "greet"),
        (),
        (),
    ]


def test_a_joined_turn_has_the_acts_of_all():
    turns = [("a", "hi", (), (" HI: ", "ASK: x")), ("a", "x?", (), ("ASK: x",)), ("b", "ok")]
    session = make("s", turns)
    assert [turn.acts for turn in session.turns] == [("HI:", "ASK: x"), ()]


def test_the_json_form_names_labels_where_there_are_any():
    turns = (
        Utterance("a", "hi", ("greet",)),
        Utterance("b", "ok"),
        Utterance("b", "x?", (), ("A:",)),
    )
    assert session_to_dict(Session("1", turns))["turns"] == [
        {"role": "a", "text": "hi", "intents": ["greet"]},
        {"role": "b", "text": "ok"},
        {"role": "b", "text": "x?", "acts": ["A:"]},
    ]
