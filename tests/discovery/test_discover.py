"""`dcse discover` on dialogues about four things, by vectors of words."""

import json
import os
import shutil
import types

import numpy as np
import pytest
from written_dialogues import write_lines

import dcse_tf
from dcse_tf.cli.commands import main
from dcse_tf.discovery.cluster_report import _find_words, choose_typical
from dcse_tf.discovery.clusters import Label, _compare, follow
from dcse_tf.discovery.discover import _embed_around, _Turns
from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import read_retrieval_set

# Requests about a thing are the vector of its own word and a little of the others'.
THINGS = {"parcel": "It is on its way", "refund": "We pay it back", "invoice": "It is in your mail"}
VERBS = ["want", "need", "seek", "miss", "lost", "like", "have", "found", "await", "expect"]


def make_dialogues(counts, things=THINGS, name="d"):
    """`counts[thing]` dialogues about each thing: the request is the customer's second turn."""
    dialogues = []
    for thing, count in counts.items():
        for number in range(count):
            verb = VERBS[number % len(VERBS)]
            turns = [
                ("customer", "hello there"),
                ("agent", "Good morning"),
                ("customer", f"I {verb} my {thing}"),
                ("agent", things[thing]),
                ("customer", f"I {verb} my thanks"),
            ]
            said = [{"role": role, "text": text} for role, text in turns]
            dialogues.append({"session_id": f"{name} {thing}-{number}", "turns": said})
    return dialogues


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    words = [*THINGS, "thanks", "tea", "i", "my", "hello", "there", "it", "is", *VERBS]
    vectors = np.eye(len(words))
    vectors[words.index("i") :] *= 0.3
    content = dict(zip(words, vectors.tolist(), strict=True))
    (folder / "words.json").write_text(json.dumps(content))
    flags = ("--kind=word_vectors", f"--word_vectors={folder}/words.json")
    main(["fit_baseline", *flags, f"--output_dir={folder}/model"])
    return folder / "model"


def discover(model, folder, dialogues, *flags, output="report"):
    path = write_lines(folder / "in.jsonl", *map(json.dumps, dialogues))
    given = (f"--model={os.path.relpath(model)}", "--format=jsonl", f"--input={path}")
    main(["discover", *given, f"--output_dir={folder}/{output}", "--min_words=4", *flags])
    report = folder / output
    records = [json.loads(line) for line in (report / "clusters.jsonl").read_text().splitlines()]
    return report, {record["name"].split(",")[0]: record for record in records}


COUNTS = {"refund": 30, "parcel": 25, "invoice": 20}


@pytest.fixture(scope="module")
def report(model, tmp_path_factory):
    # Ten wordings of each request; one is spelt otherwise once, as is a role.
    dialogues = make_dialogues(COUNTS)
    dialogues[0]["turns"][2]["text"] = "I  WANT my refund"
    dialogues[1]["turns"][2]["role"] = "Customer"
    short = make_dialogues({"refund": 1}, name="short")[0]
    dialogues.append(short | {"turns": short["turns"][:2]})
    return discover(model, tmp_path_factory.mktemp("discover"), dialogues)


def test_requests_are_counted_and_answered(report):
    folder, found = report
    assert [(name, found[name]["turns"]) for name in found] == list(COUNTS.items())
    assert [record["id"] for record in found.values()] == [1, 2, 3]  # the largest first
    for thing, record in found.items():
        assert record["texts"] == len(VERBS)
        assert record["sessions"] == COUNTS[thing]
        assert record["answers"] == [{"text": THINGS[thing], "turns": COUNTS[thing]}]
        assert all(thing in each["text"] for each in record["typical"])
        assert record["sharpness"] > 0.5
    summary = json.loads((folder / "report.json").read_text())
    assert (summary["role"], summary["turns"], summary["clusters"]) == ("customer", 75, 3)
    assert summary["left_out"]["sessions_without_such_a_turn"] == 1


def test_every_turn_has_a_line_and_every_cluster_a_section_and_an_intent(report):
    folder, found = report
    header, *rows = [line.split("\t") for line in (folder / "turns.tsv").read_text().splitlines()]
    assert header == ["session", "turn", "cluster", "similarity", "text"]
    assert len(rows) == 75
    assert {row[1] for row in rows} == {"2"}
    assert all(row[2] == str(found[row[4].split()[-1]]["id"]) for row in rows)
    page = (folder / "report.html").read_text()
    assert page.count("<section") == page.count("<circle") == 3
    assert all(f'href="#c{record["id"]}"' in page for record in found.values())
    made = read_retrieval_set(folder / "retrieval.txt")
    assert len(made.sentences) == 3 * len(VERBS)
    names = {intent.split(",")[0] for intent in made.intents}
    assert names == {"1 refund", "2 parcel", "3 invoice"}


def test_new_texts_are_labelled_or_not(report, model, monkeypatch):
    monkeypatch.setattr("dcse_tf.discovery.clusters._ROWS", 2)
    monkeypatch.chdir(report[0])  # the report was made elsewhere, by a relative path
    clusters = dcse_tf.Clusters.load(report[0])
    texts = ["i expect my parcel", "i want my tea", "i seek my refund"]
    with pytest.raises(TypeError, match="texts: expected a list of strings, found str"):
        clusters.predict(texts[0])
    labels = clusters.predict(texts)
    assert [label.cluster for label in labels] == [2, None, 1]
    assert labels[0].name.startswith("parcel")
    rows = dcse_tf.SentenceEncoder.load(model).encode(texts, normalize_embeddings=True)
    nearest = (rows @ np.load(report[0] / "centres.npy").T).max(axis=1)
    np.testing.assert_allclose([label.similarity for label in labels], nearest, atol=1e-6)
    with pytest.raises(TypeError, match=r"SentenceEncoder\.load takes the name"):
        dcse_tf.Clusters.load(report[0], str(model))


def test_the_same_input_gives_the_same_bytes(report, model, tmp_path):
    dialogues = make_dialogues(COUNTS)
    first, second = (discover(model, tmp_path, dialogues, output=name)[0] for name in "ab")
    for name in ("clusters.jsonl", "turns.tsv", "report.html", "centres.npy", "retrieval.txt"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_all_turns(model, tmp_path):
    _, found = discover(model, tmp_path, make_dialogues(COUNTS), "--turns=all", "--clusters=4")
    assert {name: record["turns"] for name, record in found.items()} == COUNTS | {"thanks": 75}
    assert found["thanks"]["answers"] == []
    flags = ("--turns=all", "--clusters=3")  # one of two things is less sharp
    folder, found = discover(model, tmp_path, make_dialogues(COUNTS), *flags, output="fewer")
    summary = json.loads((folder / "report.json").read_text())
    by_turns = sum(x["sharpness"] * x["turns"] for x in found.values()) / 150
    assert summary["sharpness"] == pytest.approx(by_turns, abs=0.001)


def test_the_turns_around_tell_what_is_meant(model, tmp_path):
    """The requests differ in unknown words alone; the answers are about three things."""
    dialogues = make_dialogues(COUNTS, {thing: f"the {thing}" for thing in THINGS})
    for number, dialogue in enumerate(dialogues):
        dialogue["turns"][2]["text"] = f"I want my {dialogue['turns'][3]['text'][-2:]}{number}"
    _, found = discover(model, tmp_path, dialogues, "--context_share=1", "--clusters=3")
    assert sorted(record["turns"] for record in found.values()) == [20, 25, 30]
    assert all(len(record["answers"]) == 1 for record in found.values())


def test_clusters_keep_their_numbers(report, model, tmp_path):
    """The refund of "tea" and the invoices come and go; parcels are twice as frequent."""
    things = THINGS | {"tea": "A cup of it"}
    dialogues = make_dialogues({"parcel": 60, "refund": 20, "tea": 20}, things)
    flags = (f"--previous={report[0]}", "--clusters=3")
    folder, found = discover(model, tmp_path, dialogues, *flags)
    assert (found["parcel"]["id"], found["parcel"]["change"]) == (2, "grown")
    assert found["parcel"]["share_before"] == pytest.approx(33.33)
    assert (found["refund"]["id"], found["refund"]["change"]) == (1, "shrunk")
    assert (found["tea"]["id"], found["tea"]["change"]) == (4, "new")
    gone = json.loads((folder / "report.json").read_text())["gone"]
    assert [each["id"] for each in gone] == [3]
    assert "Gone since" in (folder / "report.html").read_text()

    # Merged, and split again. Numbers of clusters that have gone are not used again.
    same, flags = make_dialogues(COUNTS), (f"--previous={report[0]}", "--clusters=1")
    _, merged = discover(model, tmp_path, same, *flags, output="merged")
    (one,) = merged.values()
    assert (one["id"], one["change"], one["from"]) == (1, "merged", [1, 2, 3])
    flags = (f"--previous={tmp_path}/merged", "--clusters=3")
    _, split = discover(model, tmp_path, same, *flags, output="split")
    assert {r["change"] for r in split.values()} == {"shrunk", "split"}
    assert sorted(r["id"] for r in split.values()) == [1, 4, 5]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--role=nobody"], r"--role='?nobody'?: expected one of 'customer', 'agent'"),
        (["--clusters=31"], r"--clusters=31: there are only 30 distinct texts"),
        (["--min_words=9"], r"--min_words=9: each of the 225 turns of 'customer' has fewer"),
        (["--previous=."], r"report.json"),
        (["--min_turns=9"], r"no session of at least 9 turns"),
    ],
)
def test_what_cannot_be_used_is_named(model, tmp_path, flags, message):
    with pytest.raises(SystemExit, match=message):
        discover(model, tmp_path, make_dialogues(COUNTS), *flags)
    assert not (tmp_path / "report").exists()


def test_a_report_of_another_encoder_or_of_other_turns_is_refused(report, model, tmp_path):
    words = json.loads((model.parent / "words.json").read_text())
    (tmp_path / "words.json").write_text(json.dumps(words | {"tea": words["parcel"]}))
    flags = ("--kind=word_vectors", f"--word_vectors={tmp_path}/words.json")
    main(["fit_baseline", *flags, f"--output_dir={tmp_path}/other"])
    with pytest.raises(SystemExit, match=r"was made with another encoder"):
        discover(tmp_path / "other", tmp_path, make_dialogues(COUNTS), f"--previous={report[0]}")
    flags = (f"--previous={report[0]}", "--turns=all", "--role=user")
    with pytest.raises(SystemExit, match=r"other turns: --turns: all \(was first\); --role: user"):
        discover(model, tmp_path, make_dialogues(COUNTS), *flags)


@pytest.mark.parametrize("name", ["centres.npy", "clusters.jsonl", "report.json"])
def test_a_broken_report_is_named(report, tmp_path, name):
    shutil.copytree(report[0], tmp_path / "report")
    for content in ("{", "{}"):  # no JSON; one cluster for three centres
        (tmp_path / "report" / name).write_text(content)
        with pytest.raises(InputError, match="report"):
            dcse_tf.Clusters.load(tmp_path / "report")


def test_roles_of_each_session_alone(model, tmp_path):
    dialogues = make_dialogues(COUNTS)
    for number, dialogue in enumerate(dialogues):
        for turn in dialogue["turns"]:
            turn["role"] += str(number)
    folder, found = discover(model, tmp_path, dialogues)
    assert {name: record["turns"] for name, record in found.items()} == COUNTS
    assert "What the first speaker said" in (folder / "report.html").read_text()


def test_typical_sentences_tell_several_things():
    """However similar all are; zeros tell one thing. Words need a letter, long ones tell more where
    there is nothing to compare with, and those of many clusters tell least.
    """
    rows = np.array([[1, 0], [1, -0.3], [1, 0.3], [1, 0.31]], np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = choose_typical("abcd", np.array([5, 1, 2, 1]), rows, 2)
    assert found == [{"text": "a", "turns": 5}, {"text": "c", "turns": 2}]
    assert len(choose_typical("abcd", np.ones(4), rows * 0, 2)) == 1
    assert _find_words([["， is refund", "is refund ， 7"]], str.split) == [["refund", "is"]]
    spread = [["a"] * 9 + ["a tea"], ["a x"] + ["x"] * 9, ["a y"] + ["y"] * 9]
    assert _find_words(spread, str.split)[0] == ["tea", "a"]


@pytest.mark.parametrize("count", [1, 2])
def test_one_session_and_equal_texts(model, tmp_path, count):
    dialogues = [make_dialogues({"parcel": 1}, name=f"d{n}")[0] for n in range(count)]
    folder, found = discover(model, tmp_path, dialogues)
    assert [record["turns"] for record in found.values()] == [count]
    assert not (folder / "retrieval.txt").exists()


def test_from_python(model, tmp_path):
    path = write_lines(tmp_path / "in.jsonl", *map(json.dumps, make_dialogues(COUNTS)))
    files = {"input": path, "output_dir": tmp_path / "report"}
    table = dcse_tf.discover(model=model, format="jsonl", min_words=4, **files)
    records = table if isinstance(table, list) else table.to_dict("records")
    assert [record["turns"] for record in records] == [30, 25, 20]


def test_the_more_clusters_are_compared_the_clearer_a_change_has_to_be():
    """45 and 30 of 100 differ with a p-value of 0.04 or so."""
    assert _compare((45, 100), (30, 100), 1) == "grown"
    assert _compare((30, 100), (45, 100), 1) == "shrunk"
    assert _compare((45, 100), (30, 100), 10) == "same"


def test_a_cluster_whose_turns_are_in_several_is_gone():
    """Of the second, one turn is in each of today's clusters."""
    records = [
        {"id": n, "name": f"c{n}", "share": 50.0, "turns": 10, "of_turns": 20} for n in (1, 2)
    ]
    labels = [Label(cluster, "", 1.0) for cluster in (1, 2, 2, None)]
    previous = types.SimpleNamespace(records=records, next_id=3, label=lambda _: labels)
    found = follow(previous, np.zeros((4, 2)), np.array([10, 1, 1, 10]), np.array([0, 0, 1, 1]))
    assert found.ids == [1, 3]
    assert found.gone == [{"id": 2, "name": "c2", "turns": 2}]


def test_the_turns_around_are_of_the_same_dialogue():
    turns = _Turns(
        sessions=np.array([0, 0, 1, 1]), roles=np.zeros(4, int), texts=np.arange(4),
        session_ids=["x", "y"], role_names=["a"], distinct=[*"abcd"], left_out={},
    )  # fmt: skip
    rows = dict(zip("abcd", np.eye(4), strict=True))
    encoder = types.SimpleNamespace(
        dim=4, encode_blocks=lambda texts, _: iter([np.array([rows[text] for text in texts])])
    )
    found = _embed_around(encoder, turns, np.array([1, 2]), np.array([0, 1]))
    np.testing.assert_array_equal(found, [rows["a"], rows["d"]])
