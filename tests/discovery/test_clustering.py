"""Clusters of rows whose groups are known."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from dcse_tf.discovery.clustering import cluster, find_centres, measure_sharpness, place_in_plane


def draw_groups(sizes, dim=16, noise=0.12, seed=0):
    """Rows around as many random directions, float32 `[n, dim]` of length 1, and their groups."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(dim, dim)))[0][: len(sizes)]
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = directions[groups] + noise * rng.normal(size=(len(groups), dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32), groups


@pytest.mark.parametrize("sizes", [[60, 30, 90], [40] * 8, [10, 200], [300, 100, 50, 20, 10]])
def test_groups_and_their_number_are_found(sizes):
    rows, groups = draw_groups(sizes)
    labels = cluster(rows)
    assert adjusted_rand_score(groups, labels) == 1.0
    # The largest first.
    assert np.bincount(labels).tolist() == sorted(sizes, reverse=True)
    np.testing.assert_array_equal(labels, cluster(rows))


def test_rows_beyond_the_tree_go_to_the_nearest(monkeypatch):
    monkeypatch.setattr("dcse_tf.discovery.clustering._IN_TREE", 100)
    monkeypatch.setattr("dcse_tf.discovery.clustering._BLOCK", 33)
    rows, groups = draw_groups([200, 150, 100, 50])
    assert adjusted_rand_score(groups, cluster(rows)) == 1.0


def test_the_order_of_rows_changes_little_and_that_of_dimensions_nothing():
    rows, _ = draw_groups([50, 40, 30], noise=0.2)
    order = np.random.default_rng(1).permutation(len(rows))
    assert adjusted_rand_score(cluster(rows, 3)[order], cluster(rows[order], 3)) > 0.95
    np.testing.assert_array_equal(cluster(rows[:, ::-1], 3), cluster(rows, 3))


@pytest.mark.parametrize(("count", "number"), [(1, 0), (1, 1), (2, 2), (5, 0), (5, 5), (6, 1)])
def test_few_rows(count, number):
    rows = np.eye(8, dtype=np.float32)[:count]
    assert len({*cluster(rows, number).tolist()}) == (number or 1)
    places = place_in_plane(np.eye(8)[:count])
    assert places.shape == (count, 2)
    assert np.abs(places).max() <= 1


def test_sharpness_is_the_silhouette_by_centres():
    rows, _ = draw_groups([9, 7, 6], dim=5, noise=0.5)
    labels = np.append(cluster(rows[:-1], 3), 3)  # the last is alone
    expected = []
    for place, own in enumerate(labels):
        others = [n for n in range(len(rows)) if labels[n] == own and n != place]
        if not others:
            expected.append(0.0)
            continue
        means = [rows[labels == each].astype(np.float64).mean(axis=0) for each in range(4)]
        means[own] = rows[others].astype(np.float64).mean(axis=0)
        far = [1 - mean @ rows[place] / np.linalg.norm(mean) for mean in means]
        a, b = far.pop(own), min(far)
        expected.append((b - a) / max(a, b))
    np.testing.assert_allclose(measure_sharpness(rows, labels), expected, atol=1e-5)
    assert not measure_sharpness(rows, np.zeros(len(rows), int)).any()


def test_centres_are_mean_directions():
    rows = np.array([[1, 0], [0, 1], [0, 1]], np.float32)
    np.testing.assert_allclose(
        find_centres(rows, np.array([0, 0, 1])), [[0.5**0.5, 0.5**0.5], [0, 1]], atol=1e-6
    )
