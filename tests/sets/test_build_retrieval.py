import collections
import csv
import os
import pathlib
import subprocess
import sys

import pytest

from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.sets.options import BuildRetrievalOptions
from dcse_tf.sets.retrieval_set import build_retrieval

ROOT = pathlib.Path(__file__).parents[2]
ASKED = {
    "parcel": [
        "Where is my parcel",
        "我的快递到哪了",
        "Has my {} parcel left",
        "Parcel {}, please",
    ],
    "refund": ["I want a refund", "我要退款", "A refund for the {} one", "Pay back the {} parcel"],
    "hello": ["Hello there", "您好", "Good morning, {}", "A fine day for {}"],
}


def make_rows(each):
    """So many different sentences of every intent, one intent after the other."""
    return [
        (sentences[number % 4].format("blue") + f", case {number}", intent)
        for intent, sentences in ASKED.items()
        for number in range(each)
    ]


def write_table(folder, rows, name="table.csv"):
    path = folder / name
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "intent"), *rows])
    return path


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path, make_rows(12))


def build(table, name="select.txt", **settings):
    output = table.parent / name
    config = BuildRetrievalOptions(input=(str(table),), output=str(output), **settings)
    return output, build_retrieval(config)


def test_the_file_holds_the_sentences_of_the_table_with_their_intents(table):
    output, built = build(table)
    found = read_retrieval_set(output)
    assert sorted(zip(found.sentences, found.intents)) == sorted(make_rows(12))
    assert (built.sentences, built.labels, built.queries) == (36, 3, 36)
    # Every other sentence is a candidate: 11 of the intent, 24 of others.
    assert (built.positives, built.negatives) == (11, 24)
    assert {(len(q.positives), len(q.negatives)) for q in found.queries} == {(11, 24)}
    assert set(built.left_out.values()) == {0}


@pytest.mark.parametrize(
    ("settings", "positives", "negatives"),
    [
        ({"selection": "hard"}, 30, 40),
        ({"selection": "hard", "max_positives": 3, "max_negatives": 90}, 3, 70),
        ({"candidates": 104}, 30, 70),
        ({"candidates": 104, "max_positives": 99, "max_negatives": 10}, 34, 10),
    ],
)
def test_the_settings_of_the_selection_are_used(tmp_path, settings, positives, negatives):
    output, built = build(write_table(tmp_path, make_rows(35)), **settings)
    assert (built.queries, built.positives, built.negatives) == (105, positives, negatives)
    queries = read_retrieval_set(output).queries
    assert {(len(q.positives), len(q.negatives)) for q in queries} == {(positives, negatives)}


def test_the_means_are_over_the_queries(tmp_path):
    rows = [("x a", "1"), ("x b", "1"), ("x c", "1"), ("x d", "2"), ("x e", "2"), ("x f", "3")]
    _, built = build(write_table(tmp_path, rows))
    # Three queries with 2 positives and 3 negatives, two with 1 and 4; the last has no positive.
    assert (built.queries, built.positives, built.negatives) == (5, 8 / 5, 17 / 5)
    assert built.left_out["without_positives"] == 1


def test_sentences_are_drawn_evenly(table):
    output, built = build(table, sentences=9)
    found = read_retrieval_set(output)
    assert collections.Counter(found.intents) == dict.fromkeys(ASKED, 3)
    assert built.sentences == 9
    assert built.left_out["not_drawn"] == 27


def test_everything_that_is_left_out_is_counted(tmp_path):
    rows = [
        *make_rows(4),
        ("yes", "hello"),  # short
        ("what is that", ""),
        ("Hello there, CASE 0", "hello"),  # repeated
        ("a blue one", "parcel"),
        ("A blue one", "refund"),  # again, and under two intents
        ("the only one", "other"),  # no positives
        ("one", "two", "three"),  # a bad line
    ]
    _, built = build(write_table(tmp_path, rows), min_words=2, max_bad_lines=1)
    assert built.left_out == {
        "empty_utterances": 0,
        "short": 1,
        "bad_lines": 1,
        "without_label": 1,
        "with_several_labels": 0,
        "repeated": 2,
        "under_two_labels": 1,
        "of_small_labels": 0,
        "not_drawn": 0,
        "without_positives": 1,
        "without_negatives": 0,
    }
    assert (built.sentences, built.labels, built.queries) == (13, 4, 12)


def test_where_every_label_is_too_small_that_is_said(table):
    with pytest.raises(InputError, match="`min_label_sentences`=13: no label of the 36 labelled"):
        build(table, min_label_sentences=13)
    _, built = build(table, min_label_sentences=12)
    assert built.sentences == 36


def test_where_every_sentence_has_two_labels_that_is_said(tmp_path):
    rows = [("where is it", "track"), ("Where is it", "place")]
    message = "each of 2 labelled sentences is also there with another label"
    with pytest.raises(InputError, match=message):
        build(write_table(tmp_path, rows))


def test_the_same_seed_writes_the_same_file_and_another_seed_another(table):
    first, again, other = (
        build(table, name, sentences=12, seed=seed)[0].read_bytes()
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert first == again
    assert first != other


def test_dialogues_with_intents_are_read(tmp_path):
    path = tmp_path / "dialogues.jsonl"
    turns = ", ".join(
        f'{{"role": "{role}", "text": "{text}", "intents": ["{intent}"]}}'
        for text, intent in make_rows(4)
        for role in (intent,)
    )
    path.write_text(f'{{"session_id": "a", "turns": [{turns}]}}\n', encoding="utf-8")
    settings = {"format": "jsonl", "join_consecutive": False, "roles": ("parcel", "hello")}
    output, built = build(path, **settings)
    assert (built.sentences, built.labels, built.queries) == (8, 2, 8)
    assert set(read_retrieval_set(output).intents) == {"parcel", "hello"}


def test_an_existing_output_is_refused_before_any_work(tmp_path):
    (tmp_path / "select.txt").write_text("old")
    nowhere = tmp_path / "nowhere.csv"
    with pytest.raises(FileExistsError, match=r"select\.txt already exists"):
        build(nowhere)
    # Only now is the input looked at.
    with pytest.raises(InputError, match=r"nowhere\.csv: no such file"):
        build(nowhere, overwrite=True)
    assert (tmp_path / "select.txt").read_text() == "old"


def test_an_existing_output_is_replaced_where_asked(table):
    (table.parent / "select.txt").write_text("old")
    output, _ = build(table, overwrite=True)
    assert len(read_retrieval_set(output).sentences) == 36


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("yes please", ""), ("no", " ")], r"`input`=.*table\.csv: no sentence with one label"),
        ([("yes please", "a"), ("no thanks", "a")], "none of 2 sentences has both"),
        ([("?", "a"), ("!", "b")], "no sentence with one label"),
    ],
)
def test_an_input_that_gives_no_query_is_refused_and_leaves_nothing(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        build(write_table(tmp_path, rows))
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_the_command_line(table):
    """Without TensorFlow: a stand-in ends the process where it is imported."""
    folder = table.parent
    (folder / "tensorflow.py").write_text("raise SystemExit('TensorFlow was started')\n")
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    output = folder / "select.txt"
    flags = [f"--input={table}", f"--output={output}", "--sentences=30", "--max_negatives=5"]
    command = [sys.executable, "-m", "dcse_tf.cli", "build_retrieval", *flags]

    def run(*more):
        return subprocess.run(
            [*command, *more], cwd=ROOT, env=environment, capture_output=True, text=True
        )

    done = run()
    assert done.returncode == 0, done.stderr
    # 10 sentences of each intent: 9 others of it, and 5 of the 20 of other intents.
    first, left_out, last = done.stdout.splitlines()
    assert first == (
        "30 sentences of 3 labels, 30 queries with 9.0 positives and 5.0 negatives on average"
    )
    assert left_out.startswith("left out: 0 ")
    assert "6 not_drawn" in left_out
    assert last == f"the set is in {output}"
    assert collections.Counter(read_retrieval_set(output).intents) == dict.fromkeys(ASKED, 10)
    again = run()
    assert again.returncode == 1
    assert again.stdout == ""
    expected = f"error: {output} already exists; give another file, or --overwrite"
    assert again.stderr.splitlines() == [expected]
