"""The Ubuntu corpus in its two released forms: turns, tags, speakers, dialogues of windows."""

import pytest

from dcse_tf.data.formats import FORMATS, ubuntu
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def line(label, *texts):
    return "\t".join([str(label), *texts])


def spell(turns):
    return [f"{turn.role}: {turn.text}" for turn in turns]


def read_one(tmp_path, *texts):
    [row] = ubuntu.read_candidates(write(tmp_path / "t", line(1, *texts)), BadLines(0))
    return [*spell(row.context), f"{row.responder}: {row.response}"]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # Without tags a field is a turn, counted back from the response.
        (["hi all", "hello", "try _path_"], ["b: hi all", "a: hello", "b: try _path_"]),
        (["hi", "hello", "help", "with what"], ["a: hi", "b: hello", "a: help", "b: with what"]),
        # Utterances of a turn become one text; spaces are folded, case stays.
        (["Hi __eou__  anyone ? __eou__", "yes __eou__"], ["a: Hi anyone ?", "b: yes"]),
        # Turns end at their tag alone, in whichever field it stands.
        (
            ["hi __eou__", "anyone __eou__ __eot__", "me __eou__ __eot__", "ok __eou__"],
            ["b: hi anyone", "a: me", "b: ok"],
        ),
        (["hi __eou__ __eot__ me __EOT__ so", "ok"], ["a: hi", "b: me", "a: so", "b: ok"]),
        (["a __eot__ b __eot__", "c __eou__ __eot__ d"], ["b: a", "a: b", "b: c d"]),
        # A field without text takes its place among the speakers.
        (["hi", "__eou__", "so", "ok"], ["a: hi", "b: ", "a: so", "b: ok"]),
        # Speakers are named by every turn of the context, or by none.
        (["<ann> hi", "<bob> lo", "<ann> do"], ["ann: hi", "bob: lo", "ann: do"]),
        (["<ann> hi", "<bob> lo", "do"], ["ann: hi", "bob: lo", "ann: do"]),
        (["<ann> hi", "<ann> lo", "<cy> do"], ["ann: hi", "ann: lo", "cy: do"]),
        (["<ann> hi", "do"], ["ann: hi", "unknown: do"]),
        (["<ann> hi __eot__ <bob> lo __eot__", "<cy> x"], ["ann: hi", "bob: lo", "cy: x"]),
        (["<div> is a tag", "is it", "<br> too"], ["b: <div> is a tag", "a: is it", "b: <br> too"]),
    ],
)
def test_turns_and_speakers(tmp_path, texts, expected):
    assert read_one(tmp_path, *texts) == expected


DIALOGUE = ["my sound is gone", "which card is it", "an old one", "run alsamixer", "it works"]


def test_windows_become_dialogues_whoever_responds(tmp_path):
    """The windows end with either speaker's turn; negatives are dropped."""
    path = write(
        tmp_path / "t.txt",
        line(1, *DIALOGUE[:2]),
        line(0, *DIALOGUE[:2], "no idea"),
        line(1, *DIALOGUE),
        line(1, *DIALOGUE[:4]),
        line(1, "any news __eou__ today __eot__", "none"),
    )
    sessions = {name: spell(turns) for name, turns in FORMATS["ubuntu"].read(path, BadLines(0))}
    said = [f"{role}: {text}" for role, text in zip("ababa", DIALOGUE)]
    assert sessions == {"t.txt-3": said, "t.txt-5": ["a: any news today", "b: none"]}


def test_named_speakers_stay(tmp_path):
    path = write(tmp_path / "t", line(1, "<b> hi", "<b> anyone", "<a> me"))
    [(_, turns)] = FORMATS["ubuntu"].read(path, BadLines(0))
    assert spell(turns) == ["b: hi", "b: anyone", "a: me"]


@pytest.mark.parametrize("bad", ["nonsense", "1", line(1, "one"), line(2, "one", "two")])
def test_a_line_of_another_form_is_bad(tmp_path, bad):
    path = write(tmp_path / "t", line(1, "hi", "lo"), bad)
    for read in (ubuntu.read_sessions, ubuntu.read_candidates):
        bad_lines = BadLines(1)
        assert len(list(read(path, bad_lines))) == 1
        assert bad_lines.count == 1
        with pytest.raises(InputError, match=f"{path}:2: expected 0 or 1, the context's turns"):
            list(read(path, BadLines(0)))


TEST_FILE = [
    "Context,Ground Truth Utterance,Distractor_0,Distractor_1",
    '"hi __eou__ is it, ""on""? __eou__ __eot__ no __eou__ __eot__",try it __eou__,bye,"so\nso"',
    "a __eot__ b __eot__,c,d,e",
]
TRAIN_FILE = [
    "Context,Utterance,Label",
    "hi __eou__ __eot__,lo __eou__,1",
    "hi __eou__ __eot__,no __eou__,0.0",
    "one __eot__ two __eot__,three,1.0",
]


def test_a_row_of_lowes_test_file_is_a_group(tmp_path):
    path = write(tmp_path / "test.csv", *TEST_FILE)
    rows = list(ubuntu.read_csv_candidates(path, BadLines(0)))
    assert [(row.line, row.label, row.response) for row in rows] == [
        *[(3, 1, "try it"), (3, 0, "bye"), (3, 0, "so so")],  # its last field has two lines
        *[(4, 1, "c"), (4, 0, "d"), (4, 0, "e")],
    ]
    assert {row.group for row in rows} == {"test.csv-3", "test.csv-4"}
    assert spell(rows[2].context) == ['b: hi is it, "on"?', "a: no"]
    assert {row.responder for row in rows} == {"b"}


def test_lowes_files_are_a_corpus(tmp_path):
    for lines, expected in (
        (TEST_FILE, [["a: hi is it", "b: no", "a: try it"], ["a: a", "b: b", "a: c"]]),
        (TRAIN_FILE, [["a: hi", "b: lo"], ["a: one", "b: two", "a: three"]]),
    ):
        path = write(tmp_path / "t.csv", *[text.replace(', ""on""?', "") for text in lines])
        sessions = FORMATS["ubuntu_csv"].read(path, BadLines(0))
        assert [spell(turns) for _, turns in sessions] == expected


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], ":1: expected the header Context,Utterance,Label or Context,Ground Truth Utterance,"),
        (["Context,Label"], ":1: expected the header .*; found 'Context,Label'"),
        (["Context,Ground Truth Utterance"], ":1: expected the header "),
        ([*TRAIN_FILE, "a,b"], r":5: expected 3 field\(s\), found 2"),
        ([*TRAIN_FILE, "a,b,yes"], ":5: expected a Label of 0 or 1, found 'yes'"),
        ([*TRAIN_FILE, 'a,"b"c,1'], ":5: not CSV: "),
    ],
)
def test_a_table_of_another_form_is_refused(tmp_path, lines, problem):
    path = write(tmp_path / "t.csv", *lines)
    with pytest.raises(InputError, match=f"{path}{problem}"):
        list(ubuntu.read_csv_candidates(path, BadLines(0)))


# The copy with ids


def write_ids(tmp_path, *lines):
    responses = ["1\ttry it __EOS__", "2\tno idea", "3\tbye", "4\tit works"]
    write(tmp_path / "responses.txt", *responses)
    return write(tmp_path / "test.txt", *lines)


def test_the_copy_with_ids_has_a_group_a_line(tmp_path):
    path = write_ids(
        tmp_path,
        line(7, "hi all __EOS__ hello __EOS__ help", "4", "2|3"),
        line(8, "hi __eou__ __eot__ __EOS__ lo __EOS__ you", "1|4", "NA"),
    )
    rows = list(ubuntu.read_ids_candidates(path, BadLines(0)))
    assert [(row.group, row.label, row.response) for row in rows] == [
        *[("test.txt-1", 1, "it works"), ("test.txt-1", 0, "no idea"), ("test.txt-1", 0, "bye")],
        *[("test.txt-2", 1, "try it"), ("test.txt-2", 1, "it works")],
    ]
    assert spell(rows[0].context) == ["a: hi all", "b: hello", "a: help"]
    assert spell(rows[3].context) == ["b: hi", "a: lo you"]  # turns end at __eot__ here


def test_the_copy_with_ids_is_a_corpus(tmp_path):
    path = write_ids(
        tmp_path,
        line(0, "my sound is gone __EOS__ which card is it", "1", "NA"),
        line(1, "my sound is gone __EOS__ which card is it", "NA", "3"),
        line(2, "my sound is gone __EOS__ which card is it __EOS__ try it", "4", "NA"),
    )
    [(name, turns)] = FORMATS["ubuntu_ids"].read(path, BadLines(0))
    assert name == "test.txt-3"
    assert spell(turns) == [
        *["a: my sound is gone", "b: which card is it", "a: try it", "b: it works"]
    ]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (line(1, "hi", "4"), r"expected a number, the context, .*; found 3 field\(s\)"),
        (line(1, "hi", "4|9", "NA"), "no response '9' in responses.txt"),
        (line(1, "hi", "NA", "NA"), "expected the id of a response, found NA twice"),
    ],
)
def test_a_bad_line_of_the_copy_with_ids_is_named(tmp_path, bad, problem):
    path = write_ids(tmp_path, line(0, "hi", "1", "2"), bad)
    with pytest.raises(InputError, match=f"{path}:2: {problem}"):
        list(ubuntu.read_ids_candidates(path, BadLines(0)))


def test_the_copy_with_ids_needs_its_responses(tmp_path):
    path = write_ids(tmp_path, line(0, "hi", "1", "2"))
    write(tmp_path / "responses.txt", "1")
    with pytest.raises(InputError, match=r"responses.txt:1: expected a response's id and its text"):
        list(ubuntu.read_ids_candidates(path, BadLines(0)))
    (tmp_path / "responses.txt").unlink()
    with pytest.raises(InputError, match=r"expected responses.txt beside it"):
        list(ubuntu.read_ids_candidates(path, BadLines(0)))
