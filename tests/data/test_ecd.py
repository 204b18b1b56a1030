"""The two response-selection forms of the E-commerce Dialogue Corpus."""

import pytest
from shared_files import shared_file
from window_cases import merge_naively

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import dialoguecse, ecd
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines

TALK = ["杯子 有 货 吗", "有 的 亲", "蓝色 的 也 有 吗", "都 有 的 您 拍 下 就 发", "好 谢谢"]
SAID = ["杯子有货吗", "有的亲", "蓝色的也有吗", "都有的您拍下就发", "好谢谢"]


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def line(label, *texts):
    return "\t".join([str(label), *texts])


def row(before, response, after, roles, labels="1|0"):
    """A row of the authors' form, whose second candidate is a sampled one."""
    return "\t".join(["|".join(before), "|".join(after), roles, "1", f"{response}|没听过", labels])


def read(reader, path, limit=0):
    bad_lines = BadLines(limit)
    sessions = [
        (session_id, [(turn.role[0], turn.text) for turn in turns])
        for session_id, turns in reader.read_sessions(path, bad_lines)
    ]
    return sessions, bad_lines.count


def spoken(roles, texts):
    """The customer's text and the agent's, for "ca" and two texts."""
    return list(zip(roles, texts, strict=True))


def test_the_response_is_the_agents_and_the_speakers_alternate(tmp_path):
    path = write(tmp_path / "train", line(1, *TALK[:4]), line(1, "另外 说 一下", "你好", "您 说"))
    assert read(ecd, path) == (
        [
            ("train-1", spoken("caca", SAID[:4])),
            ("train-2", spoken("aca", ["另外说一下", "你好", "您说"])),
        ],
        0,
    )


def test_responses_that_were_drawn_are_dropped(tmp_path):
    lines = [line(0, *TALK[:3], "下午 好"), line(1, *TALK[:4]), line(0, *TALK[:3], "没 听过")]
    assert read(ecd, write(tmp_path / "t", *lines)) == ([("t-2", spoken("caca", SAID[:4]))], 0)


def test_the_lines_of_a_dialogue_become_one(tmp_path):
    talk = [*TALK[:4], "那 我 拍 蓝色 的", "嗯 嗯"]
    other = ["在 吗", "在 的"]
    lines = [line(1, *talk[:2]), line(1, *other), line(1, *talk), line(1, *talk[:4])]
    expected = [
        ("t-2", spoken("ca", ["在吗", "在的"])),
        ("t-3", spoken("cacaca", [*SAID[:4], "那我拍蓝色的", "嗯嗯"])),
    ]
    assert read(ecd, write(tmp_path / "t", *lines)) == (expected, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("快递 发 EMS 吗", "快递发EMS吗"),
        ("打 95 折", "打95折"),
        ("iPhone 6 Plus 手机", "iPhone 6 Plus手机"),
        ("Hello Kitty 的 杯子", "Hello Kitty的杯子"),
        ("30 40 都 有", "30 40都有"),
        ("2 , 3 天", "2,3天"),
        ("  亲  在 的 ", "亲在的"),
        ("亲\u3000在", "亲在"),
        ("ok", "ok"),
        (" ", ""),
    ],
)
def test_the_spaces_of_the_segmentation_go(tmp_path, text, expected):
    path = write(tmp_path / "t", line(1, "你 问", text))
    assert read(ecd, path)[0] == [("t-1", spoken("ca", ["你问", expected]))]


def test_several_spaces_do_not_make_two_words_one(tmp_path):
    path = write(tmp_path / "t", line(1, "什么 牌子", "Hello  Kitty"))
    [(_, [_, (_, text)])], _ = read(ecd, path)
    assert text.split() == ["Hello", "Kitty"]


@pytest.mark.parametrize(
    "bad", ["nonsense", "1", line(1, "一个"), line(2, *TALK), line("", *TALK), line("1.0", *TALK)]
)
def test_a_line_of_another_form_is_bad(tmp_path, bad):
    path = write(tmp_path / "t", line(1, *TALK[:2]), bad, line(" 1 ", "你 问", "您 说"))
    sessions, count = read(ecd, path, limit=1)
    assert [session_id for session_id, _ in sessions] == ["t-1", "t-3"]
    assert count == 1  # though the file is read twice
    with pytest.raises(InputError, match=f"{path}:2: expected 0 or 1, the context's turns and "):
        read(ecd, path)


@pytest.mark.parametrize(
    ("before", "after", "roles", "expected"),
    [
        (SAID[:3], SAID[4:], "0|1|0-1-0", "cacac"),
        ([], SAID[1:], "-0-1|0|1|0", "cacac"),
        (SAID[:4], [], "1|0|1|0-1-", "acaca"),
        (SAID[:2], SAID[3:], "0|0-1-1|0", "ccaac"),
    ],
)
def test_a_row_is_the_turns_around_its_response(tmp_path, before, after, roles, expected):
    response = SAID[len(before)]
    path = write(tmp_path / "rows.txt", row(before, response, after, roles))
    assert read(dialoguecse, path) == ([("rows.txt-1", spoken(expected, SAID))], 0)


def test_the_rows_of_a_dialogue_become_one(tmp_path):
    rows = [
        row(SAID[1:3], SAID[3], SAID[4:], "1|0-1-0"),
        row(["在吗"], "在的", [], "0-1-"),
        row(SAID[:2], SAID[2], [SAID[3]], "0|1-0-1"),
    ]
    expected = [
        ("t-2", spoken("ca", ["在吗", "在的"])),
        ("t-3", spoken("cacac", SAID)),
    ]
    assert read(dialoguecse, write(tmp_path / "t", *rows)) == (expected, 0)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("nonsense", "tab-separated; found 1 field"),
        (row(["一"], "二", [], "0-1-") + "\t", "tab-separated; found 7 field"),
        (row(["一"], "二", [], "0-1-", labels="0|1"), "expected the true response first"),
        (row(["一"], "二", [], "0-1-", labels=""), "expected the true response first"),
        (row(["一"], "二", [], "0-1"), "expected roles before-response-after, found '0-1'"),
        (row(["一"], "二", [], ""), "expected roles before-response-after"),
        (row(["一"], "二", [], "0|1-1-"), "expected 2 roles, 0 or 1, found"),
        (row(["一"], "二", ["三"], "0-1-"), "expected 3 roles"),
        (row(["一"], "二", [], "0-2-"), "expected 2 roles"),
        (row(["一"], "二", [], "0--"), "expected 2 roles"),
    ],
)
def test_a_row_of_another_form_is_bad(tmp_path, bad, problem):
    good = [row(["甲"], "乙", [], "0-1-"), row(["丙"], "丁", [], "0-1-")]
    path = write(tmp_path / "t", good[0], bad, good[1])
    sessions, count = read(dialoguecse, path, limit=1)
    assert [session_id for session_id, _ in sessions] == ["t-1", "t-3"]
    assert count == 1
    with pytest.raises(InputError, match=f"{path}:2: .*{problem}".replace("|", r"\|")):
        read(dialoguecse, path)


def _windows_of_ecd(path):
    """The response is the agent's. No two Latin words stand together in the sample."""
    for text in path.read_text(encoding="utf-8").splitlines():
        label, *turns = text.split("\t")
        roles = ["agent", "customer"] * len(turns)
        said = [Utterance(role, turn.replace(" ", "")) for role, turn in zip(roles, turns[::-1])]
        yield said[::-1] if label == "1" else []


def _windows_of_rows(path):
    for text in path.read_text(encoding="utf-8").splitlines():
        before, after, roles, _, responses, _ = text.split("\t")
        said = [*before.split("|"), responses.split("|")[0], *after.split("|")]
        speakers = [{"0": "customer", "1": "agent"}[role] for role in roles if role in "01"]
        yield [Utterance(*turn) for turn in zip(speakers, filter(None, said), strict=True)]


@pytest.mark.parametrize(
    ("reader", "windows", "name", "lines", "dialogues"),
    [
        (ecd, _windows_of_ecd, "ecd_response_selection/train", 154, 77),
        (
            dialoguecse,
            _windows_of_rows,
            "dialoguecse_official/edc/train/train_data.txt.sample",
            1000,
            960,
        ),
    ],
)
def test_the_public_samples_are_merged_as_the_rule_says(reader, windows, name, lines, dialogues):
    path = shared_file(name)
    rows = list(windows(path))
    assert len(rows) == lines
    bad_lines = BadLines(0)
    sessions = list(reader.read_sessions(path, bad_lines))
    kept = [number for number, turns in enumerate(rows) if turns]
    expected = {
        f"{path.name}-{kept[place - 1] + 1}": [
            (turn.role, turn.text.replace(" ", "")) for turn in t
        ]
        for place, t in merge_naively([rows[number] for number in kept])
    }
    found = {
        session_id: [(turn.role, turn.text.replace(" ", "")) for turn in turns]
        for session_id, turns in sessions
    }
    assert found == expected
    assert len(sessions) == len(found) == dialogues
