"""Corpora whose sessions give candidates for their last turn: from files of groups to records."""

import json

import pytest
import tensorflow as tf
from dialogue_files import DIALOGUES, run, tsv
from lettered_corpus import turn_ids

from dcse_tf.data.dialogue import GivenCandidates, Utterance
from dcse_tf.data.formats import FORMATS
from dcse_tf.data.manifest import Given, read_manifest
from dcse_tf.data.records import (
    check_records,
    count_records,
    parse_given,
    parse_session,
    parse_session_ids,
    shard_paths,
)
from dcse_tf.errors import InputError
from dcse_tf.evaluation.response_selection import read_sessions
from dcse_tf.input_files import BadLines


def make_group(number=0, negatives=("s7 t1", "s8 t1 w2"), scores=None, context=2, **more):
    """Turn t of session n says "sn tn"; the true response is the turn after the context."""
    texts = [f"s{number} t{context}", *negatives]
    group = {
        "id": f"{number}:{context}",
        "dialogue": str(number),
        "context": [{"role": "xy"[t % 2], "text": f"s{number} t{t}"} for t in range(context)],
        "responder": "xy"[context % 2],
        "candidates": texts,
        "labels": [1, *[0] * len(negatives)],
    }
    return {**group, **({} if scores is None else {"scores": scores}), **more}


def lines(*groups):
    return "".join(json.dumps(group) + "\n" for group in groups)


def prepare(folder, *groups, format="candidates", **settings):
    return run(folder, lines(*groups), name="groups.jsonl", format=format, **settings)


def read_records(folder, manifest, split="train"):
    return list(tf.data.TFRecordDataset(list(shard_paths(folder, manifest.splits[split]))))


def read(path, format="candidates", limit=0):
    bad_lines = BadLines(limit)
    return list(FORMATS[format].read(path, bad_lines)), bad_lines.count


def test_a_record_has_the_negatives_of_its_last_turn(tmp_path):
    group = make_group(scores=[2, -1.5, 0.25])
    manifest = prepare(tmp_path, group, max_sequence_length=4)
    (record,) = read_records(tmp_path / "data", manifest)
    session, given = parse_session(record), parse_given(record)
    assert session["token_ids"].to_list() == [turn_ids(0, turn) for turn in range(3)]
    # [CLS], two words and [SEP]; the third word is cut, as a turn's would be.
    assert given["token_ids"].to_list() == [turn_ids(7, 1), turn_ids(8, 1)]
    assert given["scores"].numpy().tolist() == [2.0, -1.5, 0.25]
    ids, turns = parse_session_ids(tf.stack([record]))
    assert (ids.numpy().tolist(), turns.numpy().tolist()) == ([b"0:2"], [3])
    assert manifest.splits["train"].given == Given(negatives=2, most=2, scored=1)
    assert manifest.splits["train"].utterances == 3
    assert read_manifest(tmp_path / "data").splits == manifest.splits
    check_records(tmp_path / "data", manifest)


def test_equal_texts_have_equal_fingerprints_wherever_they_stand(tmp_path):
    groups = [make_group(0, ["s1 t2", "s5 t0"]), make_group(1, ["s0 t2", "s5 t0"])]
    manifest = prepare(tmp_path, *groups, shards=1)
    records = read_records(tmp_path / "data", manifest)
    said = [parse_session(record)["utterances"].numpy()[-1] for record in records]
    first, second = (parse_given(record)["utterances"].numpy() for record in records)
    assert (first[0], second[0]) == (said[1], said[0])
    assert first[1] == second[1] not in said


def test_groups_of_one_dialogue_are_one_session_to_the_draws(tmp_path):
    """They are no negatives of each other."""
    groups = [make_group(0, context=1), make_group(0, context=2), make_group(1)]
    manifest = prepare(tmp_path, *groups, shards=1)
    sessions = [int(parse_session(r)["session"]) for r in read_records(tmp_path / "data", manifest)]
    assert sessions[0] == sessions[1] != sessions[2]


def test_groups_of_one_dialogue_go_to_one_split_which_is_that_of_the_dialogue(tmp_path):
    fractions = {"dev_fraction": 0.3, "test_fraction": 0.2}
    for name in ("groups", "dialogues"):
        (tmp_path / name).mkdir()
    groups = [make_group(n, context=context) for n in range(50) for context in (1, 2)]
    prepare(tmp_path / "groups", *groups, **fractions)
    dialogues = {str(number): DIALOGUES["a"] for number in range(50)}
    run(tmp_path / "dialogues", tsv(dialogues), **fractions)

    def held_out(name, split):
        path = tmp_path / name / f"data/{split}.jsonl"
        return [json.loads(line)["session_id"] for line in path.read_text().splitlines()]

    for split in ("dev", "test"):
        names = held_out("dialogues", split)
        assert held_out("groups", split) == [f"{n}:{turn}" for n in names for turn in (1, 2)]
        assert len(names) > 3


def test_copies_of_groups_stay_with_their_dialogues_and_are_warned_of(tmp_path, caplog):
    groups = [make_group(n, context=2) | {"dialogue": str(n)} for n in range(20)]
    for group in groups:
        group["context"][0]["text"] += " w0 w1 w2"
    copies = [{**group, "id": f"copy of {group['id']}", "dialogue": "one"} for group in groups]
    manifest = prepare(tmp_path, *groups, *copies, dev_fraction=0.3)
    names = {name for name, *_ in read_sessions(tmp_path / "data/dev.jsonl")}
    assert len(names & {group["id"] for group in groups}) > 2
    together = names & {copy["id"] for copy in copies}
    assert len(together) in (0, 20)
    apart = len(names - together) if not together else 20 - len(names - together)
    assert (manifest.found["copies"], manifest.found["held_out_copies"]) == (20, apart)
    assert f"{apart} of the {len(names)} sessions of dev and test have the texts" in caplog.text


def test_held_out_groups_name_their_dialogue(tmp_path):
    groups = [make_group(n, context=context) for n in range(9) for context in (1, 2)]
    del groups[0]["dialogue"]
    prepare(tmp_path, *groups, dev_fraction=0.5, shards=1)
    sessions = read_sessions(tmp_path / "data/dev.jsonl")
    assert len(sessions) > 5
    for name, _, dialogue in sessions:
        assert (dialogue or name) == (name if name == "0:1" else name[0])


def test_a_group_without_a_dialogue_is_one_of_its_own(tmp_path):
    path = tmp_path / "groups.jsonl"
    group = make_group()
    del group["dialogue"]
    path.write_text(lines(group))
    ((name, turns, given),), bad = read(path)
    assert (name, bad) == ("0:2", 0)
    assert turns == [Utterance("x", "s0 t0"), Utterance("y", "s0 t1"), Utterance("x", "s0 t2")]
    assert given == GivenCandidates("0:2", ("s7 t1", "s8 t1 w2"))


def test_the_true_response_is_last_wherever_it_stands_in_the_file(tmp_path):
    group = make_group(scores=[5, 6, 7], labels=[0, 0, 1])
    (tmp_path / "groups.jsonl").write_text(lines(group))
    ((_, turns, given),), _ = read(tmp_path / "groups.jsonl")
    assert turns[-1].text == "s8 t1 w2"
    assert given == GivenCandidates("0", ("s0 t2", "s7 t1"), (7.0, 5.0, 6.0))


def test_a_response_is_not_joined_to_a_turn_of_its_speaker(tmp_path):
    manifest = prepare(tmp_path, make_group(responder="y"))
    (record,) = read_records(tmp_path / "data", manifest)
    assert parse_session(record)["token_ids"].to_list()[1:] == [turn_ids(0, 1), turn_ids(0, 2)]


def test_negatives_that_the_encoder_cannot_tell_apart_are_left_out(tmp_path):
    """Of other tokens than the response and each other; their scores go with them."""
    negatives = ["S0 T2", "s7 t1", "\ufffd", "s7  t1", "s6 t0"]
    groups = [
        make_group(0, negatives, scores=[9, 1, 2, 3, 4, 5]),
        make_group(1, ["s1 t2"], scores=[1, 1]),
        make_group(2, candidates=["\ufffd", "s7 t1"], labels=[1, 0], scores=[1, 1]),
    ]
    manifest = prepare(tmp_path, *groups)
    (record,) = read_records(tmp_path / "data", manifest)
    given = parse_given(record)
    assert given["token_ids"].to_list() == [turn_ids(7, 1), turn_ids(6, 0)]
    assert given["scores"].numpy().tolist() == [9.0, 2.0, 5.0]
    assert manifest.dropped == {
        "short_sessions": 0, "empty_utterances": 0, "bad_lines": 0,
        "empty_negatives": 1, "repeated_negatives": 3,
        "sessions_without_negative": 1, "sessions_without_response": 1,
    }  # fmt: skip


def test_the_fingerprint_of_a_corpus_is_of_its_candidates_too(tmp_path):
    found = set()
    variants = [{}, {"negatives": ("s7 t1",)}, {"scores": [1, 2, 3]}, {"scores": [1, 2, 4]}]
    for place, values in enumerate(variants):
        folder = tmp_path / str(place)
        folder.mkdir()
        found.add(prepare(folder, make_group(**values)).corpus_fingerprint)
    assert len(found) == 4


def test_an_ordinary_corpus_says_nothing_of_candidates(tmp_path):
    manifest = run(tmp_path, tsv(DIALOGUES))
    assert "given" not in (tmp_path / "data/manifest.json").read_text()
    assert manifest.splits["train"].given is None
    for record in read_records(tmp_path / "data", manifest):
        assert b"given" not in record.numpy()
        assert [value.shape[0] for value in parse_given(record).values()] == [0, 0, 0]


def test_processes_do_not_change_what_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("dcse_tf.data.prepare._FEW_CHUNKS", 1)
    monkeypatch.setattr("dcse_tf.data.corpus._TURNS", 16)
    groups = [make_group(number, scores=[1, 2, 3]) for number in range(40)]
    manifests = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        manifests.append(prepare(folder, *groups, workers=workers))
    assert manifests[0].splits == manifests[1].splits
    assert manifests[0].corpus_fingerprint == manifests[1].corpus_fingerprint
    content = [(tmp_path / w / "data/train-00000-of-00008.tfrecord").read_bytes() for w in "12"]
    assert content[0] == content[1]


PROBLEMS = [
    ({"labels": [0, 0, 0]}, "expected a candidate with label 1, the true response"),
    ({"labels": [1, 1, 0]}, "expected one candidate with label 1, found 2"),
    ({"negatives": ()}, "expected a candidate with label 0 beside the true response"),
    ({"scores": [1, 2]}, "a number for each of 3 candidates, found 2 of them"),
    ({"scores": "high"}, "a number for each of 3 candidates, found 'high'"),
    ({"scores": [1, 2, float("nan")]}, '"scores" to be finite numbers, found nan'),
    ({"scores": [1, 2, 1e39]}, "to be finite numbers, found 1e\\+39"),
    ({"scores": [1, 2, True]}, "to be finite numbers, found True"),
    ({"scores": [1, 2, "3"]}, "to be finite numbers, found '3'"),
    ({"dialogue": 7}, 'expected "dialogue" to be a text'),
    ({"scores": [1, 2, 3]}, 'expected "scores" in all groups or in none; this one has them'),
    ({"id": "0:2"}, "the id '0:2' appears in the file for a second time"),
]


@pytest.mark.parametrize(("changes", "message"), PROBLEMS)
def test_what_is_no_group_is_named_with_file_and_line(tmp_path, changes, message):
    content = lines(make_group(0), make_group(1, **changes), make_group(2))
    (tmp_path / "groups.jsonl").write_text(content)
    with pytest.raises(InputError, match=rf"groups.jsonl:2: .*{message}"):
        read(tmp_path / "groups.jsonl")
    sessions, bad = read(tmp_path / "groups.jsonl", limit=1)
    assert ([name for name, *_ in sessions], bad) == (["0:2", "2:2"], 1)


def test_files_with_and_without_scores_do_not_go_together(tmp_path):
    (tmp_path / "more.jsonl").write_text(lines(make_group(1, scores=[1, 2, 3])))
    paths = (str(tmp_path / "groups.jsonl"), str(tmp_path / "more.jsonl"))
    with pytest.raises(InputError, match="1 of 2 groups have scores; expected all or none"):
        prepare(tmp_path, make_group(0), input=paths)


def test_a_record_with_a_score_too_few_is_found(tmp_path):
    manifest = prepare(tmp_path, make_group(scores=[1, 2, 3]), shards=1)
    (record,) = read_records(tmp_path / "data", manifest)
    example = tf.train.Example.FromString(record.numpy())
    del example.features.feature["given_scores"].float_list.value[0]
    path = str(tmp_path / "bad.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(example.SerializeToString())
    with pytest.raises(
        InputError, match="record 1: expected one fingerprint and score per candidate"
    ):
        count_records(path)


# Files with a candidate a line


def line(label, *texts):
    return "\t".join([str(label), *texts])


HELLO, WHERE, TODAY, THANKS = "您 好 在 吗", "亲 在 的 请 说", "快递 今天 到 吗", "今天 就 到 的"
LABELLED = [
    line(1, HELLO, WHERE),
    line(0, HELLO, "没 货"),
    line(1, HELLO, WHERE, TODAY, THANKS),
    line(0, HELLO, WHERE, TODAY, "不 退"),
    line(0, HELLO, WHERE, TODAY, "有 的"),
    line(1, "有 大 码", "有 的"),
    line(0, "有 大 码", "没 有"),
    line(1, "有 大 码", "还 有"),
    line(0, "有 大 码", "不 退"),
]


@pytest.mark.parametrize("form", ["ecd_candidates", "ubuntu_candidates"])
def test_a_true_response_has_the_other_ones_that_follow_it(tmp_path, form):
    path = tmp_path / "train.txt"
    path.write_text("\n".join(LABELLED) + "\n")
    sessions, bad = read(path, form)
    assert bad == 0
    assert [name for name, *_ in sessions] == [f"train.txt-{line}" for line in (1, 3, 6, 8)]
    counts = [len(given.negatives) for *_, given in sessions]
    assert counts == [1, 2, 1, 1]
    # The first group is the beginning of the second one's dialogue.
    dialogues = [given.dialogue for *_, given in sessions]
    assert dialogues == [f"train.txt-{line}" for line in (3, 3, 6, 8)]
    speakers = {"ecd_candidates": ("customer", "agent"), "ubuntu_candidates": ("a", "b")}[form]
    assert [turn.role for turn in sessions[1][1]] == [*speakers, *speakers]
    if form == "ecd_candidates":
        assert [turn.text for turn in sessions[0][1]] == ["您好在吗", "亲在的请说"]
        assert sessions[1][2].negatives == ("不退", "有的")
    plain, _ = read(path, form.removesuffix("_candidates"))
    assert {name for name, _ in plain} == set(dialogues)


@pytest.mark.parametrize(
    ("content", "number", "message"),
    [
        ([line(0, "a", "b"), line(1, "a", "c"), line(0, "a", "d")], 1, "with label 1"),
        ([line(1, "a", "b"), line(1, "c", "d"), line(0, "c", "e")], 1, "with label 0"),
        ([line(1, "a", "b"), line(0, "a", "d"), line(0, "c", "e")], 3, "with label 1"),
        ([line(1, "a", "b"), line(0, "a", ""), line(0, "a", "c")], 2, "the response is empty"),
        ([line(2, "a", "b"), line(1, "a", "b"), line(0, "a", "c")], 1, "expected 0 or 1"),
    ],
)
def test_lines_that_make_no_group_are_named(tmp_path, content, number, message):
    path = tmp_path / "train.txt"
    path.write_text("\n".join([*content, line(1, "x", "y"), line(0, "x", "z")]) + "\n")
    with pytest.raises(InputError, match=rf"train.txt:{number}: .*{message}.*bad line 1;"):
        read(path, "ecd_candidates")
    sessions, bad = read(path, "ecd_candidates", limit=1)
    assert (sessions[-1][0], bad) == ("train.txt-4", 1)
