"""Schema-Guided Dialogue and CrossWOZ, and the large JSON values that they are."""

import codecs
import gzip
import io
import json
import zipfile

import pytest
from shared_files import shared_file

from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import crosswoz, jsonl, sgd
from dcse_tf.data.formats.reading import read_elements, read_members
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines

USER = {
    "speaker": "USER",
    "utterance": "A table for two, and a film",
    "frames": [
        {
            "service": "Food_1",
            "actions": [
                {"act": "INFORM_INTENT", "slot": "intent", "values": ["ReserveTable"]},
                {"act": "INFORM", "slot": "party_size", "values": ["2"]},
            ],
            "state": {"active_intent": "ReserveTable", "slot_values": {}},
        },
        {
            "service": "Media_2",
            "actions": [
                {"act": "INFORM_INTENT", "slot": "intent", "values": ["FindFilm"]},
                {"act": "INFORM", "slot": "party_size", "values": ["2"]},
            ],
        },
        {"service": "Food_2", "state": {"active_intent": "ReserveTable"}},
    ],
}
SYSTEM = {
    "speaker": "SYSTEM",
    "utterance": "Good. Where?",
    "frames": [{"actions": [{"act": "REQUEST", "slot": "city"}, {"act": "AFFIRM", "slot": ""}]}],
}
# The intent runs on here, but the turn does not state it.
AGREES = {
    "speaker": "USER",
    "utterance": "yes, that's right",
    "frames": [
        {"actions": [{"act": "AFFIRM"}], "state": {"active_intent": "ReserveTable"}},
    ],
}
GUEST = {
    "role": "usr",
    "content": "您好，找一家酒店",
    "dialog_act": [
        ["General", "greet", "none", "none"],
        ["Inform", "酒店", "价格", "300元"],
        ["Request", "酒店", "名称", ""],
        ["Inform", "酒店", "评分", "4.5分"],
    ],
}
HOST = {"role": "sys", "content": "没有", "dialog_act": [], "sys_state": {"酒店": {"名称": ""}}}


def asked(**changes):
    return {"dialogue_id": "7_1", "services": ["Food_1"], "turns": [USER, SYSTEM], **changes}


def acting(action):
    return {**USER, "frames": [{"actions": [action]}]}


def talk(*messages):
    return {"sys-usr": [1, 2], "messages": list(messages), "type": "单领域"}


def pack(path, content):
    """Writes bytes, or a value as JSON, compressed as the name says."""
    if not isinstance(content, bytes):
        content = json.dumps(content, ensure_ascii=False).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    if path.suffix == ".zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("__MACOSX/._val.json", b"not this")
            archive.writestr("val.json", content)
        content = buffer.getvalue()
    path.write_bytes(content)
    return path


def read(reader, path, limit=0):
    bad_lines = BadLines(limit)
    return list(reader.read_sessions(path, bad_lines)), bad_lines.count


every_packing = pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.json.zip"])


@every_packing
def test_an_asked_dialogue_has_the_intents_that_its_turns_state_and_their_acts(tmp_path, name):
    asks = asked(turns=[USER, SYSTEM, AGREES])
    path = pack(tmp_path / name, [asks, asked(dialogue_id="7_2", turns=[])])
    turns = [
        Utterance(
            "user",
            "A table for two, and a film",
            ("ReserveTable", "FindFilm"),
            ("INFORM:party_size", "INFORM_INTENT:intent"),
        ),
        Utterance("system", "Good. Where?", (), ("AFFIRM:", "REQUEST:city")),
        Utterance("user", "yes, that's right", (), ("AFFIRM:",)),
    ]
    assert read(sgd, path) == ([("7_1", turns), ("7_2", [])], 0)


@every_packing
def test_a_talk_has_acts_with_their_domains_as_intents(tmp_path, name):
    path = pack(tmp_path / name, {"101": talk(GUEST, HOST), "102": talk()})
    turns = [
        Utterance("user", "您好，找一家酒店", ("General-greet", "Inform-酒店", "Request-酒店")),
        Utterance("system", "没有"),
    ]
    assert read(crosswoz, path) == ([("101", turns), ("102", [])], 0)


@pytest.mark.parametrize("frames", [[], [{}], [{"actions": []}], [{"state": {}}]])
def test_a_turn_without_acts_has_no_labels(tmp_path, frames):
    turn = {**USER, "frames": frames}
    [(_, [utterance])], _ = read(sgd, pack(tmp_path / "a.json", [asked(turns=[turn])]))
    assert utterance == Utterance("user", USER["utterance"])
    del turn["frames"]
    [(_, [utterance])], _ = read(sgd, pack(tmp_path / "a.json", [asked(turns=[turn])]))
    assert utterance == Utterance("user", USER["utterance"])


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        "text",
        [],
        {},
        asked(dialogue_id=None),
        asked(dialogue_id=""),
        asked(dialogue_id=7),
        asked(turns=None),
        asked(turns=3),
        asked(turns=[None]),
        asked(turns=["hi"]),
        asked(turns=[{"utterance": "hi"}]),
        asked(turns=[{"speaker": "USER"}]),
        asked(turns=[{"speaker": None, "utterance": "hi"}]),
        asked(turns=[{"speaker": "USER", "utterance": ["hi"]}]),
        asked(turns=[{**USER, "frames": None}]),
        asked(turns=[{**USER, "frames": ["Food_1"]}]),
        asked(turns=[{**USER, "frames": [{"actions": None}]}]),
        asked(turns=[acting({})]),
        asked(turns=[acting("INFORM")]),
        asked(turns=[acting({"act": None})]),
        asked(turns=[acting({"act": "INFORM", "slot": None})]),
        asked(turns=[acting({"act": "INFORM_INTENT", "slot": "intent"})]),
        asked(turns=[acting({"act": "INFORM_INTENT", "values": "FindFilm"})]),
        asked(turns=[acting({"act": "INFORM_INTENT", "values": [None]})]),
    ],
)
def test_an_asked_dialogue_of_another_form_is_bad_and_the_others_are_read(tmp_path, malformed):
    path = pack(tmp_path / "a.json", [asked(), malformed, asked(dialogue_id="7_3")])
    sessions, bad = read(sgd, path, limit=1)
    assert [session_id for session_id, _ in sessions] == ["7_1", "7_3"]
    assert bad == 1
    with pytest.raises(InputError, match=f"{path}:2: dialogue 2: expected "):
        read(sgd, path)


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        "text",
        [],
        {},
        {"messages": None},
        {"messages": 3},
        talk(None),
        talk("hi"),
        talk({**GUEST, "role": "user"}),
        talk({**GUEST, "role": None}),
        talk({**GUEST, "role": ["usr"]}),
        talk({**GUEST, "content": None}),
        talk({**GUEST, "dialog_act": None}),
        talk({**GUEST, "dialog_act": 3}),
        talk({**GUEST, "dialog_act": [["Inform"]]}),
        talk({**GUEST, "dialog_act": [3]}),
        talk({"role": "usr", "content": "hi"}),
        talk({"role": "usr", "dialog_act": []}),
        talk({"content": "hi", "dialog_act": []}),
    ],
)
def test_a_talk_of_another_form_is_bad_and_the_others_are_read(tmp_path, malformed):
    path = pack(tmp_path / "a.json", {"1": talk(GUEST), "2": malformed, "3": talk(HOST)})
    sessions, bad = read(crosswoz, path, limit=1)
    assert [session_id for session_id, _ in sessions] == ["1", "3"]
    assert bad == 1
    with pytest.raises(InputError, match=f"{path}:2: dialogue 2: expected "):
        read(crosswoz, path)


@pytest.mark.parametrize("act", ["ab", ["Inform", None], [1, 2]])
def test_an_act_whose_name_or_domain_is_no_text_is_bad(tmp_path, act):
    path = pack(tmp_path / "a.json", {"1": talk({**GUEST, "dialog_act": [act]})})
    assert read(crosswoz, path, limit=1) == ([], 1)


@every_packing
@pytest.mark.parametrize("reader", [sgd, crosswoz])
def test_the_first_dialogue_does_not_wait_for_the_rest(tmp_path, name, reader):
    """The fault stands 4,000 dialogues further on."""
    if reader is sgd:
        content = json.dumps([asked(dialogue_id=f"7_{number}") for number in range(4000)])
    else:
        content = json.dumps({f"7_{number}": talk(GUEST, HOST) for number in range(4000)})
    sessions = reader.read_sessions(pack(tmp_path / name, content[:-300].encode()), BadLines(0))
    assert [next(sessions)[0] for _ in range(3)] == ["7_0", "7_1", "7_2"]
    with pytest.raises(InputError, match=f"{name}: expected one JSON .*after 39[0-9][0-9] member"):
        list(sessions)


OBJECT, ARRAY = b'{"a": 1, "b": [2.5, "\xe5\xa5\xbd"]}', b'[1, [2.5, "\xe5\xa5\xbd"]]'


@every_packing
def test_members_and_elements_come_with_their_numbers(tmp_path, name):
    members = list(read_members(pack(tmp_path / name, b" \n" + OBJECT), BadLines(0)))
    assert members == [(1, "a", 1), (2, "b", [2.5, "好"])]
    assert isinstance(members[1][2][0], float)
    elements = list(read_elements(pack(tmp_path / name, b"\n" + ARRAY + b"\n"), BadLines(0)))
    assert elements == [(1, 1), (2, [2.5, "好"])]
    assert isinstance(elements[1][1][0], float)


@every_packing
def test_a_byte_order_mark_before_the_value_is_skipped(tmp_path, name):
    mark = codecs.BOM_UTF8
    assert len(list(read_members(pack(tmp_path / name, mark + OBJECT), BadLines(0)))) == 2
    assert len(list(read_elements(pack(tmp_path / name, mark + b"\n" + ARRAY), BadLines(0)))) == 2
    with pytest.raises(InputError, match="expected one JSON array, found b'"):
        list(read_elements(pack(tmp_path / name, mark + OBJECT), BadLines(0)))


@pytest.mark.parametrize(("reader", "content"), [(read_members, b"{}"), (read_elements, b"[]")])
def test_an_empty_value_has_no_members(tmp_path, reader, content):
    assert list(reader(pack(tmp_path / "a.json", content), BadLines(0))) == []


@every_packing
@pytest.mark.parametrize("content", [b"", b" \n", b"3", b'"{}"', b"null", b"text", b"(", b"\xff{"])
def test_a_value_of_another_kind_is_refused(tmp_path, name, content):
    path = pack(tmp_path / name, content)
    for reader, kind in ((read_members, "object"), (read_elements, "array")):
        with pytest.raises(InputError, match=f"{path}: expected one JSON {kind}, found b'"):
            list(reader(path, BadLines(0)))


def test_an_object_is_no_array(tmp_path):
    with pytest.raises(InputError, match="expected one JSON array, found"):
        list(read_elements(pack(tmp_path / "a.json", OBJECT), BadLines(0)))
    with pytest.raises(InputError, match="expected one JSON object, found"):
        list(read_members(pack(tmp_path / "a.json", ARRAY), BadLines(0)))


@every_packing
@pytest.mark.parametrize("reader", [read_members, read_elements])
def test_a_fault_after_the_start_is_named_with_the_members_before_it(tmp_path, name, reader):
    content, kind = (OBJECT, "object") if reader is read_members else (ARRAY, "array")
    faults = {
        content[:-1]: None,  # cut where the last member may be whole
        content[:-3]: 1,
        content[:1]: 0,
        content + b" x": 2,
        content + content: 2,
        content.replace(b"\xa5", b"\xff"): 1,  # not UTF-8
        content.replace(b"\xe5\xa5\xbd", rb"\udc00"): 1,  # half of a surrogate pair
        content.replace(b"2.5", b"2.5.5"): 1,
        content.replace(b" ", b" ?", 1): None,
    }
    for faulty, count in faults.items():
        path = pack(tmp_path / name, faulty)
        with pytest.raises(InputError) as caught:
            list(reader(path, BadLines(0)))
        assert str(caught.value).startswith(f"{path}: expected one JSON {kind}: after ")
        if count is not None:
            assert f"after {count} member(s): " in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reader", [sgd, crosswoz])
def test_a_file_cut_off_is_named_with_the_dialogues_before_it(tmp_path, reader):
    dialogues = {str(n): talk({**GUEST, "content": f"{n * 7919 % 3001}"}) for n in range(3000)}
    content = dialogues if reader is crosswoz else [asked(dialogue_id=n) for n in dialogues]
    path = pack(tmp_path / "a.json.gz", content)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"a\.json\.gz: expected one JSON .*: after [1-9].*ended"):
        read(reader, path)


@pytest.mark.parametrize("name", ["a.json.gz", "a.json.zip", "gone.json"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path, name):
    path = tmp_path / name
    if name != "gone.json":
        path.write_bytes(b"[]")  # not compressed
    for reader in (read_members, read_elements):
        with pytest.raises(InputError, match=f"{path}: cannot be read"):
            list(reader(path, BadLines(0)))


def test_all_of_the_public_dialogues_with_schemas_are_read():
    paths = [shared_file(f"sgd/dialogues_00{number}.json") for number in (1, 2, 3, 4)]
    found = [session for path in paths for session in read(sgd, path)[0]]
    dialogues = [dialogue for path in paths for dialogue in json.loads(path.read_bytes())]
    assert len(found) == 512
    assert [session_id for session_id, _ in found] == [d["dialogue_id"] for d in dialogues]
    for (_, turns), dialogue in zip(found, dialogues, strict=True):
        assert [turn.text for turn in turns] == [t["utterance"] for t in dialogue["turns"]]
        assert [turn.role for turn in turns] == ["user", "system"] * (len(turns) // 2)
        for turn, raw in zip(turns, dialogue["turns"]):
            actions = [action for frame in raw["frames"] for action in frame["actions"]]
            stated = {a["canonical_values"][0] for a in actions if a["act"] == "INFORM_INTENT"}
            assert set(turn.intents) == stated
            assert list(turn.acts) == sorted({f"{a['act']}:{a['slot']}" for a in actions})


def test_all_of_the_public_talks_are_read():
    path = shared_file("crosswoz/val.json.zip")
    with zipfile.ZipFile(path) as archive:
        talks = json.loads(archive.read("val.json"))
    found, bad = read(crosswoz, path)
    assert (len(found), bad) == (500, 0)
    assert [session_id for session_id, _ in found] == list(talks)
    for session_id, turns in found:
        messages = talks[session_id]["messages"]
        assert [turn.text for turn in turns] == [message["content"] for message in messages]
        assert [turn.role for turn in turns] == [
            {"usr": "user", "sys": "system"}[message["role"]] for message in messages
        ]
        for turn, message in zip(turns, messages):
            assert set(turn.intents) == {f"{a[0]}-{a[1]}" for a in message["dialog_act"]}


def test_the_json_lines_of_the_public_dialogues_have_the_same_labels():
    """Two ways to one label: the raw files, and JSON Lines that were made of them elsewhere."""
    made = shared_file("sgd_full/dev.jsonl.gz")
    rewritten = dict(read(jsonl, made)[0])
    raw = read(sgd, shared_file("sgd/dialogues_001.json"))[0]
    assert len(raw) == 128
    for name, turns in raw:
        assert rewritten[name] == turns
