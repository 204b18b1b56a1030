"""Intervals and differences beside hand arithmetic, simulation and slow loops."""

import math
import warnings

import numpy as np
import pytest
import reference

from dcse_tf.evaluation import bootstrap
from dcse_tf.evaluation.bootstrap import difference, holm, interval, score_names

# Twenty-five pairs: degrees with many ties, two models, the second with less noise.
_RNG = np.random.default_rng(7)
DEGREES = _RNG.integers(1, 6, 25).astype(float)
FIRST = np.round(0.1 * DEGREES + _RNG.normal(scale=0.3, size=25), 2)
SECOND = np.round(0.1 * DEGREES + _RNG.normal(scale=0.1, size=25), 2)
# The largest error that the places of 2.5% and 97.5% have for want of draws, in points: five
# standard errors sqrt(0.025 * 0.975 / draws) / density, a normal's density there being 0.058 / sd,
# with 2,000 draws in the loop and an sd of up to 15.
LOOSE = 5 * math.sqrt(0.025 * 0.975 / 2000) / 0.058 * 15


def _pairs(cosines, degrees=DEGREES):
    return {"degree": np.asarray(degrees, float), "cosine": np.asarray(cosines, float)}


def _slow_draws(statistic, draws=2000):
    """The statistic of items drawn again, one drawing after another."""
    rng = np.random.default_rng(99)
    places = range(len(DEGREES))
    return [statistic(rng.choice(places, len(places)).tolist()) for _ in range(draws)]


def _slow_spearman(cosines, places):
    return 100 * reference.spearman([DEGREES[i] for i in places], [cosines[i] for i in places])


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(bootstrap, "RESAMPLES", 400)


def test_scores_are_the_items_but_chance_and_ties():
    names = ["map", "chance_map", "mrr", "chance_mrr", "tie_share"]
    assert score_names(names) == ["map", "mrr"]
    assert score_names({"degree": 0, "cosine": 0}) == ["spearman"]


def test_the_interval_of_a_mean_is_the_normal_one_for_many_items():
    values = np.random.default_rng(3).normal(60, 5, 2000)
    mean = values.sum() / 2000
    error = math.sqrt(((values - mean) ** 2).sum() / 1999 / 2000)  # about 0.11
    low, high = interval({"map": values}, "map")
    assert low == pytest.approx(mean - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.2 * error)


def test_intervals_cover_the_true_mean_as_often_as_they_say(few_draws):
    rng = np.random.default_rng(5)
    covered = 0
    for number in range(200):
        low, high = interval({"mrr": rng.normal(50, 10, 40)}, "mrr", seed=number)
        covered += low <= 50 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_intervals_cover_the_true_correlation_as_often_as_they_say(few_draws):
    rng = np.random.default_rng(6)
    # Spearman's correlation of a bivariate normal with Pearson's r: 6 / pi * asin(r / 2)
    true = 100 * 6 / math.pi * math.asin(0.6 / 2)
    covered = 0
    for number in range(200):
        degrees, noise = rng.normal(size=(2, 60))
        items = _pairs(0.6 * degrees + 0.8 * noise, degrees)
        low, high = interval(items, "spearman", seed=number)
        covered += low <= true <= high
    assert 0.88 <= covered / 200 <= 0.99


@pytest.mark.parametrize("cosines", [FIRST, SECOND, -FIRST], ids=["first", "second", "opposite"])
def test_the_interval_of_a_correlation_equals_a_slow_loop(cosines):
    draws = _slow_draws(lambda places: _slow_spearman(cosines.tolist(), places))
    expected = np.sort(draws)[[50, 1949]]
    assert interval(_pairs(cosines), "spearman") == pytest.approx(expected, abs=LOOSE)


def test_the_difference_of_correlations_equals_a_slow_loop():
    found = difference(_pairs(FIRST), _pairs(SECOND), "spearman")
    first, second = FIRST.tolist(), SECOND.tolist()
    draws = _slow_draws(lambda p: _slow_spearman(second, p) - _slow_spearman(first, p))
    everything = range(len(DEGREES))
    expected = _slow_spearman(second, everything) - _slow_spearman(first, everything)
    assert found.value == pytest.approx(expected)
    assert (found.low, found.high) == pytest.approx(np.sort(draws)[[50, 1949]], abs=LOOSE)
    share = sum(draw <= 0 for draw in draws) / len(draws)
    assert found.p_value == pytest.approx(2 * share, abs=0.02)


def test_a_difference_of_means_by_hand():
    """Differences -1, 3, 3, 3: with k of four draws being -1 the mean is 3 - k.

    k is 0 to 4 with chances 81, 108, 54, 12 and 1 in 256: 0.4% of the means are -1, 5.1% are at
    most 0, and 31.6% are 3.
    """
    first, second = np.array([10.0, 20, 30, 40]), np.array([9.0, 23, 33, 43])
    found = difference({"map": first}, {"map": second}, "map")
    assert found.value == pytest.approx(2)
    assert (found.low, found.high) == pytest.approx((0, 3))
    assert found.p_value == pytest.approx(2 * 13 / 256, abs=0.025)
    back = difference({"map": second}, {"map": first}, "map")
    assert back.value == pytest.approx(-2)
    assert (back.low, back.high) == pytest.approx((-3, 0))
    assert back.p_value == pytest.approx(found.p_value, abs=0.025)


def test_no_number_of_draws_gives_a_p_value_of_zero(monkeypatch):
    monkeypatch.setattr(bootstrap, "RESAMPLES", 999)
    for change in (2, -2):
        found = difference({"map": np.arange(5.0)}, {"map": np.arange(5.0) + change}, "map")
        # All of 999 draws are on one side of 0: twice (0 + 1) / (999 + 1)
        assert found.p_value == pytest.approx(0.002)
        assert (found.value, found.low, found.high) == pytest.approx((change, change, change))


def test_a_clear_difference_is_told():
    rng = np.random.default_rng(1)
    difficulty = rng.normal(50, 20, 100)
    first, second = difficulty + rng.normal(0, 3, 100), difficulty + rng.normal(4, 3, 100)
    found = difference({"mrr": first}, {"mrr": second}, "mrr")
    assert found.p_value < 0.01
    assert 0 < found.low < found.value < found.high
    worse = difference(_pairs(DEGREES), _pairs(_RNG.permutation(DEGREES)), "spearman")
    assert worse.p_value < 0.01
    assert worse.low < worse.value < worse.high < 0


def test_chance_alone_is_seldom_called_a_difference(few_draws):
    rng = np.random.default_rng(8)
    p_values = []
    for number in range(200):
        first, second = rng.normal(50, 10, (2, 40))
        p_values.append(difference({"map": first}, {"map": second}, "map", number).p_value)
    # Evenly spread from 0 to 1: 5% are below 0.05, half below 0.5.
    assert 0.01 <= np.mean(np.array(p_values) < 0.05) <= 0.12
    assert 0.4 <= np.mean(np.array(p_values) < 0.5) <= 0.6


def test_pairing_takes_out_what_is_hard_for_both():
    rng = np.random.default_rng(2)
    difficulty = rng.normal(50, 20, 200)
    first, second = ({"map": difficulty + rng.normal(0, 2, 200)} for _ in range(2))
    paired = difference(first, second, "map")
    # Unpaired, the variances 20^2 + 2^2 of both would add up; paired, only 2^2 of both do.
    widths = [high - low for low, high in (interval(items, "map") for items in (first, second))]
    expected = math.hypot(*widths) * math.sqrt(4 / 404)
    assert paired.high - paired.low == pytest.approx(expected, rel=0.2)


def test_pairing_narrows_the_difference_of_correlations():
    noise = np.random.default_rng(4).normal(scale=0.02, size=25)
    first, second = _pairs(FIRST), _pairs(FIRST + noise)
    paired = difference(first, second, "spearman")
    low, high = interval(first, "spearman")
    assert paired.high - paired.low < 0.4 * (high - low)


@pytest.mark.parametrize(
    ("items", "name"),
    [
        ({"map": np.array([0.1, 50, 100 / 3, 70])}, "map"),
        (_pairs(FIRST), "spearman"),
        (_pairs(np.full(25, 0.3)), "spearman"),
    ],
)
def test_equal_models_have_no_difference(items, name):
    found = difference(items, {key: values.copy() for key, values in items.items()}, name)
    assert (found.value, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_constant_values_give_no_nan():
    """A draw of two pairs is one pair twice half the time, which has no correlation."""
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        assert interval({"map": np.full(9, 12.5)}, "map") == (12.5, 12.5)
        assert interval(_pairs(np.zeros(25)), "spearman") == (0, 0)
        assert interval(_pairs(FIRST, np.ones(25)), "spearman") == (0, 0)
        assert interval(_pairs([0.1, 0.2], [1, 2]), "spearman") == (0, 100)
        found = difference(_pairs(np.zeros(25)), _pairs(SECOND), "spearman")
    expected = 100 * reference.spearman(DEGREES.tolist(), SECOND.tolist())
    assert found.value == pytest.approx(expected)
    assert interval(_pairs(SECOND), "spearman") == pytest.approx((found.low, found.high))


def test_the_same_seed_draws_the_same_and_another_seed_others():
    items = {"map": FIRST, **_pairs(FIRST)}
    others = {"map": SECOND, **_pairs(SECOND)}
    for name in ("map", "spearman"):
        assert interval(items, name) == interval(items, name, seed=0)
        assert difference(items, others, name) == difference(items, others, name, seed=0)
        assert interval(items, name, seed=1) != interval(items, name, seed=0)
        changed = difference(items, others, name, seed=1)
        assert changed != difference(items, others, name)
        assert changed.value == difference(items, others, name).value


def test_an_interval_follows_the_unit_of_its_values():
    low, high = interval({"map": FIRST}, "map")
    assert interval({"map": 100 * FIRST + 7}, "map") == pytest.approx(
        (100 * low + 7, 100 * high + 7)
    )


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
@pytest.mark.parametrize("size", [0, 1])
def test_fewer_than_two_items_have_no_interval(size):
    items = {"map": FIRST[:size], **_pairs(FIRST[:size], DEGREES[:size])}
    for name in ("map", "spearman"):
        assert interval(items, name) is None
        with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="at least two items"):
            difference(items, items, name)


def test_other_items_are_refused():
    with pytest.raises(ValueError, match="items of the two results are not the same"):
        difference({"map": FIRST}, {"map": FIRST[1:]}, "map")
    for degrees in (DEGREES[::-1], DEGREES + 1, DEGREES[1:]):
        other = _pairs(FIRST[: len(degrees)], degrees)
        with pytest.raises(ValueError, match="pairs of the two results are not the same"):
            difference(_pairs(FIRST), other, "spearman")


def test_holms_correction_by_hand():
    """Sorted 0.01, 0.02, 0.03, 0.04, 0.5, times 5 to 1: 0.05, 0.08, 0.09, 0.08, 0.5; the fourth is
    no less than the third.
    """
    expected = [0.09, 0.05, 0.5, 0.09, 0.08]
    assert holm([0.04, 0.01, 0.5, 0.03, 0.02]) == pytest.approx(expected)
    assert holm([0.4, 0.4, 0.4]) == [1, 1, 1]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []
