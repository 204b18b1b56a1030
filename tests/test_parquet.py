"""Dialogues in Parquet files."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dialogue_files import DIALOGUES, json_lines, run

from dcse_tf.cli.flags import find_files
from dcse_tf.data.corpus import read_raw_sessions
from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats import parquet
from dcse_tf.data.options import CorpusOptions, PrepareOptions
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines
from dcse_tf.options import OptionError

TURNS = {
    "session_id": ["s", "s", "t"],
    "role": ["a", "b", "a"],
    "text": ["hi", "ho\nho", "你好"],
}
SESSIONS = [
    ("s", [Utterance("a", "hi"), Utterance("b", "ho\nho")]),
    ("t", [Utterance("a", "你好")]),
]


def write(path, columns, **settings):
    pq.write_table(pa.table(columns), path, **settings)
    return path


def read(path, limit=0, columns=()):
    options = CorpusOptions(
        format="parquet", input=(str(path),), max_bad_lines=limit, columns=columns
    )
    bad_lines = BadLines(limit)
    return list(read_raw_sessions(options, bad_lines)), bad_lines.count


def test_a_turn_a_row(tmp_path, monkeypatch):
    """Sessions run on over batches and row groups; other columns are not read."""
    monkeypatch.setattr(parquet, "_ROWS", 2)
    path = write(tmp_path / "a.parquet", {"turns": [7, 8, 9], **TURNS}, row_group_size=1)
    assert read(path) == (SESSIONS, 0)


def test_a_session_a_row(tmp_path):
    """As a line of jsonl, where null stands for what that leaves out; ids may be numbers."""
    turns = [
        [
            {"role": "a", "text": "hi", "intents": ["greet"], "acts": None},
            {"role": "b", "text": "ho", "intents": None, "acts": ["INFORM"]},
        ],
        [],
    ]
    path = write(tmp_path / "a.parquet", {"session_id": [1, 2], "turns": turns})
    first = [Utterance("a", "hi", ("greet",)), Utterance("b", "ho", (), ("INFORM",))]
    assert read(path) == ([("1", first), ("2", [])], 0)


def test_columns_with_other_names(tmp_path):
    path = write(
        tmp_path / "a.parquet",
        {
            "a:b": TURNS["session_id"],
            "who": pa.array(TURNS["role"]).dictionary_encode(),
            "text.said": pa.array(TURNS["text"], pa.large_string()),
        },
    )
    assert read(path, columns=("session_id:a:b", "role:who", "text:text.said")) == (SESSIONS, 0)

    turns = [[{"who": "a", "text": "hi"}]]
    path = write(tmp_path / "b.parquet", {"session_id": ["s"], "said": turns})
    own = [("s", [Utterance("a", "hi")])]
    assert read(path, columns=("turns:said", "role:who")) == (own, 0)


BAD = pa.array([b"\xff", b"b", b"c", b"d"]).view(pa.string())


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("intents:label", "a row is a turn, of which only session_id, role and text are read"),
        ("turns:said", "a row is a turn, "),
    ],
)
def test_a_name_that_rows_of_turns_would_ignore_is_refused(name, problem, tmp_path):
    path = write(tmp_path / "a.parquet", {**TURNS, "label": [["x"]] * 3})
    with pytest.raises(InputError, match=f"a.parquet: `columns`={name}: {problem}"):
        read(path, columns=(name,))


def test_a_name_that_no_field_of_the_turns_has_is_refused(tmp_path):
    turns = [[{"role": "a", "text": "hi", "label": ["greet"]}]]
    path = write(tmp_path / "a.parquet", {"session_id": ["s"], "turns": turns})
    expected = ([("s", [Utterance("a", "hi", ("greet",))])], 0)
    assert read(path, columns=("intents:label", "turns:turns")) == expected
    with pytest.raises(InputError, match="`columns`=acts:lable: the structs in turns have no such"):
        read(path, columns=("intents:label", "acts:lable"))


@pytest.mark.parametrize(
    ("columns", "row", "problem"),
    [
        ({**TURNS, "text": ["hi", None, "你好"]}, 2, "session 's': the text is null"),
        ({**TURNS, "role": ["a", "b", None]}, 3, "session 't': the role is null"),
        ({**TURNS, "session_id": ["s", None, "t"]}, 2, "the session's id is null or empty"),
        ({**TURNS, "session_id": ["s", "t", "s"]}, 3, "session 's' ended before this line"),
        ({**TURNS, "text": BAD[:3]}, 1, "not UTF-8"),
        (
            {
                "session_id": ["s", "t", "u", "v"],
                "turns": [
                    None,
                    [None],
                    [{"role": "a", "text": None}],
                    [{"role": "a", "text": "hi"}],
                ],
            },
            1,
            'expected {"session_id": text, "turns": [...]}',
        ),
    ],
)
def test_a_row_that_cannot_be_used_is_bad(columns, row, problem, tmp_path):
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(InputError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:{row}: {problem}")
    sessions, bad = read(path, limit=3)
    assert bad == (3 if "turns" in columns else 1)
    assert sessions


@pytest.mark.parametrize(
    "columns",
    [
        {"session_id": ["s"], "role": ["a"]},
        {**TURNS, "text": [1, 2, 3]},
        {**TURNS, "session_id": [0.5, 1.5, 2.5]},
        {"session_id": ["s"], "turns": [["hi"]]},
        {"session_id": ["s"], "turns": [[{"role": "a", "text": 1}]]},
    ],
)
def test_other_columns_are_one_message(columns, tmp_path):
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(InputError) as error:
        read(path)
    said = str(error.value)
    assert said.startswith(f"{path}: expected the columns session_id (text or integer), role and ")
    for field in pq.read_schema(path):
        assert f"{field.name} ({field.type})" in said.partition("; found ")[2]


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
    ids, roles, texts = map(list, zip(*rows))
    path = write(tmp_path / "a.parquet", {"id": ids, "role": roles, "text": texts})
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    run(tmp_path / "one", json_lines(DIALOGUES), format="jsonl")
    columns = ("session_id:id",)
    manifest = run(tmp_path / "two", path.read_bytes(), format="parquet", columns=columns)
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
            {"format": "parquet", "columns": ("order:at",)},
            "expected NAME:COLUMN, NAME one of session_id, turns, role, text, intents, acts$",
        ),
        ({"format": "parquet", "columns": ("text",)}, "expected NAME:COLUMN"),
        ({"format": "parquet", "columns": ("text:a", "text:b")}, "given twice"),
        ({"format": "table"}, r"`format`=table: .* a Spark cluster: give `spark_master`"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        PrepareOptions(input=("a",), output_dir="out", vocab="bert", **settings)


def test_a_table_is_not_looked_for_among_files(tmp_path):
    settings = {"input": ("shop.dialogues",), "output_dir": "out", "spark_master": "yarn"}
    find_files(PrepareOptions(format="table", vocab="bert", **settings))
    with pytest.raises(InputError, match="no such file"):
        find_files(PrepareOptions(format="parquet", vocab="bert", **settings))
