"""Files of grouped candidates: what is a group, what is refused and in which words."""

import itertools
import json

import pytest
from shared_files import shared_file

from dcse_tf.data.candidates import (
    CANDIDATE_FORMATS,
    CandidateGroup,
    group_to_dict,
    read_groups,
)
from dcse_tf.data.dialogue import Utterance
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def line(label, *texts):
    return "\t".join([str(label), *texts])


def read(path, format="ecd", limit=0, **settings):
    bad_lines = BadLines(limit)
    return list(read_groups(path, format, bad_lines, **settings)), bad_lines.count


PARCEL = ["在 吗", "在 的 亲", "快递 到 哪 了"]
SIZE = ["有 大 码 吗"]
FILE = [
    line(1, *PARCEL, "明天 到"),
    line(0, *PARCEL, "没 货"),
    line(0, *SIZE, "不 退"),
    line(1, *SIZE, "有 的"),
    line(0, *SIZE, "Hello Kitty 的"),
]
GROUPS = [
    CandidateGroup(
        "test-1",
        (
            Utterance("customer", "在吗"),
            Utterance("agent", "在的亲"),
            Utterance("customer", "快递到哪了"),
        ),
        ("明天到", "没货"),
        (1, 0),
        "agent",
    ),
    CandidateGroup(
        "test-3",
        (Utterance("customer", "有大码吗"),),
        ("不退", "有的", "Hello Kitty的"),
        (0, 1, 0),
        "agent",
    ),
]


def test_neighbouring_lines_of_a_context_are_a_group(tmp_path):
    assert read(write(tmp_path / "test", *FILE)) == (GROUPS, 0)


def test_english_keeps_its_spaces(tmp_path):
    path = write(tmp_path / "t", line(1, "hi there", "how are you"), line(0, "hi there", "no no"))
    [group], _ = read(path, "ubuntu")
    assert group.context == (Utterance("a", "hi there"),)
    assert group.candidates == ("how are you", "no no")
    assert group.responder == "b"


def test_the_responder_is_the_true_responses_speaker(tmp_path):
    said = ["<ann> hi", "<bob> lo"]
    path = write(tmp_path / "t", line(0, *said, "<cy> bye"), line(1, *said, "<ann> fine"))
    [group], _ = read(path, "ubuntu")
    assert group.responder == "ann"
    assert group.candidates == ("bye", "fine")


def test_turns_without_text_are_left_out(tmp_path):
    lines = [line(label, "在 吗", " ", "好", text) for label, text in ((1, "是"), (0, "否"))]
    [group], _ = read(write(tmp_path / "t", *lines))
    assert [(turn.role[0], turn.text) for turn in group.context] == [("c", "在吗"), ("c", "好")]


RETURN = "this context ended before; the candidates of a context must stand together"


@pytest.mark.parametrize(
    ("lines", "number", "problem"),
    [
        ([*FILE, *FILE[:2]], 6, RETURN),
        ([FILE[0], FILE[1], FILE[3]], 3, "expected a candidate with label 0 beside the true"),
        ([FILE[1], *FILE[2:]], 1, "expected a candidate with label 1, the true response; the"),
        ([FILE[0], *FILE[:2]], 1, "expected one candidate with label 1, found 2; `several_posi"),
        ([*FILE, line(1, "在 吗", " ")], 6, "the response is empty"),
        ([*FILE, line(1, " ", "在 的")], 6, "the context is empty"),
        ([*FILE, line(1, "在 的")], 6, "expected 0 or 1, the context's turns and the response"),
        ([*FILE, "nonsense"], 6, "expected 0 or 1, the context's turns and the response"),
    ],
)
def test_bad_input_is_named(tmp_path, lines, number, problem):
    path = write(tmp_path / "test", *lines)
    with pytest.raises(InputError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:{number}: {problem}")


def test_bad_lines_and_groups_within_the_limit_are_left_out(tmp_path):
    lines = [*FILE, "nonsense", line(1, "你", "我"), *FILE[:2]]
    path = write(tmp_path / "test", *lines)
    assert read(path, limit=3) == (GROUPS, 3)
    with pytest.raises(InputError, match=r"\(bad line 3; `max_bad_lines`=2\)"):
        read(path, limit=2)


def test_several_true_responses_where_they_are_allowed(tmp_path):
    path = write(tmp_path / "t", *[line(label, "问", text) for label, text in zip("101", "甲乙丙")])
    [group], _ = read(path, several_positives=True)
    assert group.labels == (1, 0, 1)
    with pytest.raises(InputError, match="expected one candidate with label 1, found 2"):
        read(path)


def test_lines_counted_off_make_groups_of_one_context_each(tmp_path):
    twice = [line(1, "问", "甲"), line(0, "问", "乙")] * 2
    path = write(tmp_path / "t", *twice, line(1, "又", "甲"), line(0, "又", "乙"), *twice[:2])
    groups, _ = read(path, lines=2)
    assert [group.id for group in groups] == ["t-1", "t-3", "t-5", "t-7"]
    for lines, found in ((5, "5 of 2"), (8, "8 of 2"), (9, "8 of 2")):
        message = rf"{path}:1: expected {lines} lines of one context .*, found {found} context"
        with pytest.raises(InputError, match=message):
            read(path, lines=lines)


# The form of build_candidates


def test_groups_are_read_back_as_written(tmp_path):
    named = [
        CandidateGroup(
            "7", (Utterance("x", " a\tb "), Utterance("", "c")), ("d", "d"), (0, 1), "z"
        ),
        *GROUPS,
    ]
    path = write(tmp_path / "c.jsonl", *[json.dumps(group_to_dict(group)) for group in named])
    assert read(path, "jsonl") == (named, 0)


def test_groups_may_share_a_context_where_they_have_ids(tmp_path):
    values = [{**group_to_dict(GROUPS[0]), "id": name} for name in ("one", "two")]
    groups, _ = read(write(tmp_path / "c", *map(json.dumps, values)), "jsonl")
    assert [group.id for group in groups] == ["one", "two"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": ""}, '"id" and "responder" to be texts'),
        ({"id": 3}, '"id" and "responder" to be texts'),
        ({"responder": None}, '"id" and "responder" to be texts'),
        ({"context": "hi"}, '"context" to be a list of {"role": text, "text": text}'),
        ({"context": [{"role": "a"}]}, '"context" to be a list of {"role": text, "text": text}'),
        ({"context": []}, "the context is empty"),
        ({"context": [{"role": "a", "text": " "}]}, "the context is empty"),
        ({"candidates": ["a", 1]}, '"candidates" to be a list of texts'),
        ({"candidates": ["a", " "]}, "the response is empty"),
        ({"labels": [True, 0]}, '"labels" to be a list of 0 and 1'),
        ({"labels": [2, 0]}, '"labels" to be a list of 0 and 1'),
        ({"labels": [1]}, 'a label for each candidate, found 2 "candidates" and 1 "labels"'),
        ({"labels": [], "candidates": []}, "a label for each candidate, found 0"),
        ({"labels": [0, 0]}, "a candidate with label 1"),
        ({"labels": [1, 1]}, "a candidate with label 0 beside"),
        ({"candidates": ["a", "\ud800"]}, "half of a surrogate pair"),
        ({"id": "test-3"}, "the id 'test-3' appears in the file for a second time"),
    ],
)
def test_a_bad_group_of_json_is_named(tmp_path, change, problem):
    values = [group_to_dict(GROUPS[1]), {**group_to_dict(GROUPS[0]), **change}]
    path = write(tmp_path / "c.jsonl", *map(json.dumps, values))
    with pytest.raises(InputError) as error:
        read(path, "jsonl")
    assert str(error.value).startswith(f"{path}:2: ")
    assert problem in str(error.value)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_line_that_is_no_group_is_named(tmp_path, text):
    path = write(tmp_path / "c.jsonl", text)
    with pytest.raises(InputError, match=f'{path}:1: (not JSON|expected {{"id")'):
        read(path, "jsonl")


def test_rows_of_lowes_test_file_are_groups_though_they_share_a_context(tmp_path):
    path = write(
        tmp_path / "test.csv", "Context,Ground Truth Utterance,Distractor_0", *["a __eot__,b,c"] * 2
    )
    groups, _ = read(path, "ubuntu_csv")
    assert [(group.id, group.candidates) for group in groups] == [
        ("test.csv-2", ("b", "c")),
        ("test.csv-3", ("b", "c")),
    ]


# The public sample


def squeeze(text):
    return "".join(text.split())


@pytest.mark.parametrize(("name", "size", "count"), [("test", 10, 100), ("valid", 2, 77)])
def test_the_public_sample_is_grouped_as_its_lines_are(name, size, count):
    path = shared_file(f"ecd_response_selection/{name}")
    groups, bad = read(path)
    assert bad == 0
    fields = [row.split("\t") for row in path.read_text(encoding="utf-8").splitlines()]
    plain = [list(rows) for _, rows in itertools.groupby(fields, key=lambda row: row[1:-1])]
    assert len(groups) == len(plain) == count
    for group, rows in zip(groups, plain, strict=True):
        assert len(rows) == size
        assert [str(label) for label in group.labels] == [row[0] for row in rows]
        for text, row in zip(group.candidates, rows, strict=True):
            assert squeeze(text) == squeeze(row[-1])
        said = [squeeze(text) for text in rows[0][1:-1]]
        assert [squeeze(turn.text) for turn in group.context] == [text for text in said if text]
    assert read(path, lines=size)[0] == groups


def test_every_format_says_what_it_reads():
    assert set(CANDIDATE_FORMATS) == {"jsonl", "ecd", "ubuntu", "ubuntu_csv", "ubuntu_ids"}
    assert all(len(entry.help) > 20 for entry in CANDIDATE_FORMATS.values())
