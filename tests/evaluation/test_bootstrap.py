"""Intervals and differences beside hand arithmetic, simulation and slow loops."""

import math

import numpy as np
import pytest
import reference

from dcse_tf.evaluation import bootstrap
from dcse_tf.evaluation.bootstrap import difference, holm, interval

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


def test_intervals_cover_the_true_mean_as_often_as_they_say(few_draws):
    rng = np.random.default_rng(5)
    covered = 0
    for number in range(200):
        low, high = interval({"mrr": rng.normal(50, 10, 40)}, "mrr", seed=number)
        covered += low <= 50 <= high
    assert 0.88 <= covered / 200 <= 0.99


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
    # All of 999 draws are on one side of 0: twice (0 + 1) / (999 + 1); so are, by chance, all of 5
    # differences in one of 16 cases.
    for change, items, p_value in ((2, 20, 0.002), (-2, 20, 0.002), (2, 5, 1 / 16), (-2, 2, 1 / 2)):
        before = np.arange(float(items))
        found = difference({"map": before}, {"map": before + change}, "map")
        assert found.p_value == pytest.approx(p_value)
        assert (found.value, found.low, found.high) == pytest.approx((change, change, change))
    # The same where only 5 of 99 items differ.
    found = difference({"map": np.zeros(99)}, {"map": 1.0 * (np.arange(99) < 5)}, "map")
    assert found.p_value == pytest.approx(1 / 16)


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


def test_the_seed_decides_the_resamples():
    items = {"mrr": np.random.default_rng(0).normal(50, 10, 40)}
    drawn = [bootstrap.interval(items, "mrr", seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
