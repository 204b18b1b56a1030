"""Readers of corpora: what comes of a small file of each form, and what is no such file."""

import gzip
import json
import pathlib
from unittest import mock

import pytest
from shared_files import shared_file
from window_cases import merge_naively

from dcse_tf.data.corpus import CorpusOptions, read_raw_sessions
from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import FORMATS, register_format
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines, read_lines
from dcse_tf.options import OptionError, load_plugins

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
CARD = "[订单编号:[订单x]，订单金额:[金额x]，下单时间:[日期x] [时间x]]"


def read(path, format, limit=0):
    bad_lines = BadLines(limit)
    return list(FORMATS[format].read(path, bad_lines)), bad_lines.count


def spell(turns):
    return [f"{turn.role}: {turn.text}" for turn in turns]


def jddc(session, sender, text):
    return f"{session}\tU7\t{sender}\t0\t0\tnan\t{text}"


def mdc(session, sender, text, *acts):
    return "\t".join([session, "1", "2016-05-02 10:00:00", sender, text, *acts])


MDC_HEADER = "session.ID\tMessage.ID\tMessage.Timestamp\tMessage.From\tMessage.Text\tMessage.Acts"
SGD_TURN = {
    "speaker": "USER",
    "utterance": "A table for two",
    "frames": [
        {
            "actions": [
                {"act": "INFORM_INTENT", "slot": "intent", "values": ["ReserveTable"]},
                {"act": "INFORM", "slot": "party_size", "values": ["2"]},
            ]
        },
        {"state": {"active_intent": "FindFilm"}},
    ],
}
SGD_ANSWER = {
    "speaker": "SYSTEM",
    "utterance": "Good",
    "frames": [{"actions": [{"act": "AFFIRM"}]}],
}
CHITCHAT = {"messages": [[{"text": "hi", "sender": "x"}, {"text": "you", "sender": "x"}], []]}

# A file of each form, and its sessions as "role: text".
FILES = {
    "session_tsv": (
        '1\tuser\t在吗\n 1 \tagent \t"say ""hi"""\n\n2\tuser\t\n2\tb\tok ok\n',
        {"1": ["user: 在吗", 'agent: say "hi"'], "2": ["user: ", "b: ok ok"]},
    ),
    "jsonl": (
        '{"session_id": 7, "turns": [{"role": "a", "text": "hi"}, {"role": "system", "text": "x"},'
        ' {"role": "b", "text": ""}]}\n',
        {"7": ["a: hi", "system: x", "b: "]},
    ),
    "jddc": (
        "\n".join(
            [
                "session_id\tuser_id\twaiter_send\tis_transfer\tis_repeat\tsku\tcontent",
                jddc("s1", "0", f"{CARD} 人工客服 这个[数字x]元的\t能退吗"),
                jddc("s1", " 1 ", "好的#E-s[数字x]谢谢!@@@!再见 人工客服"),
                jddc("s2", "1", "NaN"),
                jddc("s2", "0", "[商品快照]在哪"),
            ]
        ),
        {
            "s1": ["customer: 这个数字元的\t能退吗", "agent: 好的 谢谢 再见 人工客服"],
            "s2": ["agent: ", "customer: [商品快照]在哪"],
        },
    ),
    "mdc": (
        "\n".join(
            [
                f"\ufeff{MDC_HEADER}",
                mdc("1", "user", '"say ""a"""', "request(x)", "inform", "request(y)"),
                mdc("1", "Agent", "ok", ""),
                mdc("2", "user", ""),
            ]
        ),
        {"corpus-1": ['user: say "a"', "agent: ok"], "corpus-2": ["user: "]},
    ),
    # Windows of one dialogue become one; a response's negatives are dropped.
    "ecd": (
        "1\t杯子 有 货 吗\t有 的 亲\n0\t杯子 有 货 吗\t没 听过\n"
        "1\t杯子 有 货 吗\t有 的 亲\t蓝色 的 iPhone 6 壳 也 有 吗\t有\n1\t另外\t说 一下\t您 说\n",
        {
            "corpus-3": [
                *("customer: 杯子有货吗", "agent: 有的亲"),
                *("customer: 蓝色的iPhone 6壳也有吗", "agent: 有"),
            ],
            "corpus-4": ["agent: 另外", "customer: 说一下", "agent: 您说"],
        },
    ),
    "dialoguecse": (
        "一一一一|二二二二\t四四四四\t0|1-1-0\t1\t三三三三|没听过\t1|0\n二二二二\t四四四四\t1-1-0\t1\t三三三三|不\t1|0\n",
        {
            "corpus-1": [
                "customer: 一一一一",
                "agent: 二二二二",
                "agent: 三三三三",
                "customer: 四四四四",
            ]
        },
    ),
    "ubuntu": (
        "1\tmy sound is gone\twhich card __eou__ is it __eot__ an old one\n"
        "0\tmy sound is gone\tno idea\n1\thi\tanyone\tme\n",
        {
            "corpus-1": ["a: my sound is gone", "b: which card is it an old one"],
            "corpus-3": ["a: hi", "b: anyone", "a: me"],
        },
    ),
    "chitchat": (
        json.dumps({"c1": CHITCHAT, "c2": {"messages": []}}),
        {"c1": ["x: hi", "x: you"], "c2": []},
    ),
    "sgd": (
        json.dumps([{"dialogue_id": "7_1", "turns": [SGD_TURN, SGD_ANSWER]}]),
        {"7_1": ["user: A table for two", "system: Good"]},
    ),
}


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize("format", FILES)
def test_a_file_of_each_form_is_read(tmp_path, format, packing):
    content, expected = FILES[format]
    data = content.encode()
    path = tmp_path / f"corpus{packing}"
    path.write_bytes(gzip.compress(data) if packing else data)
    sessions, bad = read(path, format)
    named = {name.replace(path.name, "corpus"): spell(turns) for name, turns in sessions}
    assert (named, bad) == (expected, 0)


def test_labels_are_read(tmp_path):
    (tmp_path / "a.json").write_text(FILES["sgd"][0])
    [(_, turns)], _ = read(tmp_path / "a.json", "sgd")
    # An intent that is active is not one that the turn states.
    assert [turn.intents for turn in turns] == [("ReserveTable",), ()]
    acts = [("INFORM:party_size", "INFORM_INTENT:intent"), ("AFFIRM:",)]
    assert [turn.acts for turn in turns] == acts
    [(_, turns), _], _ = read(FIXTURES / "movie_all.tsv", "mdc")
    assert [turn.intents for turn in turns[:3]] == [
        ("request", "inform"),
        ("request",),
        ("inform",),
    ]
    labelled = {"role": "a", "text": "b", "intents": ["x"], "acts": ["Y:"]}
    (tmp_path / "a.jsonl").write_text(json.dumps({"session_id": "1", "turns": [labelled]}))
    assert read(tmp_path / "a.jsonl", "jsonl")[0] == [("1", [Utterance("a", "b", ("x",), ("Y:",))])]


@pytest.mark.parametrize(
    ("opening", "kept"),
    [
        ("人工客服 京东快递(移动端)", ""),
        ("我要转人工 我要转人工 你好", "你好"),
        (f"顾客通过点击web咚咚[站点x]信息发送:{CARD} 请选择咨询订单", ""),
        ("咨询订单号:[订单x] 订单金额:[金额x] 下单时间:[日期x] [时间x] 订单业务咨询", ""),
        ("[链接x] [商品快照] 在吗", "在吗"), *[(x, x) for x in ("人工怎么转", "你好 人工客服")],
        # A card of another form takes nothing of what the customer says.
        ("[订单编号:[订单x]，下单时间:[时间x] 你好", "[订单编号:订单，下单时间:时间 你好"),
    ],
)  # fmt: skip
def test_what_the_shops_software_writes_at_the_start_is_removed(tmp_path, opening, kept):
    rows = [jddc("s", "0", opening), jddc("s", "1", "您好"), jddc("s", "0", opening)]
    (tmp_path / "chat.txt").write_text("\n".join(rows))
    [(_, turns)], _ = read(tmp_path / "chat.txt", "jddc")
    assert turns[0].text == kept
    assert turns[2].text  # after the agent has spoken it is part of the talk


# Lines that are not of a format's form; the lines around them are of FILES.
SESSION = '{"session_id": "1", "turns": [%s]}'
BAD_LINES = {
    "session_tsv": ["1\tuser", "\tuser\thi", "1\tuser\tback again"],
    "jsonl": [
        *('{"session_id": "", "turns": []}', '{"session_id": "1"', "[" * 100_000),
        *(SESSION % '{"role": 3.5, "text": "a"}', SESSION % '{"role": "a", "text": 3}'),
        *(SESSION % '{"role": "a", "text": "\\ud83d"}', SESSION % '{"text": "a"}, {"tex": "b"}'),
        SESSION % '{"role": "a", "text": "b", "acts": "c"}',
    ],
    "jddc": ["s1\tU7\t0", jddc("s3", "2", "你好"), jddc(" ", "0", "你好")],
    "mdc": [mdc("3", "system", "hi"), MDC_HEADER],
    "ecd": ["2\ta\tb", "1\ta"],
    "dialoguecse": [
        *("nonsense", "一\t\t0-1-\t1\t二|三\t0|1", "一\t\t0-2-\t1\t二\t1", "一\t\t0-1\t1\t二\t1")
    ],
    "ubuntu": ["nonsense"],
}


@pytest.mark.parametrize(
    ("format", "line"), [(name, line) for name, lines in BAD_LINES.items() for line in lines]
)
def test_a_line_of_another_form_is_named_and_can_be_skipped(tmp_path, format, line):
    content, expected = FILES[format]
    lines = content.rstrip("\n").split("\n")
    path = tmp_path / "corpus"
    path.write_text("\n".join([*lines, line]) + "\n")
    with pytest.raises(InputError) as error:
        read(path, format)
    assert str(error.value).startswith(f"{path}:{len(lines) + 1}: ")
    assert "`max_bad_lines`=0" in str(error.value)
    assert "\n" not in str(error.value)
    sessions, bad = read(path, format, limit=1)  # counted once, though some are read twice
    assert ({name: spell(turns) for name, turns in sessions}, bad) == (expected, 1)


@pytest.mark.parametrize(
    ("format", "value", "place"),
    [
        ("chitchat", {"c": {"messages": {}}}, ":1: "),
        ("chitchat", {"a": CHITCHAT, "c": {"messages": [[{"text": 3, "sender": "x"}]]}}, ":2: "),
        ("chitchat", [1], ": expected one JSON object"),
        ("sgd", {"a": 1}, ": expected one JSON array"),
        ("sgd", [{"dialogue_id": "", "turns": []}], ":1: "),
        ("sgd", [{"dialogue_id": "1", "turns": [{"speaker": "USER"}]}], ":1: "),
        ("sgd", '[{"dialogue_id": "1", "turns": []}, {"a', ": expected one JSON array"),
        ("chitchat", "", ": expected one JSON object"),
    ],
)
def test_a_json_value_of_another_form_is_named(tmp_path, format, value, place):
    path = tmp_path / "corpus.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(InputError) as error:
        read(path, format)
    assert str(error.value).startswith(f"{path}{place}")


def test_a_session_is_yielded_before_the_rest_is_read(tmp_path):
    (tmp_path / "a.tsv").write_text("1\tu\ta\n2\tu\tb\nnonsense\n")
    sessions = FORMATS["session_tsv"].read(tmp_path / "a.tsv", BadLines(0))
    assert next(sessions) == ("1", [Utterance("u", "a")])
    with pytest.raises(InputError):
        next(sessions)


# Public samples, where they are on this machine


def _windows_of_ecd(line):
    label, *turns = line.split("\t")
    roles = ["agent", "customer"] * len(turns)
    said = [Utterance(role, turn.replace(" ", "")) for role, turn in zip(roles, turns[::-1])]
    return said[::-1] if label == "1" else []


def _windows_of_authors(line):
    before, after, roles, _, responses, _ = line.split("\t")
    said = [*before.split("|"), responses.split("|")[0], *after.split("|")]
    speakers = [{"0": "customer", "1": "agent"}[role] for role in roles if role in "01"]
    return [Utterance(*turn) for turn in zip(speakers, filter(None, said), strict=True)]


@pytest.mark.parametrize(
    ("format", "windows", "name", "dialogues"),
    [
        ("ecd", _windows_of_ecd, "ecd_response_selection/train", 77),
        (
            "dialoguecse",
            _windows_of_authors,
            "dialoguecse_official/edc/train/train_data.txt.sample",
            960,
        ),
    ],
)
def test_public_samples_are_merged_as_the_rule_says(format, windows, name, dialogues):
    path = shared_file(name)
    rows = list(map(windows, path.read_text(encoding="utf-8").splitlines()))
    kept = [number for number, turns in enumerate(rows) if turns]
    expected = {
        f"{path.name}-{kept[place - 1] + 1}": [t.text.replace(" ", "") for t in turns]
        for place, turns in merge_naively([rows[number] for number in kept])
    }
    sessions, _ = read(path, format)
    found = {name: [t.text.replace(" ", "") for t in turns] for name, turns in sessions}
    assert found == expected
    assert len(found) == dialogues


def test_the_public_sample_of_jddc_is_all_read():
    path = shared_file("jddc_raw/chat_0.1per.txt")
    lines = path.read_bytes().decode().splitlines()
    sessions, bad = read(path, "jddc")
    assert (len(sessions), sum(len(turns) for _, turns in sessions), bad) == (994, len(lines), 0)
    assert not any("[数字x]" in turn.text for _, turns in sessions for turn in turns)


# Formats from outside


def test_a_registered_format_is_an_option(tmp_path, monkeypatch):
    monkeypatch.delitem(FORMATS, "pairs", raising=False)  # when the test ends

    def read_pairs(path, bad_lines):
        for number, line in read_lines(path, bad_lines):
            question, tab, answer = line.partition("\t")
            if tab:
                yield str(number), [Utterance("a", question), Utterance("b", answer, ("answer",))]
            else:
                bad_lines.report(path, number, "expected question<TAB>answer")

    with pytest.raises(OptionError, match="`format`=pairs: expected one of"):
        CorpusOptions(format="pairs", input=("a",))
    register_format("pairs", read_pairs, help="a question and its answer", has_intents=True)
    (tmp_path / "a.txt").write_text("hi\tho\nalone\n在吗\t在的\n")
    options = CorpusOptions(format="pairs", input=(str(tmp_path / "a.txt"),), max_bad_lines=1)
    bad_lines = options.count_bad_lines()
    found = [spell(each.turns) for each in read_raw_sessions(options, bad_lines)]
    assert (found, bad_lines.count) == ([["a: hi", "b: ho"], ["a: 在吗", "b: 在的"]], 1)
    with pytest.raises(ValueError, match="'pairs'"):
        register_format("pairs", read_lines, help="again")
    # A worker of a cluster gets these options, and nothing has loaded its plug-ins before.
    del FORMATS["pairs"]
    plugin = mock.Mock(load=lambda: lambda: register_format("pairs", read_pairs))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [plugin])
    load_plugins.cache_clear()
    assert len([*read_raw_sessions(options, options.count_bad_lines())]) == 2


@pytest.mark.parametrize("session", [
    (1, []), ("1", iter([Utterance("a", "hi")])), ("1", [("a", "hi")]),
    ("1", [Utterance("a", None)]), ("1", [Utterance("a", "hi", "refund")]),
])  # fmt: skip
def test_what_a_registered_reader_yields_is_a_session(monkeypatch, session):
    """The turns of an iterator were lost, and each letter of a text was an intent."""
    monkeypatch.delitem(FORMATS, "own", raising=False)
    register_format("own", lambda path, bad_lines: [session])
    options = CorpusOptions(format="own", input=(__file__,))
    with pytest.raises(InputError, match="`format`=own: expected a text as id, and a list of"):
        list(read_raw_sessions(options, options.count_bad_lines()))
