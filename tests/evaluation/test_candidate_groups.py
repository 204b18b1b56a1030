"""Scores of grouped candidates: by hand, by the reference, and by plain Python on a public file."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import reference
from shared_files import shared_file

from dcse_tf.cli import commands
from dcse_tf.data.dialogue import Utterance
from dcse_tf.data.formats.candidates import CandidateGroup
from dcse_tf.errors import InputError
from dcse_tf.evaluation import job
from dcse_tf.evaluation.candidate_groups import evaluate_groups, make_sample, read_candidate_set
from dcse_tf.evaluation.options import EvaluateOptions
from dcse_tf.evaluation.report import compare_results, format_table, make_result
from dcse_tf.evaluation.response_selection import Sample
from dcse_tf.options import OptionError


def make_group(labels, name="g", context=("hi", "lo")):
    turns = tuple(Utterance("ab"[place % 2], text) for place, text in enumerate(context))
    texts = tuple(f"{name} {place}" for place in range(len(labels)))
    return CandidateGroup(name, turns, texts, tuple(labels), "a")


def score_by(table):
    """A score that knows each candidate by its text."""
    return lambda samples: [np.array([table[text] for text in s.candidates]) for s in samples]


def evaluate(groups, table):
    return evaluate_groups([make_sample(group) for group in groups], score_by(table), "own")


def test_scores_by_hand():
    groups = [make_group([0, 0, 1], "x"), make_group([1, 0, 0], "y")]
    # The true response of x is third, that of y first; the first other one of x is above it.
    table = {"x 0": 3, "x 1": 2, "x 2": 1, "y 0": 5, "y 1": 4, "y 2": 0}
    scores = evaluate(groups, table).scores
    assert {name: scores[f"own_{name}"] for name in ("r1", "r2", "r1_of_2")} == {
        "r1": 50,
        "r2": 50,
        "r1_of_2": 50,
    }
    assert scores["own_mrr"] == scores["own_map"] == pytest.approx(100 * (1 / 3 + 1) / 2)
    assert "own_r5" not in scores
    assert (scores["chance_own_r1"], scores["chance_own_r2"]) == pytest.approx((100 / 3, 200 / 3))
    assert scores["chance_own_r1_of_2"] == 50
    assert (scores["groups"], scores["candidates"], scores["groups_of_3"]) == (2, 3, 2)


def test_of_two_the_other_is_the_first_in_the_file():
    group = make_group([0, 1, 0])
    assert evaluate([group], {"g 0": 1, "g 1": 2, "g 2": 3}).scores["own_r1_of_2"] == 100
    assert evaluate([group], {"g 0": 3, "g 1": 2, "g 2": 1}).scores["own_r1_of_2"] == 0
    pair = evaluate([make_group([0, 1])], {"g 0": 1, "g 1": 2}).scores
    assert pair["own_r1"] == 100
    assert "own_r1_of_2" not in pair  # the same


def draw_groups(seed, sizes, several=True):
    rng = np.random.default_rng(seed)
    groups, table = [], {}
    for number, size in enumerate(sizes):
        labels = np.zeros(size, int)
        labels[rng.permutation(size)[: 1 + several * rng.integers(0, size - 1)]] = 1
        groups.append(make_group(labels.tolist(), f"g{number}"))
        # Few values, so that there are ties; and few candidates, whose orders can all be tried.
        table.update({text: int(rng.integers(0, 4)) for text in groups[-1].candidates})
    return groups, table


@pytest.mark.parametrize("seed", range(6))
def test_scores_equal_the_reference(seed):
    groups, table = draw_groups(seed, [6, 4, 6, 5, 6])
    found = evaluate(groups, table)
    expected = {name: [] for name in ("r1", "r2", "r5", "map", "mrr")}
    for group in groups:
        values = [table[text] for text in group.candidates]
        relevant = [label == 1 for label in group.labels]
        expected["map"].append(reference.average_precision(values, relevant))
        expected["mrr"].append(reference.reciprocal_rank(values, relevant))
        for k in (1, 2, 5) if len(values) == 6 else ():
            orders = list(reference.rankings(values))
            hits = [sum(relevant[place] for place in order[:k]) for order in orders]
            expected[f"r{k}"].append(sum(hits) / len(hits) / sum(relevant))
    for name, values in expected.items():
        np.testing.assert_allclose(found.items[f"own_{name}"], 100 * np.array(values))
        assert found.scores[f"own_{name}"] == pytest.approx(100 * np.mean(values))
    assert found.scores["candidates"] == 6


@pytest.mark.parametrize("seed", range(6))
def test_the_order_within_a_group_and_of_the_groups_does_not_matter(seed):
    groups, table = draw_groups(seed, [5, 5, 3, 8, 5])
    rng = np.random.default_rng(seed)
    shuffled = []
    for group in rng.permutation(np.array(groups, object)):
        order = rng.permutation(len(group.labels))
        candidates, labels = ([part[i] for i in order] for part in (group.candidates, group.labels))
        shuffled.append(CandidateGroup("", group.context, candidates, labels, group.responder))
    first, second = evaluate(groups, table).scores, evaluate(shuffled, table).scores
    for name in set(first) - {"own_r1_of_2"}:  # which asks for the file's order
        assert first[name] == pytest.approx(second[name]), name


def test_a_constant_score_is_chance():
    groups, table = draw_groups(0, [10, 10, 7, 10])
    scores = evaluate(groups, dict.fromkeys(table, 0.25)).scores
    names = [name for name in scores if name.startswith("own_")]
    assert len(names) == 6
    assert all(scores[name] == pytest.approx(scores[f"chance_{name}"]) for name in names)
    assert scores["tie_share"] == 100


def test_recalls_are_of_the_size_that_most_groups_have_and_of_two_the_larger():
    for sizes, expected in (([3, 4, 3], 3), ([3, 4], 4), ([4, 3, 5, 5, 3, 3], 3)):
        found = evaluate(*draw_groups(1, sizes, several=False))
        assert found.scores["candidates"] == expected
        assert len(found.items["own_r1"]) == sizes.count(expected)
        assert len(found.items["own_map"]) == len(sizes)


def test_the_table_says_of_how_many_candidates_a_score_is():
    found = evaluate(*draw_groups(1, [6, 6, 5], several=False))
    text = format_table([make_result("candidates_own", "a/b/c/test", "f", found)])
    labels = [re.split(r"\s{2,}", row)[1] for row in text.splitlines()[2:-1] if "b/c/test  " in row]
    sizes = ["own_r1 of 6", "own_r2 of 6", "own_r5 of 6", "own_r1 of 2"]
    assert labels == [*sizes, "own_map", "own_mrr"]
    note = "b/c/test: 3 groups (1 of 5, 2 of 6 candidates); R@k is over the groups of 6"
    assert f"{note}; R@1 of 2, MAP and MRR are over all" in text
    pairs = evaluate(*draw_groups(1, [2, 2, 3], several=False))
    text = format_table([make_result("candidates_own", "test", "f", pairs)])
    assert "own_r1 of 2" in text
    assert "R@k is over the groups of 2; MAP and MRR are over all" in text
    same = evaluate(*draw_groups(1, [6, 6], several=False))
    results = [make_result(f"candidates_{way}", "test", "f", same) for way in ("x", "y")]
    assert format_table(results).count("test: 2 groups of 6 candidates") == 1


def test_results_of_one_set_are_compared():
    groups, table = draw_groups(3, [5, 5, 4, 5, 5], several=False)
    better = {text: float(int(text.split()[-1]) == 0) for text in table}
    results = [
        [make_result("candidates_own", "test", "f", evaluate(groups, scores))]
        for scores in (table, better)
    ]
    found = {c.score: c.difference.value for c in compare_results(*results)}
    assert set(found) == {"own_r1", "own_r2", "own_r1_of_2", "own_map", "own_mrr"}
    for name, value in found.items():
        assert value == pytest.approx(results[1][0].scores[name] - results[0][0].scores[name])


def test_a_sample_has_the_speakers_and_the_true_responses_first():
    sample = make_sample(make_group([0, 1, 0, 1], context=("q", "w", "e")))
    assert sample == Sample(["q", "w", "e"], ["g 1", "g 3", "g 0", "g 2"], 2, ["a", "b", "a"], "a")
    cut = make_sample(make_group([0, 1], context=("q", "w", "e")), turns=2)
    assert (cut.context, cut.roles) == (["w", "e"], ["b", "a"])


def write(path, groups):
    path.write_text("".join(json.dumps(group.to_dict()) + "\n" for group in groups))
    return path


def options(path, **settings):
    return EvaluateOptions(model="none", candidates_file=(str(path),), **settings)


def test_a_set_is_its_texts_labels_and_order(tmp_path):
    """Not what is used of its contexts, nor its ids: results of both can be compared."""
    groups = [make_group([1, 0], "x"), make_group([0, 1], "y", ("q", "w", "e"))]
    whole = read_candidate_set(write(tmp_path / "a", groups), options(tmp_path / "a"))
    cut = read_candidate_set(tmp_path / "a", options(tmp_path / "a", candidates_turns=1))
    assert cut.fingerprint == whole.fingerprint
    assert [sample.context for sample in cut.samples] == [["lo"], ["e"]]
    for changed in (groups[::-1], [groups[0], make_group([1, 0], "y", ("q", "w", "e"))]):
        path = write(tmp_path / "b", changed)
        assert read_candidate_set(path, options(path)).fingerprint != whole.fingerprint


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ({"context_turns": 5}, ", whose contexts `candidates_turns` cuts"),
        ({"same_role": False}, ""),
        ({"join_consecutive": True}, ""),
        ({"candidates": 5}, ""),
        ({"max_samples": 100}, ""),
    ],
)
def test_settings_of_dialogues_are_refused_for_groups_alone(setting, remedy, tmp_path):
    problem = f"{next(iter(setting))}.*has no meaning for `candidates_file`{remedy}$"
    with pytest.raises(OptionError, match=problem):
        options(tmp_path / "groups", **setting)
    options(tmp_path / "groups", **setting, response_selection=("test.jsonl",))


def test_a_file_without_groups_is_refused(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="empty: no group of candidates"):
        read_candidate_set(tmp_path / "empty", options(tmp_path / "empty"))


# The whole way, on a public file


def rank_in_plain_python(path):
    """R_10@k, MAP, MRR and R_2@1 of the character score below, from the file's own fields.

    Every context has one true response; tied with others, it is at each of their places equally
    often.
    """
    groups = {}
    for row in path.read_text(encoding="utf-8").splitlines():
        label, *context, response = row.split("\t")
        groups.setdefault(tuple(context), []).append((int(label), response))
    sums = {}
    for context, candidates in groups.items():
        heard = set("".join("".join(context).split()))
        scored = []
        for label, response in candidates:
            letters = "".join(response.split())
            scored.append((sum(letter in heard for letter in letters), label))
        (true,) = [value for value, label in scored if label]
        better = sum(value > true for value, _ in scored)
        tied = sum(value == true for value, _ in scored)
        places = range(better + 1, better + tied + 1)
        first = next(value for value, label in scored if not label)
        figures = {f"r{k} of 10": sum(place <= k for place in places) / tied for k in (1, 2, 5)}
        figures["r1 of 2"] = (true > first) + (true == first) / 2
        figures["map"] = figures["mrr"] = sum(1 / place for place in places) / tied
        for name, value in figures.items():
            sums[name] = sums.get(name, 0) + value
    return {name: 100 * total / len(groups) for name, total in sums.items()}


def count_heard(samples):
    """The same score, of the samples that the job makes."""
    heard = [set("".join(sample.context)) - {" "} for sample in samples]
    return [
        np.array([sum(letter in known for letter in text) for text in sample.candidates])
        for sample, known in zip(samples, heard, strict=True)
    ]


def test_evaluate_prints_what_plain_python_computes(monkeypatch, capsys):
    path = shared_file("ecd_response_selection/test")
    monkeypatch.setattr(job.SentenceEncoder, "from_options", lambda _: SimpleNamespace(settings={}))
    monkeypatch.setattr(job, "list_similarities", lambda encoder: {"own": count_heard})
    commands.evaluate(options(path, candidates_format="ecd"))
    printed = capsys.readouterr().out
    found = dict(re.findall(r"own_(\S+(?: of \d+)?) +([0-9.]+) ", printed))
    expected = rank_in_plain_python(path)
    assert {name: f"{value:.2f}" for name, value in expected.items()} == found
    assert len({*expected.values(), 10, 50}) == 7  # all but MAP and MRR differ, none is chance
    assert "100 groups of 10 candidates" in printed
