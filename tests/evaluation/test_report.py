"""Results as a table, as JSON, and compared."""

import json

import numpy as np
import pytest

from dcse_tf.errors import InputError
from dcse_tf.evaluation import bootstrap, report
from dcse_tf.evaluation.bootstrap import Difference
from dcse_tf.evaluation.metrics import Evaluation

MAP, MRR = [40.0, 50.0, 60.0, 70.0], [30.0, 100.0, 50.0, 20.0]
DEGREES = [1.0, 2, 3, 4, 5, 5]
RISING, FALLING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.5], [0.9, 0.8, 0.7, 0.6, 0.5, 0.5]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)


def rank(more=0.0, size=4, task="response_cosine", source="a/b/c/d.txt", fingerprint="f1", **extra):
    """A result with the scores map and mrr; `more` is added to one and taken from the other."""
    items = {
        "map": np.array(MAP[:size]) + more,
        "mrr": np.array(MRR[:size]) - more,
        "chance_map": np.full(size, 46.0),
        "tie_share": np.zeros(size),
    }
    scores = {name: float(np.mean(column)) for name, column in items.items()}
    scores |= {"chance_mrr": 63.9, **extra}
    return report.make_result(task, source, fingerprint, Evaluation(scores, items), "3 before")


def correlate(cosines, spearman, tie_share=33.3):
    scores = {"spearman": spearman, "chance_spearman": 0.0, "tie_share": tie_share, "pairs": 6.0}
    items = {"degree": np.array(DEGREES), "cosine": np.array(cosines)}
    return report.make_result("sts", "sts.txt", "f2", Evaluation(scores, items))


def test_the_table_has_a_line_a_score_with_its_context_interval_and_chance():
    result = rank()
    low, high = result.intervals["map"]
    assert 40 <= low < 55 < high <= 70
    lines = report.format_table([result, correlate(RISING, 100.0), rank(size=1)]).splitlines()
    assert lines[0].split() == ["set", "score", "context", "value", "95%", "interval", "chance"]
    assert lines[2].startswith("b/c/d.txt  map       3 before   55.00")
    assert lines[2].endswith(f"{low:.2f} to {high:.2f}   46.00")
    assert lines[4].split()[:3] == ["sts.txt", "spearman", "100.00"]
    assert lines[5].split() == ["b/c/d.txt", "map", "3", "before", "40.00", "46.00"]  # of one item
    assert lines[7].startswith("sts on sts.txt: 33.3% of the scores are tied")
    assert correlate(RISING, 100.0, tie_share=1.0).warning() is None


def test_the_table_says_of_how_many_candidates_a_score_is():
    sizes = {"groups": 3.0, "candidates": 6.0, "groups_of_5": 1.0, "groups_of_6": 2.0}
    names = ("own_r1", "own_r1_of_2", "own_map")
    items = {name: np.array(MAP) for name in names}
    scores = dict.fromkeys(names, 55.0) | {f"chance_{name}": 10.0 for name in names}
    evaluation = Evaluation({**scores, **sizes, "tie_share": 0.0}, items)
    text = report.format_table(
        [report.make_result("candidates_own", "a/b/c/test", "f", evaluation)] * 2
    )
    assert text.count("own_r1 of 6 ") == text.count("own_r1 of 2 ") == 2
    note = "b/c/test: 3 groups (1 of 5, 2 of 6 candidates); R@k is over the groups of 6, all other"
    assert text.count(note) == 1


def test_what_was_written_is_read_back_of_an_older_version_too(tmp_path):
    path = tmp_path / "new/folder/scores.json"
    results = [rank(), correlate(FALLING, -100.0)]
    report.write_results(path, "模型", {"seed": 3}, results)
    assert report.read_results(path) == ("模型", results, {"seed": 3})
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["results"][0]["context"] == "3 before"
    assert content["results"][1]["warning"] == results[1].warning()
    assert [entry.name for entry in path.parent.iterdir()] == ["scores.json"]
    del content["results"][0]["context"]
    content["results"][0]["colour"] = "red"  # of another version
    path.write_text(json.dumps(content))
    assert report.read_results(path)[1][0].context == ""


@pytest.mark.parametrize("content", [
    "{", "[1]", b"\xff\xfe", '{"model": "a", "results": 3}', '{"model": "a", "results": []}',
    '{"model": "a", "results": [], "settings": 3}',
    '{"model": "a", "results": [{"task": "sts", "source": "s", "scores": {}}], "settings": {}}',
])  # fmt: skip
def test_what_evaluate_did_not_write_is_named(tmp_path, content):
    path = tmp_path / "scores.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        report.read_results(path)
    assert str(caught.value).startswith(f"{path}: not a file of results of evaluate")


def test_every_score_of_a_common_set_is_compared():
    first = [rank(source="here"), correlate(FALLING, -100.0)]
    second = [correlate(RISING, 100.0), rank(more=5.0, source="there")]
    found = report.compare_results(first, second)
    assert [(c.source, c.score, c.context) for c in found] == [
        ("here", "map", "3 before"),
        ("here", "mrr", "3 before"),
        ("sts.txt", "spearman", ""),
    ]
    # The second less the first: 60 - 55, 45 - 50, 100 - -100.
    assert [(c.first, c.second) for c in found] == [(55, 60), (50, 45), (-100, 100)]
    assert [c.difference.value for c in found] == pytest.approx([5, -5, 200])
    for comparison in report.compare_results(first, first):
        assert comparison.difference == Difference(0, 0, 0, 1)


def test_a_reranker_is_compared_with_each_similarity_of_embeddings():
    def score(way, values, context="3 before"):
        items = {f"{way}_r1": np.array(values), "tie_share": np.zeros(3)}
        scores = {name: float(np.mean(found)) for name, found in items.items()}
        return report.make_result(f"response_{way}", "s", "f", Evaluation(scores, items), context)

    embeddings = [score("cosine", [0, 0, 100]), score("matching", [0, 0, 0])]
    embeddings.append(score("cosine_bidirectional", [100] * 3, "3 before, 3 after"))
    found = report.compare_results(embeddings, [score("reranker", [0, 100, 100])])
    assert [each.score for each in found] == ["cosine_r1, reranker_r1", "matching_r1, reranker_r1"]
    assert [each.difference.value for each in found] == pytest.approx([100 / 3, 200 / 3])


def test_only_scores_of_the_same_set_and_task_and_of_several_items_are_compared():
    for other in ([], [rank(fingerprint="f9")], [rank(task="response_matching")]):
        with pytest.raises(InputError, match="no evaluation set in common"):
            report.compare_results([rank()], other)
    one = rank(fingerprint="f3", size=1)
    with pytest.raises(InputError, match="with two items or more"):
        report.compare_results([one], [one])
    assert len(report.compare_results([one, rank()], [one, rank()])) == 2


def test_the_table_of_comparisons_has_a_line_a_score():
    path = "/long/way/to/mdc/dev/s.txt"
    first = Difference(1.234, -0.5, 3.0, 0.12346)
    second = Difference(-1.0, -2.0, -0.125, 4e-4)
    comparisons = [
        report.Comparison(path, "own_r1", "3 before", 50.0, 51.234, first),
        report.Comparison("s.txt", "spearman", "", 80.0, 79.0, second),
    ]
    lines = report.format_comparisons(comparisons, [0.12346, 8e-4]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2].startswith(
        "mdc/dev/s.txt  own_r1    3 before  50.00   51.23       +1.23  -0.50"
    )
    assert lines[2].endswith("to +3.00  0.1235    0.1235")
    assert lines[3].split()[:5] == ["s.txt", "spearman", "80.00", "79.00", "-1.00"]
    assert lines[3].endswith("0.0004    0.0008")


def test_chinese_takes_two_columns_of_a_terminal():
    rows = [("what", "意图", "turns"), ("退货", "a", "1,234"), ("ok", "，。", "5")]
    # "退货" is as wide as "what"; full-width marks count as letters do.
    assert report.align(rows, text_columns=2).splitlines() == [
        "what  意图  turns",
        "-----------------",
        "退货  a     1,234",
        "ok    ，。      5",
    ]
