"""Tables with a turn a row: CSV and Parquet, whose rows stand in any order."""

import datetime
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dialogue_files import DIALOGUES, json_lines, run

from dcse_tf.arguments import find_files
from dcse_tf.data.corpus import read_raw_sessions
from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import parquet, table
from dcse_tf.data.options import CorpusOptions, PrepareOptions
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines
from dcse_tf.options import OptionError

TURNS = {
    "session_id": ["s", "t", "s"],
    "role": ["a", "a", "b"],
    "text": ["hi", "你好", "ho\nho"],
}
SESSIONS = [
    ("s", [Utterance("a", "hi"), Utterance("b", "ho\nho")]),
    ("t", [Utterance("a", "你好")]),
]


def write(path, columns, **settings):
    pq.write_table(pa.table(columns), path, **settings)
    return path


def write_csv(path, *lines, end="\n", encoding="utf-8"):
    path.write_bytes("".join(f"{line}{end}" for line in lines).encode(encoding))
    return path


def read(*paths, limit=0, **settings):
    """The sessions, and the number of bad lines."""
    options = CorpusOptions(
        format="table", input=tuple(map(str, paths)), max_bad_lines=limit, **settings
    )
    bad_lines = options.count_bad_lines()
    return list(read_raw_sessions(options, bad_lines)), bad_lines.count


def texts(*paths, **settings):
    return {name: [turn.text for turn in turns] for name, turns in read(*paths, **settings)[0]}


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_delimiters_and_marks_of_encodings_are_found_out(tmp_path, sign, encoding, end):
    """Quoted fields hold delimiters, quotes and line ends; other columns are not read."""
    lines = [
        'text,session_id,"role",more',
        "hi,s,a,1",
        '"你好,;\t|",t,a,2',
        f'"he said ""ho{end}ho""",s, b ,3',
    ]
    path = write_csv(
        tmp_path / "a", *(line.replace(",", sign) for line in lines), end=end, encoding=encoding
    )
    expected = [
        ("s", [Utterance("a", "hi"), Utterance("b", f'he said "ho{end}ho"')]),
        ("t", [Utterance("a", "你好,;\t|".replace(",", sign))]),
    ]
    assert read(path) == (expected, 0)


def test_the_delimiter_is_that_with_the_known_columns(tmp_path):
    """Commas would make more fields."""
    path = write_csv(tmp_path / "a.csv", "session_id;role;text;a,b,c,d,e", "s;u;hi, you;x")
    assert read(path)[0] == [("s", [Utterance("u", "hi, you")])]


def test_a_delimiter_that_the_header_hides_is_named(tmp_path):
    path = write_csv(tmp_path / "a.csv", "a|b,session_id|role,text|note", "1|2,s|r,x|y")
    assert read(
        path,
        delimiter="comma",
        columns=("role:session_id|role", "session_id:a|b", "text:text|note"),
    )[0] == [("1|2", [Utterance("s|r", "x|y")])]
    with pytest.raises(
        InputError, match=r"no column 'session_id' .* the columns are a, b,session_id"
    ):
        read(path, delimiter="bar")


def test_rows_are_gathered_over_files_and_sorted_by_time(tmp_path):
    """Rows of one time stay in the order of the files; sessions come by id."""
    rows = [(f"{n % 7}", n // 21, f"{n}") for n in range(210)]
    random.Random(0).shuffle(rows)
    lines = [f"{session},u,{text},{time}" for session, time, text in rows]
    header = "session_id,role,text,time"
    paths = [
        write_csv(tmp_path / "a.csv", header, *lines[:100]),
        write_csv(tmp_path / "b.csv", header, *lines[100:]),
    ]
    expected = {
        str(session): [
            text for own, _, text in sorted(rows, key=lambda row: row[1]) if own == str(session)
        ]
        for session in range(7)
    }
    found = texts(*paths)
    assert found == expected
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    "times",
    [
        ("9", "10", "1e2"),
        ("-1", "9007199254740993", "9007199254740994"),
        ("2017-10-31", "2017-10-31 22:10:47", "2017-10-31T22:10:47.5"),
        ("2017-10-31T22:10:47+02:00", "2017-10-31T21:10:47Z", "2017-10-31 22:00:00 UTC"),
        (
            "Tue Oct 31 23:10:47 +0200 2017",
            "Tue Oct 31 22:10:47 +0000 2017",
            "Wed Nov 01 00:00:00 +0000 2017",
        ),
        ("Tue, 31 Oct 2017 23:10:47 +0200", "31 Oct 2017 22:10:47 +0000", "2017-10-31T22:10:48Z"),
    ],
)
def test_times_that_are_in_order(tmp_path, times):
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        lines = [f'1,u,{place},"{times[place]}"' for place in order]
        path = write_csv(tmp_path / "a.csv", "session_id,role,text,time", *lines)
        assert texts(path) == {"1": ["0", "1", "2"]}


def test_a_number_of_each_form_is_microseconds_since_1970():
    assert table.parse_time("1970-01-02") == ("a time without its zone", 86_400_000_000)
    assert table.parse_time("1970-01-01T01:00:00.000001+01:00") == ("a time with its zone", 1)
    assert table.parse_time("1969-12-31T23:59:59Z") == ("a time with its zone", -1_000_000)
    assert table.parse_time("Thu Jan 01 00:00:02 +0000 1970") == ("a time with its zone", 2_000_000)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("s,a,x", "expected 4 field.s., found 3"),
        (",a,x,2", "the id is empty"),
        ("s, ,x,2", "the role is empty"),
        ("s,a,x,", "expected a number or a time such as 2017-10-31 22:10:47, found ''"),
        ("s,a,x,nan", "expected a number or a time"),
        ("s,a,x,3/4/2017", "expected a number or a time .* found '3/4/2017'"),
        ("s,a,x,2017-10-31", "expected a number, as before, to sort by; found '2017-10-31'"),
        ('s,a,"x"y,2', "not CSV"),
        ("s,a,\udcff,2", "not UTF-8; `encoding` names another"),
    ],
)
def test_a_row_that_cannot_be_used_is_bad(tmp_path, row, problem):
    path = tmp_path / "a.csv"
    content = f"session_id,role,text,time\ns,a,hi,1\n{row}\ns,b,ho,3\n"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=f"a.csv:3: {problem}"):
        read(path)
    assert read(path, limit=1) == ([("s", [Utterance("a", "hi"), Utterance("b", "ho")])], 1)


@pytest.mark.parametrize(
    ("header", "columns", "problem"),
    [
        (
            "session,role,text",
            (),
            "no column 'session_id' for session_id; the columns are session, r",
        ),
        (
            "session_id,text",
            (),
            "no column 'role' for role; .* `columns`=role:COLUMN names another",
        ),
        ("session_id,role,text,text", (), "several columns 'text' for text"),
        ("session_id,role,text", ("time:at",), "no column 'at' for time"),
        ("session_id,role,text,id", ("id:id",), "`columns`=id:id is not used: its rows are turns"),
        ("session_id,role,text,x", ("intents:x",), "`columns`=intents:x is not used: its rows are"),
        ("id,reply_to,role,text", (), "no column 'time' for time"),
        (
            "",
            (),
            "no column 'session_id' .* are 1, 2, 3; .*:COLUMN names another, id:COLUMN,reply_to:",
        ),
    ],
)
def test_a_header_without_the_columns_is_refused_with_what_was_found(
    tmp_path, header, columns, problem
):
    path = write_csv(tmp_path / "a.csv", header, "1,2,3")
    with pytest.raises(InputError, match=f"a.csv:1: {problem}"):
        read(path, columns=columns, limit=9)


def test_tables_of_one_input_have_the_same_columns(tmp_path):
    first = write_csv(tmp_path / "a.csv", "session_id,role,text,time", "1,a,x,1")
    second = write_csv(tmp_path / "b.csv", "session_id,role,text", "1,b,y")
    with pytest.raises(
        InputError, match=r"b\.csv: expected columns for session_id, role, text, time"
    ):
        read(first, second)


def test_a_table_without_roles_is_read_where_they_alternate(tmp_path):
    path = write_csv(tmp_path / "a.csv", "session_id,text", "1,hi", "1,ho")
    turns = [Utterance("", "hi"), Utterance("", "ho")]
    assert read(path, alternate_roles=True) == ([("1", turns)], 0)


REPLIES = ("id:tweet", "role:in", "time:at")


def test_a_thread_is_all_rows_that_replies_connect(tmp_path):
    """2 replies to 1, 3 and 4 to 2; 6 and 7 to 5, which is missing; 8 stands alone.

    At time 5 a reply comes after what it replies to, whose row is below.
    """
    rows = [
        "4,a,d,5,2.0",
        "3,b,c,4,2",
        "2,b,b,5,1",
        "1,a,a,1,",
        "7,b,g,9,5",
        "6,b,f,8,5.0",
        "8,a,h,2,",
    ]
    expected = {"1": ["a", "c", "b", "d"], "6": ["f", "g"], "8": ["h"]}
    for _ in range(4):
        path = write_csv(tmp_path / "a.csv", "tweet,in,text,at,reply_to", *rows)
        found = read(path, columns=REPLIES)[0]
        assert {name: [turn.text for turn in turns] for name, turns in found} == expected
        assert next(turns for name, turns in found if name == "6")[0].role == "b"
        random.Random(1).shuffle(rows)
    ids, roles, said, times, above = zip(*(row.split(",") for row in rows))
    replies = [float(reply) if reply else None for reply in above]
    columns = {
        "tweet": list(map(int, ids)),
        "in": [role == "a" for role in roles],
        "text": said,
        "at": list(map(int, times)),
        "reply_to": replies,
    }
    found = read(write(tmp_path / "a.parquet", columns), columns=REPLIES)[0]
    assert {name: [turn.text for turn in turns] for name, turns in found} == expected
    assert {turn.role for _, turns in found for turn in turns} == {"True", "False"}


def test_a_long_thread_is_one(tmp_path):
    """A chain of 1,000 replies, at one time and with the last row first."""
    rows = [f"{n},u,{n},7,{n - 1 or ''}" for n in range(1000, 0, -1)]
    path = write_csv(tmp_path / "a.csv", "tweet,in,text,at,reply_to", *rows)
    assert texts(path, columns=REPLIES) == {"1": [str(n) for n in range(1, 1001)]}


def test_ids_of_replies_that_cannot_be_used_are_refused(tmp_path):
    header = "tweet,in,text,at,reply_to"
    path = write_csv(tmp_path / "a.csv", header, "1,a,x,1,", "1,b,y,2,", "2,b,z,3,1")
    with pytest.raises(InputError, match=r"a\.csv:3: the id '1' appears for a second time"):
        read(path, columns=REPLIES)
    assert texts(path, columns=REPLIES, limit=1) == {"1": ["x", "z"]}
    path = write_csv(tmp_path / "a.csv", header, "1,a,x,1,2", "2,b,y,2,1", "3,a,z,3,2")
    with pytest.raises(InputError, match=r"`columns`=reply_to: .* in a circle"):
        read(path, columns=REPLIES, limit=9)


def test_parquet_with_a_turn_a_row(tmp_path, monkeypatch):
    """Sessions run on over batches and row groups; other columns are not read."""
    monkeypatch.setattr(parquet, "_ROWS", 2)
    path = write(tmp_path / "a", {"turns": [7, 8, 9], **TURNS}, row_group_size=1)
    assert read(path) == (SESSIONS, 0)
    odd = {
        "a:b": TURNS["session_id"],
        "who": pa.array(TURNS["role"]).dictionary_encode(),
        "text.said": pa.array(TURNS["text"], pa.large_string()),
        "day": pa.array([datetime.date(2020, 1, day) for day in (1, 3, 2)]),
        "at": pa.array(
            [1_500_000_000_000_000_001, None, 1_500_000_000_000_000_003], pa.timestamp("ns", "UTC")
        ),
    }
    path = write(tmp_path / "b.parquet", odd)
    columns = ("session_id:a:b", "role:who", "text:text.said")
    assert read(path, columns=columns) == (SESSIONS, 0)
    assert read(path, columns=(*columns, "time:day")) == (SESSIONS, 0)
    assert read(path, columns=(*columns, "time:at"), limit=1) == (SESSIONS[:1], 1)


def test_parquet_with_a_session_a_row(tmp_path):
    """As a line of jsonl, where null stands for what that leaves out; ids may be numbers."""
    turns = [
        [
            {"role": "a", "text": "hi", "intents": ["greet"], "acts": None},
            {"role": "b", "text": "ho", "intents": None, "acts": ["INFORM"]},
        ],
        [],
    ]
    path = write(tmp_path / "a.parquet", {"session_id": [1, 2], "said": turns})
    first = [Utterance("a", "hi", ("greet",)), Utterance("b", "ho", (), ("INFORM",))]
    assert read(path, columns=("turns:said",)) == ([("1", first), ("2", [])], 0)
    assert read(path, columns=("turns:said", "acts:intents"))[0][0][1][0].acts == ("greet",)
    with pytest.raises(InputError, match="`columns`=acts:lable: the structs in said have no such"):
        read(path, columns=("turns:said", "acts:lable"))


BAD = pa.array([b"\xff", b"b", b"c"]).view(pa.string())


@pytest.mark.parametrize(
    ("columns", "row", "problem"),
    [
        ({**TURNS, "role": ["a", "a", None]}, 3, "the role is empty"),
        ({**TURNS, "session_id": ["s", None, "t"]}, 2, "the id is empty"),
        ({**TURNS, "text": [["x"], None, None]}, 1, "expected a text, found"),
        ({**TURNS, "text": BAD}, 1, "not UTF-8"),
        (
            {"session_id": ["s", "t"], "turns": [None, [{"role": "a", "text": "x"}]]},
            1,
            'expected "turns"',
        ),
        (
            {"session_id": ["s", "t"], "turns": [[None], [{"role": "a", "text": "x"}]]},
            1,
            "message 0",
        ),
    ],
)
def test_a_row_of_parquet_that_cannot_be_used_is_bad(columns, row, problem, tmp_path):
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(InputError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:{row}: {problem}")
    sessions, bad = read(path, limit=3)
    assert bad == 1
    assert sessions


def test_what_is_not_parquet_is_one_line(tmp_path):
    path = write(tmp_path / "a.parquet", {**TURNS}, compression="none")
    content = path.read_bytes()
    for broken in (b"", b"{}", content[:-9], content[:40] + b"\xff" * 40 + content[80:]):
        path.write_bytes(broken)
        with pytest.raises(InputError) as error:
            read(path)
        assert str(error.value).startswith(f"{path}: cannot be read as Parquet: ")
        assert "\n" not in str(error.value)


def test_the_records_are_those_of_jsonl(tmp_path):
    """Through prepare_data, whose settings keep the names of the columns."""
    rows = [(name, *turn) for name, turns in DIALOGUES.items() for turn in turns]
    ids, roles, said = map(list, zip(*rows))
    path = write(tmp_path / "a.parquet", {"id": ids, "role": roles, "text": said})
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    run(tmp_path / "one", json_lines(DIALOGUES), format="jsonl")
    columns = ("session_id:id",)
    manifest = run(tmp_path / "two", path.read_bytes(), format="table", columns=columns)
    one, two = (
        [path.read_bytes() for path in sorted((tmp_path / name / "data").rglob("*.tfrecord"))]
        for name in ("one", "two")
    )
    assert one == two
    assert manifest.settings["columns"] == columns


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": ("text:body",)}, r"`columns`=text:body: `format`=session_tsv has none"),
        (
            {"format": "messages", "columns": ("time:at",)},
            "expected NAME:COLUMN, NAME one of session_id, turns, role, text, intents, acts$",
        ),
        ({"format": "table", "columns": ("text",)}, "expected NAME:COLUMN"),
        ({"format": "table", "columns": ("text:a", "text:b")}, "given twice"),
        ({"format": "table", "columns": ("session_id:a", "reply_to:b")}, "either session_id or"),
        ({"format": "table", "columns": ("reply_to:b",), "spark_master": "yarn"}, "one machine"),
        (
            {"format": "parquet"},
            "`format`=parquet: Parquet is read by `format`=table, a turn a row",
        ),
        ({"delimiter": "tab"}, "`delimiter`=tab: has a meaning with `format`=table only"),
        ({"encoding": "utf-9"}, "`encoding`=utf-9: expected an encoding"),
        ({"encoding": "rot13"}, "`encoding`=rot13: expected an encoding"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        PrepareOptions(input=("a",), output_dir="out", vocab="bert", **settings)


def test_a_table_of_spark_is_not_looked_for_among_files(tmp_path):
    settings = {"format": "table", "input": ("shop.dialogues",), "output_dir": "out"}
    find_files(PrepareOptions(vocab="bert", spark_master="yarn", **settings))
    with pytest.raises(InputError, match="no such file"):
        find_files(PrepareOptions(vocab="bert", **settings))


def test_a_temporary_file_that_does_not_fit_is_one_message(tmp_path, monkeypatch):
    path = write_csv(tmp_path / "a.csv", "session_id,role,text", *["1,a," + "x" * 1000] * 2000)
    connect = table.sqlite3.connect

    def connect_small(*arguments, **settings):
        database = connect(*arguments, **settings)
        database.execute("PRAGMA max_page_count=100")
        return database

    monkeypatch.setattr(table.sqlite3, "connect", connect_small)
    with pytest.raises(InputError, match="sorting the rows of `input`: database or disk is full"):
        list(table.read_sessions(path, BadLines(0)))
