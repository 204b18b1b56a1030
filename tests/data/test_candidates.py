"""Files of contexts with candidates: as groups to evaluate on, and as sessions to train on."""

import json

import pytest
from dialogue_files import DIALOGUES, read_records, run, tsv
from lettered_corpus import turn_ids
from written_dialogues import write_lines

from dcse_tf.data.dialogue import GivenCandidates, Utterance
from dcse_tf.data.formats import CANDIDATE_FORMATS, FORMATS, read_groups
from dcse_tf.data.formats.candidates import CandidateGroup
from dcse_tf.data.records import check_records, parse_given, parse_session
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines


def line(label, *texts):
    return "\t".join([str(label), *texts])


def read(path, format="ecd", limit=0, **settings):
    bad_lines = BadLines(limit)
    return list(read_groups(path, format, bad_lines, **settings)), bad_lines.count


def read_given(path, format="candidates", limit=0):
    bad_lines = BadLines(limit)
    return list(FORMATS[format].read(path, bad_lines)), bad_lines.count


def make_group(number=0, negatives=("s7 t1", "s8 t1 w2"), context=2, **more):
    """Turn t of session n says "sn tn"; the true response is the turn after the context."""
    return {
        "id": f"{number}:{context}",
        "dialogue": str(number),
        "context": [{"role": "xy"[t % 2], "text": f"s{number} t{t}"} for t in range(context)],
        "responder": "xy"[context % 2],
        "candidates": [f"s{number} t{context}", *negatives],
        "labels": [1, *[0] * len(negatives)],
        **more,
    }


def prepare(folder, *groups, **settings):
    lines = "".join(json.dumps(group) + "\n" for group in groups)
    return run(folder, lines, name="groups.jsonl", format="candidates", **settings)


PARCEL = ["在 吗", " ", "在 的 亲", "快递 到 哪 了"]
SIZE = ["有 大 码 吗"]
FILE = [
    line(1, *PARCEL, "明天 到"),
    line(0, *PARCEL, "没 货"),
    line(0, *SIZE, "不 退"),
    line(1, *SIZE, "有 的"),
    line(0, *SIZE, "Hello Kitty 的"),
]
SAID = ("agent", "在吗"), ("agent", "在的亲"), ("customer", "快递到哪了")
TURNS = tuple(Utterance(*turn) for turn in SAID)
ASKED = (Utterance("customer", "有大码吗"),)
GROUPS = [
    CandidateGroup("test-1", TURNS, ("明天到", "没货"), (1, 0), "agent"),
    CandidateGroup("test-3", ASKED, ("不退", "有的", "Hello Kitty的"), (0, 1, 0), "agent"),
]

# Groups


def test_neighbouring_lines_of_a_context_are_a_group(tmp_path):
    """Turns with nothing to read are left out, after speakers are counted."""
    assert read(write_lines(tmp_path / "test", *FILE)) == (GROUPS, 0)
    lines = [*FILE, "nonsense", line(1, "你", "我")]
    assert read(write_lines(tmp_path / "test", *lines), limit=2) == (GROUPS, 2)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # Without tags a field is a turn, counted back from the response.
        (["hi", "hello", "help", "with what"], ["a: hi", "b: hello", "a: help", "b: with what"]),
        (["Hi __eou__  anyone ? __eou__", "yes __eou__"], ["a: Hi anyone ?", "b: yes"]),
        (["hi __eou__", "you __EOT__", "me __eot__", "ok"], ["b: hi you", "a: me", "b: ok"]),
        (["a __eot__ b __eot__", "c __eot__ d"], ["b: a", "a: b", "b: c d"]),
    ],
)
def test_turns_and_speakers_of_the_ubuntu_corpus(tmp_path, texts, expected):
    path = write_lines(tmp_path / "t", line(1, *texts), line(0, *texts[:-1], "no"))
    [group], _ = read(path, "ubuntu")
    said = [*group.context, Utterance(group.responder, group.candidates[0])]
    assert [f"{turn.role}: {turn.text}" for turn in said] == expected


@pytest.mark.parametrize(
    ("lines", "number", "problem"),
    [
        ([FILE[0], FILE[1], FILE[3]], 3, "expected candidates with label 1 and with label 0"),
        ([FILE[1], *FILE[2:]], 1, "expected candidates with label 1 and with label 0"),
        ([FILE[0], *FILE[:2]], 1, "expected candidates with label 1 and .*`several_positives`"),
        ([*FILE, line(1, "在 吗", " ")], 6, "the response is empty"),
        ([*FILE, line(1, " ", "在 的")], 6, "the context is empty"),
        ([*FILE, "nonsense"], 6, "expected 0 or 1"),
    ],
)
def test_what_is_no_group_is_named(tmp_path, lines, number, problem):
    path = write_lines(tmp_path / "test", *lines)
    with pytest.raises(InputError, match=f"^{path}:{number}: {problem}"):
        read(path)


def test_another_true_response_begins_another_group_unless_there_may_be_several(tmp_path):
    shared = [line(label, *SIZE, text) for label, text in ((1, "a"), (0, "b"), (1, "c"), (0, "d"))]
    path = write_lines(tmp_path / "t", *shared)
    assert [group.candidates for group in read(path)[0]] == [("a", "b"), ("c", "d")]
    [group], _ = read(path, several_positives=True)
    assert group.labels == (1, 0, 1, 0)


def test_a_group_survives_its_json_form(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", *(json.dumps(group.to_dict()) for group in GROUPS))
    assert read(path, "jsonl") == (GROUPS, 0)
    assert all(entry.help for entry in CANDIDATE_FORMATS.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": [0, 0, 0]}, {"labels": [1, 1, 0]}, {"labels": [1, 0]}, {"labels": [1, 0, True]},
        {"candidates": ["s1 t2"], "labels": [1]}, {"candidates": "abc"},
        {"context": [{"role": "x"}]}, {"dialogue": 7}, {"id": ""}, {"id": "0:2"},
        {"responder": "\ud83d"},
    ],
)  # fmt: skip
def test_a_line_that_is_no_group_is_named(tmp_path, changes):
    groups = [make_group(0), make_group(1) | changes, make_group(2)]
    path = write_lines(tmp_path / "groups.jsonl", *map(json.dumps, groups))
    with pytest.raises(InputError, match=r"groups\.jsonl:2: "):
        read_given(path)
    sessions, bad = read_given(path, limit=1)
    assert ([name for name, *_ in sessions], bad) == (["0:2", "2:2"], 1)


# Sessions with negatives


def test_lines_with_negatives_are_sessions_of_the_dialogues_that_they_are_windows_of(tmp_path):
    talk = ["杯子 有 货 吗", "有 的 亲", "蓝色 的 也 有 吗", "都 有"]
    lines = [
        *(line(1, *talk[:2]), line(0, talk[0], "没 听过")),
        *(line(1, *talk), line(0, *talk[:3], "下午 好"), line(0, *talk[:3], "嗯")),
        *(line(1, "另外 呢", "您 说"), line(0, "另外 呢", "不")),
    ]
    sessions, _ = read_given(write_lines(tmp_path / "t", *lines), "ecd_candidates")
    assert [(name, len(turns), given) for name, turns, given in sessions] == [
        ("t-1", 2, GivenCandidates("t-3", ("没听过",))),
        ("t-3", 4, GivenCandidates("t-3", ("下午好", "嗯"))),
        ("t-6", 2, GivenCandidates("t-6", ("不",))),
    ]


def test_speakers_who_are_named_from_the_response_do_not_part_a_dialogue(tmp_path):
    talk = ["my screen is black", "since when", "since this morning", "reboot it"]
    lines = [line(k, *talk[:n], (talk[n], "no")[1 - k]) for n in (1, 2, 3) for k in (1, 0)]
    path = write_lines(tmp_path / "t", *lines)
    assert [given.dialogue for *_, given in read_given(path, "ubuntu_candidates")[0]] == ["t-5"] * 3
    groups = [json.dumps(group.to_dict()) for group in read(path, "ubuntu")[0]]  # of no dialogue
    path = write_lines(tmp_path / "t.jsonl", *groups)
    assert [given.dialogue for *_, given in read_given(path)[0]] == ["t-5"] * 3


def test_a_blank_negative_is_a_candidate_as_any_other(tmp_path):
    path = write_lines(tmp_path / "groups.jsonl", json.dumps(make_group(negatives=[" ", "no"])))
    assert read(path, "jsonl")[0][0].candidates == ("s0 t2", " ", "no")


def test_the_true_response_is_last_wherever_it_stands_in_the_file(tmp_path):
    group = make_group(labels=[0, 0, 1])
    del group["dialogue"]
    path = write_lines(tmp_path / "groups.jsonl", json.dumps(group))
    [(name, turns, given)], _ = read_given(path)
    assert (name, turns[-1]) == ("0:2", Utterance("x", "s8 t1 w2"))
    assert given == GivenCandidates("0:2", ("s0 t2", "s7 t1"))


def test_a_record_has_the_negatives_of_its_last_turn(tmp_path):
    manifest = prepare(tmp_path, make_group(responder="y"), max_sequence_length=4)
    (record,) = read_records(tmp_path, manifest)
    session, given = parse_session(record), parse_given(record)
    # A response is not joined to a turn of its speaker.
    assert session["token_ids"].to_list() == [turn_ids(0, turn) for turn in range(3)]
    # [CLS], two words and [SEP]; the third word is cut, but only cut turns are counted.
    assert given["token_ids"].to_list() == [turn_ids(7, 1), turn_ids(8, 1)]
    train = manifest.splits["train"]
    assert (train.utterances, train.truncated_utterances) == (3, 0)
    assert train.given == {"negatives": 2}
    check_records(tmp_path / "data", manifest)


def test_equal_texts_have_equal_fingerprints_and_pieces_of_a_dialogue_one_session(tmp_path):
    groups = [make_group(n, [f"s{1 - n} t2", "s5 t0"]) for n in (0, 1)]
    manifest = prepare(tmp_path, *groups, make_group(1, context=1), shards=1)
    records = read_records(tmp_path, manifest)
    parsed = list(map(parse_session, records))
    said = [session["utterances"].numpy()[-1] for session in parsed]
    first, second = (parse_given(record)["utterances"].numpy() for record in records[:2])
    assert (first[0], second[0]) == (said[1], said[0])
    assert first[1] == second[1] not in said
    sessions = [int(session["session"]) for session in parsed]
    assert sessions[0] != sessions[1] == sessions[2]


def test_groups_of_one_dialogue_go_to_one_split_and_name_it(tmp_path):
    fractions = {"dev_fraction": 0.3, "test_fraction": 0.2}
    for name in ("groups", "dialogues"):
        (tmp_path / name).mkdir()
    groups = (make_group(n, context=context) for n in range(50) for context in (1, 2))
    prepare(tmp_path / "groups", *groups, **fractions)
    run(tmp_path / "dialogues", tsv({str(n): DIALOGUES["a"] for n in range(50)}), **fractions)

    def held_out(name, split, key):
        lines = (tmp_path / name / f"data/{split}.jsonl").read_text().splitlines()
        return [json.loads(line)[key] for line in lines]

    for split in ("dev", "test"):
        names = held_out("dialogues", split, "session_id")
        pieces = [f"{n}:{turn}" for n in names for turn in (1, 2)]
        assert held_out("groups", split, "session_id") == pieces
        assert held_out("groups", split, "dialogue") == [n for n in names for _ in (1, 2)]
        assert len(names) > 3
    # So do the sessions held out, if they are prepared again.
    held = (tmp_path / "groups/data/dev.jsonl").read_text()
    run(tmp_path, held, format="jsonl", dev_fraction=0.5, seed=1)
    kept, again = held_out("groups", "dev", "dialogue"), held_out("", "dev", "dialogue")
    assert again == [name for name in kept if name in again] != []


def test_negatives_that_the_encoder_cannot_tell_apart_are_left_out(tmp_path):
    """Of other tokens than the response and each other."""
    groups = [
        make_group(0, ["S0 T2", "s7 t1", "\ufffd", "s7  t1", "s6 t0"]),
        make_group(1, ["s1 t2"]),
        make_group(2, candidates=["\ufffd", "s7 t1"], labels=[1, 0]),
        make_group(3, candidates=["<br>", "s7 t1"], labels=[1, 0]),
    ]
    manifest = prepare(tmp_path, *groups, strip_html=True)
    (record,) = read_records(tmp_path, manifest)
    assert parse_given(record)["token_ids"].to_list() == [turn_ids(7, 1), turn_ids(6, 0)]
    left_out = {name: count for name, count in manifest.dropped.items() if count}
    assert left_out == {
        "empty_negatives": 1, "repeated_negatives": 3, "empty_utterances": 1,
        "sessions_without_negative": 1, "sessions_without_response": 2,
    }  # fmt: skip


def test_the_fingerprint_of_a_corpus_is_of_its_candidates_too(tmp_path):
    found = []
    for place, negatives in enumerate([("s7 t1", "s8 t1"), ("s7 t1",)]):
        (tmp_path / str(place)).mkdir()
        found.append(prepare(tmp_path / str(place), make_group(0, negatives)).corpus_fingerprint)
    assert found[0] != found[1]


def make_question(number, article, answers="B", options=("f : no , tom .", "f : yes .")):
    """A line of MuTual."""
    question = {"id": f"q{number}", "article": article, "options": options, "answers": answers}
    return json.dumps(question)


BEGINNING = "m : hi , are you in ? f : i am ."
QUESTIONS = (make_question(1, BEGINNING), make_question(2, f"{BEGINNING} m : ok ; fine . f : bye"))
OF_ONE_TURN = make_question(3, BEGINNING[: BEGINNING.index(" f :")])


def test_a_question_of_mutual_is_a_group_of_its_dialogue(tmp_path):
    path = write_lines(tmp_path / "mutual.jsonl", *QUESTIONS, OF_ONE_TURN)
    (first, second, short), _ = read(path, "mutual")
    assert first.context == (Utterance("m", "hi , are you in ?"), Utterance("f", "i am ."))
    assert (first.id, first.candidates, first.labels) == ("q1", ("no , tom .", "yes ."), (0, 1))
    assert first.responder == "f"
    assert [turn.text for turn in second.context[2:]] == ["ok ; fine .", "bye"]
    assert first.dialogue == second.dialogue == short.dialogue
    # The shorter dialogue is the beginning of the longer one.
    sessions = list(FORMATS["mutual"].read(tmp_path / "mutual.jsonl", BadLines(0)))
    assert sessions == [("mutual.jsonl-2", [*second.context])]
    (given, *_), _ = read_given(tmp_path / "mutual.jsonl", "mutual_candidates")
    assert given == ("q1", first.window, GivenCandidates(first.dialogue, ("no , tom .",)))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"article": "hello m : hi"}, 'begin with "m : " or "f : ", found .hello'),
        ({"article": ""}, "begin with"),
        ({"answers": "C"}, "\"answers\" to be one of AB, .*; found 'C' and \\[1, 1\\] turns"),
        ({"answers": ""}, '"answers" to be one of AB'),
        ({"options": ["f : no", "f : a m : b"]}, "a turn an option"),
        ({"options": ["f : no", 3]}, "found 3"),
        ({"options": ["f : no", "f :  "]}, "the response is empty"),
    ],
)
def test_a_line_that_is_no_question_of_mutual_is_named(tmp_path, changes, problem):
    broken = json.dumps({**json.loads(QUESTIONS[0]), **changes})
    path = write_lines(tmp_path / "mutual.jsonl", QUESTIONS[1], broken)
    with pytest.raises(InputError, match=rf"mutual.jsonl:2: .*{problem}"):
        read(path, "mutual")
