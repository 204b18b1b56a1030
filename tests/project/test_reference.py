"""The reference itself, by hand arithmetic."""

import math

import numpy as np
import pytest
import reference

# d = 4, so that sqrt(d) = 2 and the figures stay whole.
U1 = np.array([[2.0, 0, 0, 0]])
U2 = np.array([[0, 2.0, 0, 0], [0, 0, 0, 0]])
R = np.array([[1.0, 0, 0, 0], [3, 1, 0, 0]])


def test_matching_matrix_and_refined_embedding():
    # (2 * 1) / 2 and (2 * 3) / 2
    np.testing.assert_allclose(reference.matching_matrix(U1, R), [[1, 3]])
    # 1 * [1, 0, 0, 0] + 3 * [3, 1, 0, 0]
    np.testing.assert_allclose(reference.refined_embedding(U1, R), [[10, 3, 0, 0]])
    # (2 * 1) / 2 = 1 of the second row, and nothing from the zero token
    np.testing.assert_allclose(reference.refined_embedding(U2, R), [[3, 1, 0, 0], [0, 0, 0, 0]])


def test_turns_count_the_same_whatever_their_length():
    refined = [reference.refined_embedding(u, R) for u in (U1, U2)]
    # U2's tokens: ([3, 1] + [0, 0]) / 2 = [1.5, 0.5]; turns: ([10, 3] + [1.5, 0.5]) / 2
    np.testing.assert_allclose(reference.aggregate_turns(refined), [5.75, 1.75, 0, 0])


def test_turns_of_one_length_give_equation_7_as_printed():
    rng = np.random.default_rng(0)
    refined = [rng.normal(size=(3, 4)) for _ in range(5)]
    printed = sum(refined) / 5  # matrices are averaged first, tokens pooled after
    np.testing.assert_allclose(reference.aggregate_turns(refined), printed.mean(axis=0))


def test_similarity():
    # [5.75, 1.75] with the mean response [2, 0.5]: 12.375 / sqrt(36.125 * 4.25)
    assert reference.similarity([U1, U2], R) == pytest.approx(12.375 / math.sqrt(153.53125))


def test_cosine_of_a_zero_vector_is_zero():
    assert reference.cosine(np.zeros(2), np.ones(2)) == 0.0
    assert reference.cosine(np.array([3.0, 4]), np.array([4.0, 3])) == pytest.approx(24 / 25)


def test_nt_xent():
    # -log(e^5 / (e^5 + e^1)) = log(1 + e^-4)
    assert reference.nt_xent([0.5, 0.1], 0.1) == pytest.approx(math.log1p(math.exp(-4)))


def test_layer_norm_and_gelu():
    # mean 2, variance 1: [-1, 1] * gamma + beta
    row = reference.layer_norm(np.array([1.0, 3]), np.array([2.0, 3]), np.array([1.0, 1]), 0.0)
    np.testing.assert_allclose(row, [-1, 4])
    # x * Phi(x): Phi(1) = 0.8413, to which the tanh form comes within 2e-4
    np.testing.assert_allclose(reference.gelu(np.array([0.0, 1, -1])), [0, 0.8412, -0.1588], 1e-3)
    np.testing.assert_allclose(
        reference.exact_gelu(np.array([0.0, 1, -1])), [0, 0.841345, -0.158655], 1e-5
    )


def test_every_order_of_equal_scores_is_tried():
    assert list(reference.rankings([1, 2, 2])) == [[1, 2, 0], [2, 1, 0]]
    assert len(list(reference.rankings([0] * 4 + [1] * 3))) == 24 * 6


def test_ranking_measures():
    scores, relevant = [4, 3, 2, 1], [True, False, True, False]
    assert reference.average_precision(scores, relevant) == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert reference.reciprocal_rank(scores, [False, False, True, True]) == pytest.approx(1 / 3)
    # One relevant of three equal ones is first, second or third.
    tied = ([5, 5, 5], [False, True, False])
    assert reference.average_precision(*tied) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert reference.reciprocal_rank(*tied) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert reference.recall_at(2, [5, 5, 5]) == pytest.approx(2 / 3)
    assert reference.recall_at(1, [5, 5.1, 4]) == 0.0


def test_spearman_shares_mean_ranks():
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5) = sqrt(0.9)
    assert reference.spearman([1, 2, 2, 9], [0, 1, 2, 3]) == pytest.approx(math.sqrt(0.9))
    assert reference.spearman([1, 2, 3], [9, 4, 1]) == pytest.approx(-1)
