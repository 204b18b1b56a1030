"""Clusters of embeddings: Ward's tree of a part, cut where the clusters are sharp and come again,
then k-means over all. Nothing is drawn: the result depends on the rows and their order alone.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import scipy
from scipy.cluster import hierarchy

from dcse_tf.encoder.backend import normalize
from dcse_tf.errors import require
from dcse_tf.progress import Progress

_IN_TREE = 10_000  # rows: their distances are 400 MB, and 20 seconds
_BLOCK = 65_536  # rows whose similarities to all centres are held at a time
_ROUNDS = 5  # of k-means, whose first one moves most rows
_MOST = 300  # clusters, unless more are asked for
_PARTS = 3  # of the rows, in which clusters have to come again
_LEAST_ROWS = 8  # for each cluster, on average
_STEP = 1.15  # between numbers of clusters that are compared


def cluster(rows: np.ndarray, number: int = 0, counts: np.ndarray | None = None) -> np.ndarray:
    """Puts rows in clusters of rows that point in similar directions.

    A tree by Ward's criterion is built over the first 10,000 rows, which should therefore be in no
    particular order, and is cut into `number` clusters. Their centres are moved by rounds of
    spherical k-means over all rows.

    Args:
        rows: float32 `[n, dim]`, each of length 1.
        number: of clusters, at most n; 0 for `choose_number`.
        counts: how often each row occurs, which changes the order of the clusters alone.

    Returns:
        The cluster of each row, int `[n]`: 0 to the number of clusters - 1, the largest first.
    """
    part = rows[:_IN_TREE]
    labels = _nearest(rows, _cut(part, _build_tree(part), number or choose_number(part)))
    for _ in range(_ROUNDS):
        labels = _nearest(rows, find_centres(rows, labels))
    return np.argsort(np.argsort(-np.bincount(labels, counts), kind="stable"))[labels]


def find_centres(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The mean direction of each cluster's rows, float32 `[clusters, dim]`, of length 1."""
    return normalize(_add_up(rows, labels)).astype(np.float32)


def _add_up(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    places = (labels, np.arange(len(rows)))
    members = scipy.sparse.csr_matrix((np.ones(len(rows), np.float32), places))
    return np.asarray(members @ rows)


def _nearest(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The nearest centre of each row, counted without those that are nearest to none."""
    found = [(rows[block] @ centres.T).argmax(axis=1) for block in _blocks(len(rows))]
    return np.unique(np.concatenate(found), return_inverse=True)[1]


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, size, _BLOCK))


def measure_sharpness(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How much nearer each row is to its own cluster than to the next, float `[n]`, -1 to 1.

    With a and b the distances (1 - cosine) to the centre of its own cluster without the row itself
    and to the nearest other centre, that is (b - a) / max(a, b): the silhouette of Rousseeuw (1987)
    by centres. It is 0 for the only row of a cluster, and where there is one cluster.
    """
    sums, sizes = _add_up(rows, labels), np.bincount(labels)
    centres = normalize(sums).astype(np.float32)
    sharpness = np.zeros(len(rows))
    if len(centres) == 1:
        return sharpness
    for block in _blocks(len(rows)):
        part, own = rows[block], labels[block]
        cosines = part @ centres.T
        a = 1 - np.einsum("nd,nd->n", normalize(sums[own] - part), part)
        cosines[np.arange(len(part)), own] = -np.inf
        b = 1 - cosines.max(axis=1)
        found = (b - a) / np.maximum(np.maximum(a, b), 1e-9)
        sharpness[block] = np.where(sizes[own] > 1, found, 0.0)
    return sharpness


def _build_tree(rows: np.ndarray) -> np.ndarray:
    """Ward's merges of rows, as SciPy's `fcluster` takes them; none of a single row."""
    return hierarchy.linkage(rows, "ward") if len(rows) > 1 else np.empty((0, 4))


def _cut(rows: np.ndarray, tree: np.ndarray, number: int) -> np.ndarray:
    """The centres of the tree's clusters after rounds of k-means, `[number or fewer, dim]`."""
    labels = hierarchy.fcluster(tree, number, "maxclust") - 1 if len(tree) else np.zeros(1, int)
    for _ in range(_ROUNDS):
        labels = _nearest(rows, find_centres(rows, labels))
    return find_centres(rows, labels)


def choose_number(rows: np.ndarray) -> int:
    """The number of clusters that are sharp and tell much, among numbers 15% apart.

    Three parts of the rows, each without another third, are clustered, and their centres divide all
    rows. The information that two such divisions share beyond chance, in nats (Vinh et al. 2010),
    grows with the number of clusters until these no longer come again. The highest product of it
    and the sharpness is chosen, both in the mean over the divisions.
    """
    metrics = require("sklearn.metrics.cluster", "discover", "choosing the number of clusters")
    tried = np.unique(np.round(2 * _STEP ** np.arange(100)).astype(int))
    tried = tried[tried <= min(_MOST, len(rows) // _LEAST_ROWS)]
    parts = [rows[np.arange(len(rows)) % _PARTS != left_out] for left_out in range(_PARTS)]
    trees = [_build_tree(part) for part in parts]
    scores = {1: 0.0}
    with Progress("numbers of clusters", len(tried)) as progress:
        for done, number in enumerate(tried.tolist(), start=1):
            found = [_nearest(rows, _cut(*part, number)) for part in zip(parts, trees, strict=True)]
            shared = []
            for pair in itertools.combinations(found, 2):
                table = metrics.contingency_matrix(*pair, sparse=True)
                by_chance = metrics.expected_mutual_information(table, len(rows))
                shared.append(metrics.mutual_info_score(*pair, contingency=table) - by_chance)
            sharpness = [measure_sharpness(rows, labels) for labels in found]
            scores[number] = float(np.mean(sharpness) * np.mean(shared))
            progress.update(done)
    return max(scores, key=scores.__getitem__)


def place_in_plane(centres: np.ndarray) -> np.ndarray:
    """Places for a map on which similar clusters are near, float `[clusters, 2]`, -1 to 1: t-SNE
    (van der Maaten and Hinton 2008); of up to three clusters, on a line.
    """
    count = len(centres)
    if count < 4:
        return np.stack([np.linspace(-1, 1, count), np.zeros(count)], axis=1)
    manifold = require("sklearn.manifold", "discover", "the map of clusters")
    settings = {"metric": "cosine", "init": "random", "random_state": 0}
    places = manifold.TSNE(perplexity=min(30, (count - 1) / 3), **settings).fit_transform(centres)
    places -= places.mean(axis=0)
    return places / np.maximum(np.abs(places).max(axis=0), 1e-9)
