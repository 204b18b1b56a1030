import math

import numpy as np
import pytest

from dcse_tf.evaluation import geometry
from dcse_tf.evaluation.report import format_table, make_result
from dcse_tf.evaluation.response_selection import Sample, evaluate_by_embeddings
from dcse_tf.evaluation.retrieval import Query, RetrievalSet, evaluate_retrieval
from dcse_tf.evaluation.sts import StsSet, evaluate_sts

# Unit vectors at right angles and opposite: squared distances 2 (a-b), 4 (a-c), 2 (b-c); cosines
# 0, -1, 0. Lengths must not matter.
VECTORS = {"a": [3.0, 0.0], "b": [0.0, 0.5], "c": [-1.0, 0.0], "d": [0.0, 7.0]}
UNIFORMITY = math.log((math.exp(-4) + math.exp(-8) + math.exp(-4)) / 3)


def encode(sentences):
    return np.array([VECTORS[sentence] for sentence in sentences])


def random_unit_rows(count, dim=5, seed=0):
    rows = np.random.default_rng(seed).normal(size=(count, dim)) + 0.7
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_pairs(rows):
    """Uniformity and anisotropy pair by pair."""
    pairs = [(rows[i], rows[j]) for i in range(len(rows)) for j in range(i)]
    potentials = [math.exp(-2 * sum((x - y) ** 2)) for x, y in pairs]
    cosines = [float(x @ y) for x, y in pairs]
    return math.log(sum(potentials) / len(pairs)), sum(cosines) / len(pairs)


def test_uniformity_and_anisotropy_by_hand():
    found = geometry.describe("abc", np.array([[1.0, 0], [0, 1], [-1, 0]]), np.array([2.0, 4.0]))
    assert found["alignment"] == 3
    assert found["uniformity"] == pytest.approx(UNIFORMITY)
    assert found["anisotropy"] == pytest.approx(-1 / 3)


@pytest.mark.parametrize("count", [2, 40])
def test_all_pairs_of_different_sentences_count_once(count, monkeypatch):
    monkeypatch.setattr(geometry, "_ROWS", 7)  # blocks that do not divide the rows
    rows = random_unit_rows(count)
    texts = [f"s{number}" for number in range(count)]
    found = geometry.describe(texts, rows, np.zeros(0))
    assert [found["uniformity"], found["anisotropy"]] == pytest.approx(by_pairs(rows))
    again = geometry.describe([*texts, *texts[:1]], np.concatenate([rows, rows[:1]]), np.zeros(0))
    assert again == pytest.approx(found)


def test_a_collapsed_encoder_has_uniformity_0_and_anisotropy_1():
    rows = np.tile(random_unit_rows(1), (30, 1))
    found = geometry.describe([str(n) for n in range(30)], rows, np.zeros(1))
    assert found == pytest.approx({"alignment": 0, "uniformity": 0, "anisotropy": 1}, abs=1e-12)


def test_a_large_set_is_sampled_whatever_its_order(monkeypatch):
    monkeypatch.setattr(geometry, "MAX_SENTENCES", 50)
    rows = random_unit_rows(300)
    texts = [f"s{number}" for number in range(300)]
    found = geometry.describe(texts, rows, np.zeros(0))
    backwards = geometry.describe(texts[::-1], rows[::-1], np.zeros(0))
    assert backwards == pytest.approx(found)
    whole = by_pairs(rows)
    assert found["anisotropy"] != pytest.approx(whole[1], abs=1e-9)
    assert found["anisotropy"] == pytest.approx(whole[1], abs=0.1)


def test_nothing_is_said_of_what_is_not_there():
    assert geometry.describe(["a", "a"], random_unit_rows(2), np.zeros(0)) == {}


def test_of_an_sts_set_pairs_of_degree_4_or_more_are_aligned():
    sts_set = StsSet(np.array([4.0, 5.0, 3.5]), ["a", "b", "a"], ["b", "d", "c"])
    scores = evaluate_sts(sts_set, encode).scores
    assert scores["alignment"] == pytest.approx((2 + 0) / 2)  # b and d have one direction
    # a, b, c, d: pairs ab ad bc cd at distance 2, ac at 4, bd at 0.
    assert scores["uniformity"] == pytest.approx(
        math.log((4 * math.exp(-4) + math.exp(-8) + 1) / 6)
    )
    assert scores["anisotropy"] == pytest.approx((4 * 0 - 1 + 1) / 6)


def test_an_sts_set_without_alike_pairs_has_no_alignment():
    sts_set = StsSet(np.array([1.0, 3.9]), ["a", "b"], ["b", "c"])
    assert "alignment" not in evaluate_sts(sts_set, encode).scores


def test_of_a_retrieval_set_a_query_and_each_positive_are_aligned():
    queries = [Query(0, np.array([1, 2]), np.array([3])), Query(1, np.array([3]), np.array([0]))]
    found = evaluate_retrieval(RetrievalSet(list("abcd"), queries, [""] * 4), encode)
    assert found.scores["alignment"] == pytest.approx((2 + 4 + 0) / 3)
    assert found.scores["anisotropy"] == pytest.approx(0)
    assert not set(geometry.NAMES) & set(found.items)


def test_of_responses_the_contexts_mean_and_the_true_response_are_aligned():
    asked = []

    def count(sentences):
        asked.extend(sentences)
        return encode(sentences)

    # The mean of a and c is (1, 0): at right angles with b.
    samples = [Sample(["a", "c"], ["b", "a"]), Sample(["b"], ["b", "c"])]
    found = evaluate_by_embeddings(samples, count, {})["cosine"]
    assert found.scores["alignment"] == pytest.approx((2 + 0) / 2)
    assert found.scores["uniformity"] == pytest.approx(UNIFORMITY)
    assert found.scores["cosine_r1"] == pytest.approx(50)  # cosines 0 and 1, then 1 and 0
    assert sorted(asked) == ["a", "b", "c"]


def test_the_table_has_geometry_below_the_scores():
    sts_set = StsSet(np.array([4.0, 5.0, 3.0]), ["a", "b", "a"], ["b", "d", "c"])
    result = make_result("sts", "to/ecd/dev/sts.txt", "f", evaluate_sts(sts_set, encode))
    # log((4 exp(-4) + exp(-8) + 1) / 6) = log(0.17893)
    lines = format_table([result]).splitlines()
    assert [line.split()[1] for line in lines[2:3]] == ["spearman"]
    assert [line.split() for line in lines[3:6]] == [
        ["ecd/dev/sts.txt", "alignment", "1.000"],
        ["ecd/dev/sts.txt", "uniformity", "-1.721"],
        ["ecd/dev/sts.txt", "anisotropy", "0.000"],
    ]
    assert set(result.intervals) <= {"spearman"}
