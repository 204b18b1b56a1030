"""Retrieval sets built from labelled sentences: what is read, drawn, ranked, counted, refused."""

import collections
import csv
import itertools
import json

import numpy as np
import pytest
from rank_bm25 import BM25Okapi

from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.sets.retrieval_set import (
    BuildRetrievalOptions,
    build_retrieval,
    build_retrieval_set,
    sample_balanced,
)


def draw_labelled(seed, sizes=(30, 25, 20, 4, 1)):
    """Different sentences; a label's words are drawn more often, and scores tie."""
    rng = np.random.default_rng(seed)
    labelled = []
    for label, size in enumerate(sizes):
        for number in range(size):
            words = [f"w{rng.integers(4) + 3 * label * (rng.random() < 0.5)}" for _ in range(4)]
            # The last word makes sentences differ, and stands in no other.
            text = " ".join([*words[: rng.integers(1, 5)], f"{label}-{number}"])
            labelled.append((text, f"label {label}"))
    return [labelled[place] for place in rng.permutation(len(labelled))]


@pytest.mark.parametrize(("candidates", "max_positives"), [(100, 30), (20, 5), (2, 30)])
@pytest.mark.parametrize("seed", range(3))
def test_candidates_are_those_of_the_definition(seed, candidates, max_positives):
    """Section 5.1.2, in loops: of BM25's first others those with the label, and those without."""
    labelled = draw_labelled(seed)
    words = [text.split() for text, _ in labelled]
    library, expected, lacking = BM25Okapi(words), {}, collections.Counter()
    for query, (_, label) in enumerate(labelled):
        scores = library.get_scores(words[query])
        others = [place for place in range(len(labelled)) if place != query]
        others = sorted(others, key=lambda place: (-scores[place], place))[:candidates]
        positives = [place for place in others if labelled[place][1] == label][:max_positives]
        negatives = [place for place in others if labelled[place][1] != label]
        if positives and negatives:
            expected[query] = (positives, negatives)
        lacking["without_positives"] += not positives
        lacking["without_negatives"] += bool(positives) and not negatives
    found, dropped = build_retrieval_set(labelled, str.split, candidates, max_positives)
    assert {q.sentence: (q.positives.tolist(), q.negatives.tolist()) for q in found.queries} == (
        expected
    )
    assert dropped == lacking
    assert dropped["without_positives"] > 0  # a label has one sentence
    assert list(zip(found.sentences, found.intents, strict=True)) == labelled


def make_pairs(*sizes):
    return [(f"{label} {n}", str(label)) for label, size in enumerate(sizes) for n in range(size)]


@pytest.mark.parametrize(
    ("sizes", "total"),
    [((50, 50, 50), 31), ((50,) * 10, 11), ((2, 3, 60, 70), 46), ((4,) * 4, 3), ((7, 8), 100)],
)
def test_labels_are_as_even_as_can_be(sizes, total):
    draws = [sample_balanced(make_pairs(*sizes), total, seed)[0] for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert (set(draws[0]) == set(draws[2])) == (total > sum(sizes))  # else others are drawn
    for drawn in draws:
        counts = collections.Counter(label for _, label in drawn)
        assert len(set(drawn)) == len(drawn) == min(total, sum(sizes))
        # A label that has more sentences to give is at most one short of every other.
        largest = max(counts.values())
        for label, size in enumerate(sizes):
            assert counts[str(label)] == size or counts[str(label)] >= largest - 1


def test_the_order_of_the_input_does_not_order_the_labels():
    """Else ties of BM25, which go by place, would prefer some labels."""
    drawn, _ = sample_balanced(make_pairs(100, 100), 0, 0)
    labels = [label for _, label in drawn]
    assert 0.25 < labels[:100].count("0") / 100 < 0.75
    assert sum(a != b for a, b in itertools.pairwise(labels)) > 50


def test_repeated_doubtful_and_rare_texts_are_left_out_and_counted():
    labelled = [("a", "x"), ("b", "x"), ("c", "x"), ("A", "x"), ("d", "y"), ("e", "y")]
    labelled += [("f", "y"), ("f", "z"), ("g", "z")]
    # Repeats and texts under two labels count for none: 3, 2 and 1 are left.
    drawn, left_out = sample_balanced(labelled, 0, 0, min_label_sentences=3)
    assert sorted(drawn) == [("a", "x"), ("b", "x"), ("c", "x")]
    assert left_out == {"repeated": 2, "under_two_labels": 1, "of_small_labels": 3, "not_drawn": 0}
    drawn, left_out = sample_balanced(labelled, 3, 0, min_label_sentences=2)
    assert sorted({label for _, label in drawn}) == ["x", "y"]
    assert left_out == {"repeated": 2, "under_two_labels": 1, "of_small_labels": 1, "not_drawn": 2}


# The job


def write_table(folder, rows, delimiter=","):
    path = folder / "table.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return str(path)


def build(tmp_path, path, **settings):
    output = tmp_path / "select.txt"
    built = build_retrieval(BuildRetrievalOptions(input=(path,), output=str(output), **settings))
    return read_retrieval_set(output), built


def test_a_table_is_built_and_everything_left_out_is_counted(tmp_path):
    asked = {"parcel": "where is my {} 快递", "refund": "I want a {} 退款", "hello": "good {} day"}
    rows = [(text.format(n), label) for label, text in asked.items() for n in range(12)]
    odd = [("yes", "hello"), ("what is that", ""), ("GOOD 0 day", "hello"), (" ", "hello")]
    odd += [("a blue one", "parcel"), ("A blue one", "refund"), ("the only one", "other")]
    odd += [("one", "two", "three")]
    path = write_table(tmp_path, [("text", "intent"), *rows, *odd], "\t")
    found, built = build(tmp_path, path, format="tsv", min_words=2, max_bad_lines=1)
    texts = set(zip(found.sentences, found.intents, strict=True))
    assert texts == {*rows, ("the only one", "other")}
    # Every other sentence is a candidate: 11 of the label, 25 of others.
    assert built == (
        "37 sentences of 4 labels, 36 queries with 11.0 positives and 25.0 negatives on average\n"
        "left out: 1 empty_utterances, 1 short, 1 bad_lines, 1 without_label, "
        "0 with_several_labels, 2 repeated, 1 under_two_labels, 0 of_small_labels, 0 not_drawn, "
        "1 without_positives, 0 without_negatives"
    )
    with pytest.raises(FileExistsError, match="`overwrite`"):
        build(tmp_path, path, format="tsv")
    again, _ = build(tmp_path, path, format="tsv", overwrite=True, sentences=9, max_bad_lines=1)
    assert len(again.sentences) == 9


def test_turns_of_dialogues_are_labelled_by_intent_or_act(tmp_path):
    turns = [
        {"role": "user", "text": f"hello <b>{number}</b>", "intents": ["greet"], "acts": acts}
        for number, acts in enumerate([["B:x", "A"], ["A", "B:x"], ["A"], ["A"]])
    ]
    turns[3]["intents"] = ["greet", "bye"]
    turns += [{"role": "agent", "text": f"bye {n}", "intents": ["bye"]} for n in range(2)]
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"session_id": "s", "turns": turns}) + "\n")
    settings = {"format": "jsonl", "join_consecutive": False, "strip_html": True}
    found, built = build(tmp_path, str(path), **settings)
    assert dict(zip(found.sentences, found.intents, strict=True)) == {
        **{f"hello {n}": "greet" for n in range(3)},
        **{f"bye {n}": "bye" for n in range(2)},
    }
    assert "1 with_several_labels" in built
    found, _ = build(tmp_path, str(path), **settings, labels="act", roles=("user",), overwrite=True)
    acts = ["user A B:x", "user A B:x", "user A", "user A"]
    assert dict(zip(found.sentences, found.intents, strict=True)) == {
        f"hello {n}": act for n, act in enumerate(acts)
    }


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([("text", "class")], {}, r"table\.csv:1: no column 'intent' \(`columns`\)"),
        ([("text", "intent"), ("a", "x"), ("b", "")], {}, "none of 1 sentences has both"),
        ([("text", "intent"), ("a", "x"), ("a", "y")], {}, "1 with several"),
        ([("text", "intent"), ("?", "x"), ("!", "y")], {"min_words": 1}, "`min_label_sentences`"),
        ([("text", "intent"), ("a", "x")], {"min_label_sentences": 2}, "`min_label_sentences`=2"),
    ],
)
def test_an_input_without_a_query_is_refused_and_leaves_nothing(tmp_path, rows, settings, message):
    path = write_table(tmp_path, rows)
    with pytest.raises(InputError, match=message):
        build(tmp_path, path, **settings)
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.csv"]
    with pytest.raises(OSError, match=r"table\.csv"):  # before the input is read
        build(tmp_path / "table.csv", path, **settings)
