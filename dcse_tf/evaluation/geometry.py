"""The geometry of embeddings on the unit sphere: alignment, uniformity and anisotropy.

These figures do not measure a task: a model can have better geometry and rank worse. They describe
the embedding space and show, for example, a narrow cone in which all cosines are near 1.
"""

from collections.abc import Sequence

import numpy as np

NAMES = ("alignment", "uniformity", "anisotropy")
MAX_SENTENCES = 3000

_T = 2.0  # the parameter t of uniformity
_ROWS = 500  # rows of the matrix of all pairs that are computed at a time


def squared_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances between rows: `[.., dim]` and `[.., dim]` to `[..]`."""
    return np.sum((first - second) ** 2, axis=-1)


def describe(
    sentences: Sequence[str], embeddings: np.ndarray, positive_distances: np.ndarray
) -> dict[str, float]:
    """Alignment, uniformity and anisotropy of the embeddings of a set.

    Uniformity and anisotropy are computed over all pairs of distinct sentences, or of MAX_SENTENCES
    of them, drawn with a fixed seed independently of the order of the set.

    Args:
        sentences: the set's sentences; repeated ones count once.
        embeddings: float64 `[sentences, dim]`, rows of length 1 (or 0 for a zero embedding).
        positive_distances: `squared_distances` of the positive pairs, float `[pairs]`.

    Returns:
        alignment: mean squared distance of the positive pairs, 0 is best (Wang and Isola 2020,
            alpha = 2); absent without positive pairs.
        uniformity: logarithm of the mean of exp(-2 d^2), lower is more even, 0 is a single point
            (the same paper, t = 2); absent with fewer than two distinct sentences.
        anisotropy: mean cosine, 0 is best, 1 is a single direction (Ethayarajh 2019); absent with
            fewer than two distinct sentences.
    """
    found = {}
    if len(positive_distances):
        found["alignment"] = float(np.mean(positive_distances))

    place = {text: row for row, text in enumerate(sentences)}
    rows = np.array([place[text] for text in sorted(place)])
    if len(rows) > MAX_SENTENCES:
        drawn = np.random.default_rng(0).choice(len(rows), MAX_SENTENCES, replace=False)
        rows = rows[np.sort(drawn)]
    if len(rows) > 1:
        found["uniformity"], found["anisotropy"] = _all_pairs(embeddings[rows])
    return found


def _all_pairs(embeddings: np.ndarray) -> tuple[float, float]:
    """Uniformity and mean cosine over all pairs of different rows."""
    count = len(embeddings)
    squares = np.sum(embeddings**2, axis=-1)
    potential = cosines = 0.0
    for start in range(0, count, _ROWS):
        products = embeddings[start : start + _ROWS] @ embeddings.T
        distances = squares[start : start + _ROWS, np.newaxis] + squares - 2.0 * products
        potential += float(np.sum(np.exp(-_T * np.maximum(distances, 0.0))))
        cosines += float(np.sum(products))
    pairs = count * (count - 1)
    # Subtract the pairs of a row with itself, each of which added exp(0) = 1 and its squared norm.
    return float(np.log((potential - count) / pairs)), (cosines - float(np.sum(squares))) / pairs
