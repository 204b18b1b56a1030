"""Dialogues as lists of messages: JSON lines, an array, Parquet, lists of texts."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcse_tf.data.corpus import read_raw_sessions
from dcse_tf.data.options import CorpusOptions
from dcse_tf.errors import InputError

OPENAI = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
SHAREGPT = {
    "id": 7,
    "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}],
}
TURNS = {
    "f-1": [("user", "hi"), ("assistant", "ho")],
    "7": [("human", "hi"), ("gpt", "ho")],
}
TEXTS = ["hi", "ho", "bye"]


def read(path, limit=0, **settings):
    options = CorpusOptions(format="messages", input=(str(path),), max_bad_lines=limit, **settings)
    bad_lines = options.count_bad_lines()
    sessions = {
        name: [(turn.role, turn.text) for turn in turns]
        for name, turns in read_raw_sessions(options, bad_lines)
    }
    assert bad_lines.count == limit
    return sessions


def write(path, content):
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return path


def parse(tmp_path, messages, **settings):
    """The turns of one dialogue."""
    [turns] = read(write(tmp_path / "f", {"messages": messages}), **settings).values()
    return turns


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(OPENAI) + "\n\n" + json.dumps(SHAREGPT) + "\n",
        json.dumps([OPENAI, SHAREGPT]),
        json.dumps([OPENAI, SHAREGPT], indent=2) + "\n",
        "\n [" + json.dumps(OPENAI) + ",\n" + json.dumps(SHAREGPT) + "]",
    ],
    ids=["lines", "array", "indented", "array of lines"],
)
def test_lines_and_arrays_are_read(tmp_path, content):
    assert read(write(tmp_path / "f", content)) == TURNS
    (tmp_path / "f").write_bytes(gzip.compress(b"\xff\xfe" + content.encode("utf-16-le")))
    assert read(tmp_path / "f") == TURNS


def test_a_list_of_messages_alone_is_a_dialogue(tmp_path):
    lines = "\n".join(
        json.dumps(value) for value in (OPENAI["messages"], SHAREGPT["conversations"])
    )
    assert list(read(write(tmp_path / "f", lines)).values()) == list(TURNS.values())
    assert list(read(write(tmp_path / "f", [OPENAI["messages"]])).values()) == [TURNS["f-1"]]


def test_parquet_with_a_list_a_row(tmp_path):
    pq.write_table(pa.table({"n": [1], **{k: [v] for k, v in SHAREGPT.items()}}), tmp_path / "f")
    assert read(tmp_path / "f") == {"7": TURNS["7"]}
    pq.write_table(pa.table({"dialog": [TEXTS], "act": [[1, 2, 3]]}), tmp_path / "f")
    turns = [("", text) for text in TEXTS]
    assert read(tmp_path / "f", alternate_roles=True) == {"f-1": turns}
    assert read(tmp_path / "f", alternate_roles=True, columns=("turns:dialog",)) == {"f-1": turns}
    with pytest.raises(InputError, match=r"f:1: the turns have no roles; `alternate_roles`"):
        read(tmp_path / "f")
    with pytest.raises(
        InputError, match=r"f: expected a column of lists, .*; found dialog \(list<"
    ):
        read(tmp_path / "f", columns=("turns:act_s",))


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"dialog": TEXTS}),
        json.dumps([TEXTS, TEXTS[:2]]),
        json.dumps(TEXTS) + "\n" + json.dumps(TEXTS[:2]),
        "hi __eou__ ho __eou__ bye __eou__\nhi __eou__ ho\n",
        json.dumps({"turns": [{"text": text} for text in TEXTS]}),
        json.dumps({"turns": [{"role": None, "text": text} for text in TEXTS]}),
    ],
)
def test_dialogues_without_roles_are_read_where_they_alternate(tmp_path, content):
    path = write(tmp_path / "f", content)
    found = list(read(path, alternate_roles=True).values())
    assert [[(role, text.strip()) for role, text in turns] for turns in found] == [
        [("", text) for text in texts] for texts in (TEXTS, TEXTS[:2])[: len(found)]
    ]
    with pytest.raises(
        InputError, match=r'f:1: .*(`alternate_roles` gives|expected "role", found)'
    ):
        read(path)


def test_what_nobody_says_is_left_out(tmp_path):
    said = [("user", "a"), ("assistant", "b")]
    messages = [{"role": role, "content": text} for role, text in said]
    others = [
        {"role": role, "content": "x"}
        for role in ("system", "developer", "tool", "function", "observation")
    ]
    assert parse(tmp_path, [*others, *messages, *others]) == said
    assert parse(tmp_path, [{"role": "system", "content": "x"}, messages[0]]) == [
        ("system", "x"),
        ("user", "a"),
    ]


def test_contents_in_parts_and_without_text(tmp_path):
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, "b"]
    messages = [{"role": "u", "content": parts}, {"role": "v", "content": None}, {"role": "w"}]
    assert parse(tmp_path, messages) == [("u", "a b"), ("v", ""), ("w", "")]


def test_keys_with_other_names_and_labels(tmp_path):
    value = {"key": 3, "log": [{"who": 5, "body": "hi", "tags": ["greet"], "role": "x"}]}
    columns = ("session_id:key", "turns:log", "role:who", "text:body", "intents:tags")
    options = CorpusOptions(
        format="messages", input=(str(write(tmp_path / "f", value)),), columns=columns
    )
    [(name, [turn])] = read_raw_sessions(options, options.count_bad_lines())
    assert (name, turn.role, turn.text, turn.intents) == ("3", "5", "hi", ("greet",))


@pytest.mark.parametrize(
    ("value", "columns", "problem"),
    [
        (3, (), "expected an object with a list of messages, found 3"),
        ({"a": 1, "b": 2}, (), "expected a list of messages under one of .*; found only a, b"),
        ({"a": []}, ("turns:b",), 'expected "b" to be a list, found only a'),
        ({"messages": "hi"}, (), "expected \"messages\" to be a list, found 'hi'"),
        ({"messages": ["hi", 3]}, (), "message 0: expected an object, found 'hi'"),
        (
            {"messages": [{"role": "a", "body": "x"}]},
            (),
            "no message has .* value .*; found role, body",
        ),
        ({"messages": [{"content": "x"}]}, (), "the turns have no roles; .*; found content"),
        (
            {"messages": [{"role": "a", "content": 3}]},
            (),
            "message 0: expected a text or a list of",
        ),
        ({"messages": []}, ("session_id:key",), 'expected "key" to be a text, found None'),
        ({"messages": [{"role": "a", "content": "\ud83d"}]}, (), "half of a surrogate pair"),
        ({"messages": [{"role": "a", "content": "x", "acts": "y"}]}, (), 'turn 0: expected "acts"'),
    ],
)
def test_a_dialogue_of_another_form_is_bad_and_the_others_are_read(
    tmp_path, value, columns, problem
):
    keys = {name: own for name, _, own in (entry.partition(":") for entry in columns)}
    good = {keys.get("turns", "messages"): [{"role": "a", "content": "x"}], "key": "k"}
    path = write(tmp_path / "f", f"{json.dumps(good)}\n{json.dumps(value)}\n")
    with pytest.raises(InputError, match=f"f:2: {problem}"):
        read(path, columns=columns)
    assert list(read(path, limit=1, columns=columns).values()) == [[("a", "x")]]
    path = write(tmp_path / "f", [good, value])
    if "surrogate" not in problem:  # which no array can hold
        with pytest.raises(InputError, match=f"f:2: {problem}"):
            read(path, columns=columns)
