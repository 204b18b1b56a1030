"""The general readers: tables with a turn a row, and lists of messages."""

import csv
import datetime
import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written_dialogues import write_lines

from dcse_tf.data.corpus import CorpusOptions, read_raw_sessions
from dcse_tf.data.dialogue import Session, Utterance
from dcse_tf.data.formats import reading
from dcse_tf.errors import InputError

TURNS = {"session_id": ["s", "t", "s"], "role": ["a", "a", "b"], "text": ["hi", "你好", "ho\nho"]}
SESSIONS = {"s": [("a", "hi"), ("b", "ho\nho")], "t": [("a", "你好")]}


def write_parquet(path, columns, **settings):
    pq.write_table(pa.table(columns), path, **settings)
    return path


def read(*paths, format="table", limit=0, **settings):
    """The sessions as lists of (role, text), and the number of bad lines."""
    options = CorpusOptions(
        format=format, input=tuple(map(str, paths)), max_bad_lines=limit, **settings
    )
    bad_lines = options.count_bad_lines()
    sessions = list(read_raw_sessions(options, bad_lines))
    said = {each.session_id: [(t.role, t.text) for t in each.turns] for each in sessions}
    return said, bad_lines.count


def texts(*paths, **settings):
    return {
        name: [text for _, text in turns] for name, turns in read(*paths, **settings)[0].items()
    }


# Tables


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_delimiters_and_marks_of_encodings_are_found_out(tmp_path, sign, encoding):
    """Quoted fields hold delimiters, quotes and line ends; other columns are not read."""
    lines = ['text,session_id,"role",more', "hi,s,a,1", '"你好,;\t|",t,a,2']
    lines.append('"he ""said\r\nit""",s, b ,3')
    path = write_lines(
        tmp_path / "a", *(line.replace(",", sign) + "\r" for line in lines), encoding=encoding
    )
    said = {
        "s": [("a", "hi"), ("b", 'he "said\r\nit"')],
        "t": [("a", "你好,;\t|".replace(",", sign))],
    }
    assert read(path) == (said, 0)


def test_the_delimiter_is_that_with_the_known_columns(tmp_path):
    path = write_lines(tmp_path / "a.csv", "session_id;role;text;a,b,c,d,e", "s;u;hi, you;x")
    assert read(path)[0] == {"s": [("u", "hi, you")]}


def test_rows_are_gathered_over_files_and_sorted_by_time(tmp_path):
    """Rows of one time stay in the order of the files; sessions come by id."""
    rows = [(f"{n % 7}", n // 21, f"{n}") for n in range(210)]
    random.Random(0).shuffle(rows)
    lines = [f"{session},u,{text},{time}" for session, time, text in rows]
    header = "session_id,role,text,time"
    parts = {"a.csv": lines[:100], "b.csv": lines[100:]}
    paths = [write_lines(tmp_path / name, header, *own) for name, own in parts.items()]
    ordered = sorted(rows, key=lambda row: (row[0], row[1]))
    found = texts(*paths)
    assert [(name, text) for name, own in found.items() for text in own] == [
        (name, text) for name, _, text in ordered
    ]


@pytest.mark.parametrize(
    "times",
    [
        ("9", "10", "1e2"),
        ("-1", "9007199254740993", "9007199254740994"),
        ("2017-10-31", "2017-10-31 22:10:47", "2017-10-31T22:10:47.5"),
        ("2017-10-31T22:10:47+02:00", "2017-10-31T21:10:47Z", "2017-10-31 22:00:00 UTC"),
        ("Tue Oct 31 23:10:47 +0200 2017", "Tue Oct 31 22:10:47 +0000 2017", "2017-11-01T00Z"),
        ("Tue, 31 Oct 2017 23:10:47 +0200", "31 Oct 2017 22:10:47 UTC", "2017-10-31T22:10:48Z"),
    ],
)
def test_times_are_put_in_order(tmp_path, times):
    for order in ((0, 1, 2), (2, 1, 0)):
        lines = [f'1,u,{place},"{times[place]}"' for place in order]
        path = write_lines(tmp_path / "a.csv", "session_id,role,text,time", *lines)
        assert texts(path) == {"1": ["0", "1", "2"]}
    assert reading.parse_time("1970-01-01T01:00:00.000001+01:00") == ("a time with its zone", 1e-6)
    with pytest.raises(ValueError, match="2017-10-31 22:10:47, found 'Oct 31, 2017 1:10 PM'"):
        reading.parse_time("Oct 31, 2017 1:10 PM")  # not at 1:10


@pytest.mark.parametrize(
    "row",
    [
        "s,a,x", ",a,x,2", "s, ,x,2", "s,a,x,", "s,a,x,nan", "s,a,x,3/4/2017", "s,a,x,2017-10-31",
        's,a,"x"y,2', "s,a,\udcff,2",
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_is_bad(tmp_path, row):
    path = tmp_path / "a.csv"
    content = f"session_id,role,text,time\ns,a,hi,1\n{row}\ns,b,ho,3\n"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"a\.csv:3: "):
        read(path)
    assert read(path, limit=1) == ({"s": [("a", "hi"), ("b", "ho")]}, 1)


@pytest.mark.parametrize(
    ("header", "columns", "named"),
    [
        ("session,role,text", (), "no column 'session_id'"),
        ("session_id,role,text,text", (), "no single column 'text'"),
        ("session_id,text,time,time", (), "no single column 'time'"),
        ("session_id,role,text", ("time:at",), "no column 'at' of turns for time"),
        ("", (), "the columns are 1, 2, 3"),
    ],
)
def test_a_header_without_the_columns_is_refused(tmp_path, header, columns, named):
    path = write_lines(tmp_path / "a.csv", header, "1,2,3")
    with pytest.raises(InputError, match=rf"a\.csv:1: .*{named}"):
        read(path, columns=columns, limit=9)


def test_what_follows_a_quote_that_stays_open_is_not_lost(tmp_path):
    path = write_lines(tmp_path / "a.csv", "session_id,role,text", '1,a,"hi', "1,b,ho", "2,a,hi")
    with pytest.raises(InputError, match=r"a\.csv:4: not a table: .* that begins in line 2"):
        read(path, limit=9)
    limit = csv.field_size_limit(10)  # reached before the end of the file
    try:
        with pytest.raises(InputError, match=r"a\.csv:\d: .*field limit.* that begins in line 2"):
            read(write_lines(path, *path.read_text().splitlines(), "2,b,ho", "3,a,hi"), limit=9)
    finally:
        csv.field_size_limit(limit)


def test_without_roles_speakers_alternate_if_asked(tmp_path):
    path = write_lines(tmp_path / "a.csv", "session_id,text", "1,hi", "1,ho")
    assert read(path, alternate_roles=True)[0] == {"1": [("", "hi"), ("", "ho")]}
    refused = pytest.raises(InputError, match="session '1' have no roles; `alternate_roles`")
    with refused:
        read(path)
    # A group's responder has a role.
    group = {"id": "1", "context": ["hi", "ho"], "responder": "a", "candidates": ["a", "b"]}
    path.write_text(json.dumps(group | {"labels": [1, 0]}))
    with refused:
        read(path, format="candidates")
    # One session without them, of several, is taken for a single speaker's.
    path = write_lines(tmp_path / "f", *map(json.dumps, [OPENAI, ["hi"], ["hi", "ho"]]))
    assert len(read(path, format="messages")[0]) == 3


def test_parquet_with_a_turn_a_row(tmp_path):
    """Sessions run on over batches and row groups; other columns are not read."""
    path = write_parquet(tmp_path / "a", {"turns": [7, 8, 9], **TURNS}, row_group_size=1)
    assert read(path) == (SESSIONS, 0)
    odd = {
        "a:b": TURNS["session_id"],
        "who": pa.array(TURNS["role"]).dictionary_encode(),
        "text.said": pa.array(TURNS["text"], pa.large_string()),
        "day": pa.array([datetime.date(2020, 1, day) for day in (1, 3, 2)]),
        "at": pa.array([10**18 + 1, None, 10**18 + 3], pa.timestamp("ns", "UTC")),
        "since": pa.array([1, 2, 3], pa.duration("ns")),
    }
    path = write_parquet(tmp_path / "b.parquet", odd)
    columns = ("session_id:a:b", "role:who", "text:text.said")
    assert read(path, columns=columns) == (SESSIONS, 0)
    assert read(path, columns=(*columns, "time:day")) == (SESSIONS, 0)
    assert read(path, columns=(*columns, "time:at"), limit=1) == ({"s": SESSIONS["s"]}, 1)
    for broken in (path.read_bytes(), b"", path.read_bytes()[:-9]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=f"^{path}: cannot be read as Parquet: "):
            read(path, columns=(*columns, "time:since"))


def test_parquet_with_a_session_a_row(tmp_path):
    turns = [[{"role": "a", "text": "hi", "intents": None}, {"role": "b", "text": "ho"}], []]
    path = write_parquet(tmp_path / "a.parquet", {"session_id": [1, 2], "said": turns})
    found = read(path, format="messages", columns={"turns": "said"})
    assert found == ({"1": [("a", "hi"), ("b", "ho")], "2": []}, 0)


# Messages

OPENAI = {
    "messages": [
        {"role": "System", "content": "Be kind"},
        {"role": "user", "content": [{"type": "text", "text": "你好"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "{}"},
        {"role": "assistant", "text": "hello"},
    ]
}
SHAREGPT = {
    "id": 7,
    "conversations": [{"from": "human", "value": "a", "text": None}, {"from": "gpt", "value": "b"}],
}
SAID = {
    "f-1": [("user", "你好"), ("assistant", ""), ("assistant", "hello")],
    "7": [("human", "a"), ("gpt", "b")],
}


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(OPENAI) + "\n\n" + json.dumps(SHAREGPT) + "\n",
        json.dumps([OPENAI, SHAREGPT], indent=2) + "\n",
        "\n [" + json.dumps(OPENAI) + ",\n" + json.dumps(SHAREGPT) + "]",
    ],
    ids=["lines", "array", "array of lines"],
)
def test_lines_and_arrays_of_messages_are_read(tmp_path, content):
    (tmp_path / "f").write_text(content, encoding="utf-8")
    assert read(tmp_path / "f", format="messages")[0] == SAID
    (tmp_path / "f.gz").write_bytes(gzip.compress(b"\xff\xfe" + content.encode("utf-16-le")))
    found = read(tmp_path / "f.gz", format="messages")[0]
    assert {name.replace("f.gz", "f"): turns for name, turns in found.items()} == SAID


@pytest.mark.parametrize(
    "content",
    [
        '{"dialog": ["hi", "ho"]}',
        '[["hi", "ho"], ["hi"]]',
        '["hi", "ho"]\n["hi"]', '[]\n["hi", "ho"]\n["hi"]',
        '{"turns": [{"text": "hi"}, {"text": "ho"}]}',
    ],
)  # fmt: skip
def test_lists_without_roles_are_read_where_they_alternate(tmp_path, content):
    (tmp_path / "f").write_text(content)
    every = read(tmp_path / "f", format="messages", alternate_roles=True)[0]
    found = list(filter(None, every.values()))
    assert found == [[("", "hi"), ("", "ho")], [("", "hi")]][: len(found)]
    with pytest.raises(InputError, match="`alternate_roles`"):
        read(tmp_path / "f", format="messages")


def test_who_is_silent_is_left_out_unless_only_two_speak(tmp_path):
    two = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    path = write_lines(tmp_path / "f", json.dumps({"turns": two}))
    assert read(path, format="messages")[0] == {"f-1": [("system", "x"), ("user", "y")]}


def test_files_of_one_name_are_told_apart_by_where_their_paths_part(tmp_path):
    for place in (tmp_path / "day=1/a", tmp_path / "day=2/a"):
        place.mkdir(parents=True)
        write_lines(place / "part", '{"messages": ["hi"]}')
    found = read(tmp_path / "*/a/part", format="messages")[0]
    assert [*found] == ["day=1/a/part-1", "day=2/a/part-1"]


def test_keys_with_other_names(tmp_path):
    value = {"key": 3, "log": [{"who": 5, "body": "hi", "tags": ["greet"], "role": "x"}]}
    columns = ("session_id:key", "turns:log", "role:who", "text:body", "intents:tags")
    path = write_lines(tmp_path / "f", json.dumps(value))
    options = CorpusOptions(format="messages", input=(str(path),), columns=columns)
    (found,) = read_raw_sessions(options, options.count_bad_lines())
    assert found == Session("3", (Utterance("5", "hi", ("greet",)),))


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        (3, ()), ({"a": 1}, ()), ({"a": []}, ("turns:b",)), ({"messages": "hi"}, ()),
        ({"messages": ["hi", 3]}, ()), ({"messages": []}, ("session_id:key",)),
        ({"messages": [{"role": "a", "body": "x"}]}, ()),
        ({"messages": [{"role": "a", "content": 3}]}, ()),
        ({"messages": [{"role": ["a"], "content": "x"}]}, ()),
        ({"messages": [{"role": "a", "content": "\ud83d"}]}, ()),
        ({"messages": [{"role": "a", "content": "x", "acts": "y"}]}, ()),
    ],
)  # fmt: skip
def test_a_dialogue_of_another_form_is_bad_and_the_others_are_read(tmp_path, value, columns):
    keys = dict(entry.split(":") for entry in columns)
    good = {keys.get("turns", "messages"): [{"role": "a", "content": "x"}], "key": "k"}
    path = write_lines(tmp_path / "f", json.dumps(good), json.dumps(value))
    with pytest.raises(InputError, match=f"^{path}:2: "):
        read(path, format="messages", columns=columns)
    found, bad = read(path, format="messages", limit=1, columns=columns)
    assert (list(found.values()), bad) == ([[("a", "x")]], 1)
