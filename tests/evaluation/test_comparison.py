import contextlib
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from dcse_tf.errors import InputError
from dcse_tf.evaluation import bootstrap
from dcse_tf.evaluation.bootstrap import Difference
from dcse_tf.evaluation.candidate_groups import evaluate_groups
from dcse_tf.evaluation.options import EvaluateOptions
from dcse_tf.evaluation.report import (
    Comparison,
    Result,
    compare_results,
    describe_differences,
    format_comparisons,
    make_result,
    write_json,
)
from dcse_tf.evaluation.response_selection import Sample

ROOT = pathlib.Path(__file__).parents[2]
MAP, MRR = [40.0, 50.0, 60.0, 70.0], [30.0, 100.0, 50.0, 20.0]
DEGREES = [1.0, 2, 3, 4, 5, 5]
RISING, FALLING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.5], [0.9, 0.8, 0.7, 0.6, 0.5, 0.5]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)


def _retrieval(source="a/select.txt", fingerprint="f1", task="retrieval", more=0.0, size=4):
    values = {
        "map": [value + more for value in MAP[:size]],
        "mrr": [value - more for value in MRR[:size]],
        "chance_map": [46.0] * size,
        "tie_share": [0.0] * size,
    }
    scores = {name: float(np.mean(column)) for name, column in values.items()}
    return Result(task, source, fingerprint, scores, values, {})


def _sts(cosines, spearman, fingerprint="f2"):
    scores = {"spearman": spearman, "chance_spearman": 0.0, "tie_share": 33.3, "pairs": 6.0}
    return Result("sts", "sts.txt", fingerprint, scores, {"degree": DEGREES, "cosine": cosines}, {})


def test_every_score_of_a_common_set_is_compared():
    first = [_retrieval(), _sts(FALLING, -100.0)]
    second = [_sts(RISING, 100.0), _retrieval(more=5.0)]
    found = compare_results(first, second)
    assert [(c.task, c.score) for c in found] == [
        ("retrieval", "map"),
        ("retrieval", "mrr"),
        ("sts", "spearman"),
    ]
    # The second less the first: 60 - 55, 45 - 50, 100 - -100.
    assert [(c.first, c.second) for c in found] == [(55, 60), (50, 45), (-100, 100)]
    assert [c.difference.value for c in found] == pytest.approx([5, -5, 200])


def test_the_sign_turns_with_the_order():
    first, second = [_retrieval()], [_retrieval(more=5.0)]
    better, worse = compare_results(first, second)[0], compare_results(second, first)[0]
    assert (better.difference.low, better.difference.high) == pytest.approx((5, 5))
    assert (worse.difference.low, worse.difference.high) == pytest.approx((-5, -5))
    assert better.difference.p_value == worse.difference.p_value < 0.02


def test_a_model_does_not_differ_from_itself():
    results = [_retrieval(), _sts(RISING, 100.0)]
    for comparison in compare_results(results, results):
        assert comparison.difference == Difference(0, 0, 0, 1)


def test_sets_are_known_by_their_content_and_not_by_their_path():
    first = [_retrieval("here/select.txt", "f1"), _retrieval("old/select.txt", "f3")]
    second = [_retrieval("old/select.txt", "f1", more=1.0), _retrieval("here/select.txt", "f4")]
    found = compare_results(first, second)
    assert {c.source for c in found} == {"here/select.txt"}
    assert [c.difference.value for c in found] == pytest.approx([1, -1])


def test_two_ways_of_scoring_one_set_are_not_mixed_up():
    first = [_retrieval(task="response_cosine"), _retrieval(task="response_matching", more=1.0)]
    second = [_retrieval(task="response_matching", more=4.0)]
    found = compare_results(first, second)
    assert {c.task for c in found} == {"response_matching"}
    assert [c.difference.value for c in found] == pytest.approx([3, -3])


@pytest.mark.parametrize(
    "second",
    [[], [_retrieval(fingerprint="f9")], [_retrieval(task="response_cosine")]],
    ids=["nothing", "another set", "another task"],
)
def test_nothing_in_common_is_an_error(second):
    with pytest.raises(InputError, match="no evaluation set in common"):
        compare_results([_retrieval()], second)


def test_samples_that_were_drawn_otherwise_are_said_to_be_another_set():
    first, second = ([_retrieval(task="response_cosine", fingerprint=f)] for f in "ab")
    said = "for response selection the same `candidates`, `context_turns`, .*`max_samples`, `seed`"
    with pytest.raises(InputError, match=said):
        compare_results(first, second)


def test_a_set_of_one_query_is_no_fault_of_the_program():
    """It has no interval; an InputError is told in one line, another one is not."""
    one = [_retrieval(size=1)]
    with contextlib.suppress(InputError):
        compare_results(one, one)


def test_scores_of_one_item_are_left_out():
    one, many = _retrieval("one/select.txt", "f1", size=1), _retrieval("many/select.txt", "f2")
    found = compare_results([one, many], [one, many])
    assert {c.source for c in found} == {"many/select.txt"}
    # Groups of three sizes: R@k is over the only one of the largest, MAP and MRR over all.
    samples = [Sample(["a"], list("bcde")[:size]) for size in (2, 3, 4)]
    scores = lambda groups: [np.arange(len(group.candidates)) for group in groups]  # noqa: E731
    result = make_result("candidates_cosine", "g", "f", evaluate_groups(samples, scores, "cosine"))
    found = compare_results([result], [result])
    assert [c.score for c in found] == ["cosine_r1_of_2", "cosine_map", "cosine_mrr"]


def test_the_table_has_a_line_a_score():
    path = "/long/way/to/mdc/dev/s.txt"
    comparisons = [
        Comparison("retrieval", path, "map", 50.0, 51.234, Difference(1.234, -0.5, 3.0, 0.12346)),
        Comparison("sts", "sts.txt", "spearman", 80.0, 79.0, Difference(-1.0, -2.0, -0.125, 4e-4)),
    ]
    head = "set            score     first  second  difference    95% interval       p"
    assert format_comparisons(comparisons, [0.12346, 8e-4]).splitlines() == [
        f"{head}  p (Holm)",
        "-" * (len(head) + 10),
        "mdc/dev/s.txt  map       50.00   51.23       +1.23  -0.50 to +3.00  0.1235    0.1235",
        "sts.txt        spearman  80.00   79.00       -1.00  -2.00 to -0.12  0.0004    0.0008",
    ]


def test_the_command_compares_each_with_the_first(tmp_path):
    scores = {"base": (FALLING, -100.0), "中文": (RISING, 100.0), "same": (FALLING, -100.0)}
    paths = []
    for name, (cosines, spearman) in scores.items():
        paths.append(tmp_path / f"{name}.json")
        settings = {"seed": 0, "max_sequence_length": 256 if name == "中文" else 64}
        write_json(paths[-1], f"run/{name}", settings, [_sts(cosines, spearman)])
    command = [
        sys.executable,
        "-m",
        "dcse_tf.cli",
        "compare",
        f"--results={','.join(map(str, paths))}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "first: run/base, second: run/中文"
    assert lines[1] == "warning: --max_sequence_length is not the same: first 64, second 256"
    assert lines[4].split()[:5] == ["sts.txt", "spearman", "-100.00", "100.00", "+200.00"]
    # Twice the p-value: the two files that are compared with the first are one family.
    raw, corrected = map(float, lines[4].split()[-2:])
    assert corrected == pytest.approx(2 * raw)
    assert 0 < raw < 0.01
    assert lines[5] == "first: run/base, second: run/same"
    assert lines[8].split()[4:] == ["+0.00", "+0.00", "to", "+0.00", "1.0000", "1.0000"]
    assert len(lines) == 9


def test_settings_that_bear_on_the_scores_are_named_and_no_others():
    first = EvaluateOptions(model="a", sts=("s.txt",), seed=1, pooling="cls", batch_tokens=64)
    second = EvaluateOptions(model="b", sts=("s.txt",))

    def name(*configs):
        found = describe_differences(*(config.to_dict() for config in configs))
        return [line.split()[0] for line in found]

    assert name(first, second) == ["`pooling`"]
    both = [config.replace(response_selection=("r.jsonl",)) for config in (first, second)]
    both[1] = both[1].replace(candidates=5)
    assert name(*both) == ["`pooling`", "`candidates`", "`seed`"]
    assert name(both[0], second) == ["`pooling`"]
    assert name(first, first.replace(model="c")) == []
    assert describe_differences({}, second.to_dict()) == []  # of an older version, perhaps


def test_a_prefix_and_a_head_bear_on_the_scores_too():
    plain = EvaluateOptions(model="a", sts=("s.txt",))
    behind = plain.replace(projection="response", prefix="query: ")
    assert describe_differences(plain.to_dict(), behind.to_dict()) == [
        "`projection` is not the same: first '', second response",
        "`prefix` is not the same: first '', second 'query: '",
    ]
