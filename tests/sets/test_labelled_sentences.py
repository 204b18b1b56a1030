import csv
import gzip
import json

import pytest

from dcse_tf.data.formats import reading
from dcse_tf.errors import InputError
from dcse_tf.sets.labelled_sentences import one_label_each, read_sentences
from dcse_tf.sets.options import LabelledOptions

TABLE = b"text,intent\nWhere is my parcel?,parcel\nI want a refund,refund\n"
SENTENCES = [("Where is my parcel?", ("parcel",)), ("I want a refund", ("refund",))]
DIALOGUES = [
    {
        "session_id": "a",
        "turns": [
            {"role": "user", "text": "我的快递到哪了", "intents": ["parcel"]},
            {"role": "user", "text": "我要退款", "intents": ["refund", "parcel"]},
            {"role": "agent", "text": "请  稍等"},
            {"role": "user", "text": " \t"},
            {"role": "user", "text": "好的", "intents": ["thanks"]},
        ],
    },
    {"session_id": "b", "turns": [{"role": "robot", "text": "您好", "intents": ["hello"]}]},
]


def write(folder, content, name="table.csv"):
    path = folder / name
    path.write_bytes(content)
    return path


def read(*paths, split=str.split, **settings):
    values = {"input": tuple(map(str, paths)), **settings}
    return read_sentences(LabelledOptions(**values), split)


def read_dialogues(folder, dialogues=DIALOGUES, **settings):
    lines = "".join(json.dumps(dialogue) + "\n" for dialogue in dialogues)
    path = write(folder, lines.encode(), "dialogues.jsonl")
    return read(path, format="jsonl", **settings)


@pytest.mark.parametrize(
    "content",
    [
        TABLE,
        TABLE.removesuffix(b"\n"),
        TABLE.replace(b"\n", b"\r\n"),
        TABLE.replace(b"\n", b"\n\n"),
        b"\xef\xbb\xbf" + TABLE,
        b'\xef\xbb\xbf"text","intent"\n' + TABLE.split(b"\n", 1)[1],
        TABLE.replace(b",refund", b", refund\t"),
        b"intent,more,text\nparcel,x,Where is my parcel?\nrefund,,I want a refund\n",
    ],
)
def test_a_table_is_read_however_it_was_written(tmp_path, content):
    sentences, left_out = read(write(tmp_path, content))
    assert sentences == SENTENCES
    assert set(left_out.values()) == {0}


def test_a_compressed_table_is_read(tmp_path):
    assert read(write(tmp_path, gzip.compress(TABLE), "table.csv.gz"))[0] == SENTENCES


def test_tables_are_read_in_the_order_given_each_with_its_own_header(tmp_path):
    first = write(tmp_path, TABLE, "z.csv")
    second = write(tmp_path, "intent,text\nhello,您好\n".encode(), "a.csv")
    assert read(first, second)[0] == [*SENTENCES, ("您好", ("hello",))]


def test_other_columns_may_be_named(tmp_path):
    path = write(tmp_path, b"text,query,category\nno,yes please,accept\n")
    sentences, _ = read(path, text_column="query", intent_column="category")
    assert sentences == [("yes please", ("accept",))]


def test_quoted_fields_of_csv_hold_commas_quotes_and_lines(tmp_path):
    path = write(tmp_path, b'text,intent\n"No, I said\n""now""\r\n please",a\n"x ,y","b,c"\n')
    assert read(path)[0] == [('No, I said "now" please', ("a",)), ("x ,y", ("b,c",))]


def test_quotes_of_tsv_are_marks_like_others_but_around_a_field(tmp_path):
    """There programs that write CSV put them."""
    content = b'text\tintent\n"No, I\ta\nsaid "now"\t"b"\n""\tc\n"Say ""hi"""\td\n'
    path = write(tmp_path, content, "table.tsv")
    expected = [('"No, I', ("a",)), ('said "now"', ("b",)), ('Say "hi"', ("d",))]
    sentences, left_out = read(path, format="tsv")
    assert sentences == expected
    assert left_out["empty_utterances"] == 1


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_a_long_field_is_read_and_one_too_long_is_skipped(tmp_path, monkeypatch, delimiter):
    """Python's csv takes 128 KiB and stops at more."""
    lines = ["text,intent", f"{'x' * 200_000},a", f"{'y' * 3_000_000},b", "yes,c"]
    path = write(tmp_path, "\n".join(lines).replace(",", delimiter).encode())
    name = "csv" if delimiter == "," else "tsv"
    assert [label for _, (label,) in read(path, format=name)[0]] == ["a", "b", "c"]
    limit = csv.field_size_limit(1_000_000)
    monkeypatch.setattr(reading, "_LONGEST_FIELD", 10_000_000)
    try:
        sentences, left_out = read(path, format=name, max_bad_lines=1)
        with pytest.raises(InputError, match=f"{path}:3: not {name.upper()}: field larger"):
            read(path, format=name)
    finally:
        csv.field_size_limit(limit)
    assert [label for _, (label,) in sentences] == ["a", "c"]
    assert left_out["bad_lines"] == 1


def test_white_space_is_folded_in_sentences(tmp_path):
    path = write(tmp_path, 'text,intent\n"  no \n\u3000thanks\t",a\n'.encode())
    assert read(path)[0] == [("no thanks", ("a",))]


@pytest.mark.parametrize("label", ["card \n arrival", "card\tarrival", " card\r\narrival "])
def test_white_space_is_folded_in_intents(tmp_path, label):
    """A line of a retrieval set cannot hold it."""
    expected = [("any news", ("card arrival",))]
    assert read(write(tmp_path, f'text,intent\nany news,"{label}"\n'.encode()))[0] == expected
    turn = {"role": "user", "text": "any news", "intents": [label]}
    assert read_dialogues(tmp_path, [{"session_id": "a", "turns": [turn]}])[0] == expected


def test_a_row_without_a_label_has_no_intent(tmp_path):
    path = write(tmp_path, b'text,intent\nyes,\nno," "\n')
    assert read(path)[0] == [("yes", ()), ("no", ())]


def test_rows_without_a_text_are_left_out_and_counted(tmp_path):
    path = write(tmp_path, 'text,intent\n,a\n" \t",b\n\u200b,c\nyes,d\n'.encode())
    sentences, left_out = read(path)
    assert sentences == [("yes", ("d",))]
    assert left_out == {"empty_utterances": 3, "short": 0, "bad_lines": 0}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"sentence,intent\n", "no column 'text' (`text_column`); the header has sentence, intent"),
        (b"text,label\n", "no column 'intent' (`intent_column`); the header has text, label"),
        (b"text;intent\n", "no column 'text' (`text_column`); the header has text;intent"),
        (b"", "no column 'text' (`text_column`); the header has none"),
        (b"\xef\xbb\xbf", "no column 'text' (`text_column`); the header has none"),
    ],
)
def test_a_missing_column_is_named(tmp_path, header, message):
    path = write(tmp_path, header)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value) == f"{path}:1: {message}"


def test_a_table_of_a_header_alone_has_no_sentences(tmp_path):
    assert read(write(tmp_path, b"text,intent\n"))[0] == []


# The quoted field ends on line 3; lines 4 and 6 have not two fields.
BAD = b'text,intent\n"one\ntwo",a\nthree\nfour,b\nfive,c,d\nsix,e\n'


@pytest.mark.parametrize(("limit", "line", "found"), [(0, 4, 1), (1, 6, 3)])
@pytest.mark.parametrize("name", ["csv", "tsv"])
def test_a_row_with_other_fields_is_named_by_its_line(tmp_path, name, limit, line, found):
    content = BAD.replace(b",", b"\t") if name == "tsv" else BAD
    if name == "tsv":  # where quotes do not join lines
        content = content.replace(b'"one\ntwo"', b"one\tz\ntwo")
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read(path, format=name, max_bad_lines=limit)
    message = f"{path}:{line}: expected 2 field(s), found {found} (bad line {limit + 1}; "
    assert str(caught.value).startswith(f"{message}`max_bad_lines`={limit}")


def test_bad_rows_are_skipped_and_counted_over_all_tables(tmp_path):
    paths = [write(tmp_path, BAD, name) for name in ("a.csv", "b.csv")]
    sentences, left_out = read(*paths, max_bad_lines=4)
    assert [text for text, _ in sentences] == ["one two", "four", "six"] * 2
    assert left_out == {"empty_utterances": 0, "short": 0, "bad_lines": 4}
    with pytest.raises(InputError, match=r"b\.csv:6: .*bad line 4"):
        read(*paths, max_bad_lines=3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,intent\n退款,a\n".encode("gb18030"), "not UTF-8"),
        (b"te\xffxt,intent\nyes,a\n", "not UTF-8"),
        (TABLE * 2000 + b"\xe4\xbd", "not UTF-8"),  # half of a character at the end
        (b'text,intent\nyes,a\n"no,b\nmaybe,c\n', "not CSV: unexpected end of data"),
        (b'text,intent\n"yes"!,a\n', "not CSV: ',' expected"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:")
    assert message in str(caught.value)


def test_only_rows_after_the_header_can_be_skipped(tmp_path):
    content = b'text,intent\nn\xff,a\n"yes"!,a\nyes,b\n"no,b\n'
    sentences, left_out = read(write(tmp_path, content), max_bad_lines=3)
    assert sentences == [("yes", ("b",))]
    assert left_out["bad_lines"] == 3
    with pytest.raises(InputError, match=r"table\.csv:1: not UTF-8"):
        read(write(tmp_path, b"te\xffxt,intent\ntext,intent\n"), max_bad_lines=3)


def test_an_open_quote_is_named_by_the_last_line(tmp_path):
    path = write(tmp_path, b'text,intent\nyes,a\n"no,b\nmaybe,c\n')
    with pytest.raises(InputError, match=f"{path}:4: not CSV"):
        read(path)


@pytest.mark.parametrize("name", ["table.csv.gz", "table.csv.zip"])
def test_a_file_that_cannot_be_unpacked_is_named(tmp_path, name):
    path = write(tmp_path, TABLE, name)
    with pytest.raises(InputError, match=f"{path}: cannot be read"):
        read(path)
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "nowhere.csv")


def test_sentences_with_fewer_words_are_left_out_and_counted(tmp_path):
    path = write(tmp_path, b"text,intent\none,a\none two,b\none two three,c\n")
    for least, kept in ((1, 3), (2, 2), (3, 1), (4, 0)):
        sentences, left_out = read(path, min_words=least)
        assert [text.count(" ") + 1 for text, _ in sentences] == [1, 2, 3][3 - kept :]
        assert left_out["short"] == 3 - kept
    # The words are those of the splitter, here characters.
    assert read(path, split=list, min_words=7)[1]["short"] == 1


def test_turns_of_dialogues_are_sentences_with_the_intents_of_what_was_joined(tmp_path):
    sentences, left_out = read_dialogues(tmp_path)
    assert sentences == [
        ("我的快递到哪了 我要退款", ("parcel", "refund")),
        ("请 稍等", ()),
        ("好的", ("thanks",)),
        ("您好", ("hello",)),
    ]
    assert left_out == {"empty_utterances": 1, "short": 0, "bad_lines": 0}


def test_turns_stay_apart_where_asked(tmp_path):
    sentences, _ = read_dialogues(tmp_path, join_consecutive=False)
    assert sentences[:2] == [("我的快递到哪了", ("parcel",)), ("我要退款", ("refund", "parcel"))]
    assert len(sentences) == 5


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (("user",), ["我的快递到哪了 我要退款", "好的"]),
        (("agent",), ["请 稍等"]),
        (("robot", "agent"), ["请 稍等", "您好"]),
        (("nobody",), []),
    ],
)
def test_only_what_some_speakers_say(tmp_path, roles, expected):
    sentences, _ = read_dialogues(tmp_path, roles=roles)
    assert [text for text, _ in sentences] == expected


def test_dialogues_are_read_up_to_a_number_and_bad_lines_are_counted(tmp_path):
    dialogues = ["bad", *DIALOGUES]
    sentences, left_out = read_dialogues(tmp_path, dialogues, max_bad_lines=1, max_sessions=1)
    assert len(sentences) == 3
    assert left_out["bad_lines"] == 1
    with pytest.raises(InputError, match=r"dialogues\.jsonl:1"):
        read_dialogues(tmp_path, dialogues)


def test_turns_are_labelled_with_their_speaker_and_sorted_acts_where_asked(tmp_path):
    turns = [
        {"role": "user", "text": "at two, where?", "acts": ["REQUEST:city", "INFORM:time"]},
        {"role": "system", "text": "at two, where?", "acts": ["INFORM:time", "REQUEST:city"]},
        {"role": "user", "text": "yes", "intents": ["Book"], "acts": ["AFFIRM:"]},
        {"role": "system", "text": "hm"},
    ]
    sentences, _ = read_dialogues(tmp_path, [{"session_id": "a", "turns": turns}], labels="act")
    assert sentences == [
        ("at two, where?", ("user INFORM:time REQUEST:city",)),
        ("at two, where?", ("system INFORM:time REQUEST:city",)),
        ("yes", ("user AFFIRM:",)),
        ("hm", ()),
    ]


def test_an_intent_named_twice_is_one(tmp_path):
    turn = {"role": "user", "text": "any news", "intents": ["parcel", "parcel"]}
    sentences, _ = read_dialogues(tmp_path, [{"session_id": "a", "turns": [turn]}])
    assert one_label_each(sentences)[0] == [("any news", "parcel")]


def test_sentences_of_one_intent_are_kept_and_the_others_counted():
    sentences = [("a", ("x",)), ("b", ()), ("c", ("x", "y")), ("d", ("y",)), ("e", ())]
    labelled, left_out = one_label_each(sentences)
    assert labelled == [("a", "x"), ("d", "y")]
    assert left_out == {"without_label": 2, "with_several_labels": 1}
