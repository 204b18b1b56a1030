import math

import numpy as np
import pytest
import reference

from dcse_tf.evaluation import metrics


def _noise(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """What float32 loses, around half a tolerance, where rounding would separate equal scores."""
    return 0.5 * metrics.TIE_TOLERANCE + rng.choice([-1e-8, -1e-9, 0.0, 1e-9, 1e-8], shape)


def _tied_case(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A few candidates with few different scores, at least one of them relevant."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 7))
    scores = rng.choice([-0.3, 0.1, 0.100003, 0.7], size)
    relevant = rng.random(size) < 0.4
    relevant[rng.integers(size)] = True
    return scores, relevant


@pytest.mark.parametrize("seed", range(120))
def test_ranking_measures_equal_the_mean_over_all_orders_of_ties(seed):
    scores, relevant = _tied_case(seed)
    near = scores + _noise(np.random.default_rng(seed), scores.shape)
    expected = reference.average_precision(scores, relevant)
    assert metrics.average_precision(near, relevant) == pytest.approx(expected, abs=1e-12)
    expected = reference.reciprocal_rank(scores, relevant)
    assert metrics.reciprocal_rank(near, relevant) == pytest.approx(expected, abs=1e-12)
    for k in range(1, len(scores) + 1):
        expected = reference.recall_at(k, scores)
        assert metrics.recall_at(k, near) == pytest.approx(expected, abs=1e-12)
    tied = sum(list(scores).count(score) > 1 for score in scores)
    assert metrics.tied_share(near) == pytest.approx(tied / len(scores))


def test_scores_that_are_near_because_there_are_many_are_no_ties():
    many = np.random.default_rng(0).normal(0.8, 0.03, 3000)
    assert metrics.tied_share(many) < 0.01
    assert (
        metrics.tied_share(np.append(many, 0.8 + _noise(np.random.default_rng(0), (3000,)))) > 0.5
    )


@pytest.mark.parametrize(("size", "hits"), [(1, 1), (2, 1), (10, 1), (10, 10), (70, 30), (100, 30)])
def test_constant_scores_have_the_chance_level(size, hits):
    relevant = np.arange(size) < hits  # relevant ones first, as the authors' files have them
    constant = np.full(size, 0.25)
    # The first relevant one is at place r with chance C(size - r, hits - 1) / C(size, hits);
    # here as a product of the chances to miss.
    missed, reciprocal = 1.0, 0.0
    for place in range(1, size - hits + 2):
        chance = hits / (size - place + 1)
        reciprocal += missed * chance / place
        missed *= 1 - chance
    assert metrics.reciprocal_rank(constant, relevant) == pytest.approx(reciprocal, rel=1e-9)
    # At place i the precision is, for a relevant one, (1 + (i - 1) q) / i in expectation, with
    # q = (hits - 1) / (size - 1): the mean over places is q + (1 - q) H / size.
    harmonic = math.fsum(1 / i for i in range(1, size + 1))
    q = (hits - 1) / (size - 1) if size > 1 else 0.0
    expected = q + (1 - q) * harmonic / size
    assert metrics.average_precision(constant, relevant) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("measure", [metrics.average_precision, metrics.reciprocal_rank])
def test_a_ranking_without_anything_relevant_is_refused(measure):
    with pytest.raises(ValueError, match="needs a relevant candidate"):
        measure(np.array([1.0, 2.0]), np.array([False, False]))


@pytest.mark.parametrize("noise", [1e-7, -1e-7, 1e-12, 0.0])
def test_nearly_equal_floats_count_as_ties(noise):
    """What float32 loses must not decide a ranking; 1e-4 may."""
    scores = np.array([0.5, 0.5 + noise])
    relevant = np.array([True, False])
    assert metrics.average_precision(scores, relevant) == pytest.approx((1 + 1 / 2) / 2)
    assert metrics.reciprocal_rank(scores, relevant) == pytest.approx((1 + 1 / 2) / 2)
    assert metrics.recall_at(1, scores) == pytest.approx(1 / 2)
    assert metrics.tied_share(scores) == 1.0
    assert metrics.spearman(scores, np.array([1.0, 2.0])) == 0.0
    apart = np.array([0.5, 0.5 + 1e-4])
    assert metrics.average_precision(apart, relevant) == pytest.approx(1 / 2)
    assert metrics.tied_share(apart) == 0.0


def test_ties_do_not_depend_on_where_the_scores_lie():
    """Ten spellings of one text, whose scores differ by what float32 loses."""
    for middle in (0.1234565, 0.123456, -0.5000005, 0.0, 3.25):
        for places in (range(-5, 5), range(-9, 1), range(10)):
            scores = np.array([middle + 1e-8 * place for place in places])
            assert metrics.recall_at(1, scores) == 0.1
            assert metrics.tied_share(scores) == 1.0
    near = np.array([0.123456499, 0.123456501])
    assert list(metrics.tie_groups(near, np.array([True, False]))) == [(2, 1)]


def test_ties_are_transitive_and_end_at_a_gap():
    """Steps of 0.9e-6 chain; a step of 1.1e-6 ends the chain, from either side."""
    scores = 0.3 + 1e-6 * np.array([0.0, 0.9, 1.8, 2.9, 3.8])
    relevant = np.array([True, False, True, True, False])
    for sign, expected in ((1, [(2, 1), (3, 2)]), (-1, [(3, 2), (2, 1)])):
        assert list(metrics.tie_groups(sign * scores, relevant)) == expected


@pytest.mark.parametrize("seed", range(60))
def test_spearman_equals_the_reference_under_ties(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 9))
    degrees, cosines = rng.integers(1, 6, size).astype(float), rng.choice([-0.2, 0, 0.4, 0.9], size)
    near = cosines + _noise(rng, cosines.shape)
    expected = reference.spearman(degrees, cosines)
    assert metrics.spearman(degrees, near) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_spearman_along_an_axis_equals_the_reference_of_every_row(axis):
    first, second = np.random.default_rng(0).integers(0, 3, (2, 4, 5, 6)) / 7
    found = metrics.spearman(first, second, axis)
    rows = [np.moveaxis(values, axis, -1) for values in (first, second)]
    assert found.shape == rows[0].shape[:-1]
    for place in np.ndindex(found.shape):
        expected = reference.spearman(*(values[place].tolist() for values in rows))
        assert found[place] == pytest.approx(expected, abs=1e-12)


def test_a_constant_row_has_no_correlation_and_leaves_the_others_alone():
    values = np.array([[1.0, 2, 3], [0.5, 0.5, 0.5], [3, 1, 2]])
    other = np.array([[2.0, 4, 9], [1, 2, 3], [7, 7, 7]])
    with np.errstate(all="raise"):
        np.testing.assert_allclose(metrics.spearman(values, other), [1, 0, 0], atol=1e-12)
        # Columns: (1, .5, 3) and (2, 1, 7) rise together; (2, .5, 1) and (4, 2, 7) have ranks
        # 3, 1, 2 and 2, 1, 3: 1/2; (3, .5, 2) and (9, 3, 7) rise together.
        np.testing.assert_allclose(metrics.spearman(values, other, axis=0), [1, 0.5, 1])
