"""Describes what changed between two encoders on a user's own sentences, without labels.

Except for the raw cosine, no figure depends on the directions of the axes: an encoder and its
rotation have the same neighbours and the same scores.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError
from dcse_tf.evaluation.bootstrap import Difference, difference, interval
from dcse_tf.evaluation.metrics import Evaluation, quantize
from dcse_tf.evaluation.names import PROJECTED
from dcse_tf.evaluation.options import LEAST_SENTENCES, NEIGHBOURS
from dcse_tf.evaluation.report import align

_MOVED = 8  # sentences shown
_QUERIES = 1000  # sentences compared with all others at a time
_SHOWN, _WRITTEN = 36, 200  # most characters of a sentence, in a terminal and in changes.md
_CERTAIN = 0.05
_SCORES = {"r1": "R@1", "mrr": "MRR"}
_WAYS = {"cosine": "", PROJECTED: " behind the projection heads"}


@dataclasses.dataclass(frozen=True)
class ScoreChange:
    """A score of response selection, in percent, with its 95% intervals.

    Attributes:
        name: such as "cosine_r1" or "projected_mrr".
        before, after: the scores of the two encoders.
        before_interval, after_interval: the interval of each score.
        difference: the paired difference on the same samples.
    """

    name: str
    before: float
    after: float
    before_interval: tuple[float, float] | None
    after_interval: tuple[float, float] | None
    difference: Difference


@dataclasses.dataclass(frozen=True)
class Moved:
    """A sentence whose neighbours changed.

    Attributes:
        sentence: the sentence.
        kept: how many of its `NEIGHBOURS` nearest sentences are the same.
        before, after: its nearest sentence.
    """

    sentence: str
    kept: int
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Changes:
    """What changed from one encoder to another; pairs are (before, after).

    Attributes:
        sentences: how many sentences were compared.
        kept: mean percentage of the `NEIGHBOURS` nearest sentences that stayed the same.
        chance_kept: the expected value of `kept` for two unrelated encoders.
        cosine: mean cosine of a sentence's two embeddings, without alignment: a rotation of the
            axes alone lowers it. None if the dimensions differ.
        mean_cosine: mean cosine of two different sentences (anisotropy).
        hub: percentage of the lists of neighbours that contain the most frequent neighbour.
        hub_sentence: that sentence.
        moved: the sentences that kept the fewest neighbours. Ties are sorted by how much closer the
            new nearest sentence is now than the old one, the largest difference first.
        scores: scores of response selection; empty if there are too few sessions.
    """

    sentences: int
    kept: float
    chance_kept: float
    cosine: float | None
    mean_cosine: tuple[float, float]
    hub: tuple[float, float]
    hub_sentence: tuple[str, str]
    moved: tuple[Moved, ...]
    scores: tuple[ScoreChange, ...] = ()


def compare_embeddings(
    sentences: Sequence[str],
    before: np.ndarray,
    after: np.ndarray,
    scores: tuple[ScoreChange, ...] = (),
) -> Changes:
    """Compares two encoders by their embeddings of the same sentences.

    Args:
        sentences: distinct sentences.
        before: their embeddings by the first encoder, float `[sentences, dim]`.
        after: their embeddings by the second encoder, float `[sentences, k]`.
        scores: see `compare_scores`.

    Raises:
        InputError: there are fewer than LEAST_SENTENCES sentences, or an embedding is not finite.
    """
    if len(sentences) < LEAST_SENTENCES:
        raise InputError(
            f"only {len(sentences)} different sentences to compare; expected {LEAST_SENTENCES} or "
            f"more, so that the {NEIGHBOURS} nearest are not all others"
        )
    first, second = normalize(before), normalize(after)
    lists = find_neighbours(first), find_neighbours(second)
    kept = np.array([len(np.intersect1d(*rows)) for rows in zip(*lists, strict=True)])
    hubs = [np.bincount(rows.ravel(), minlength=len(sentences)) for rows in lists]

    same = first.shape == second.shape
    return Changes(
        sentences=len(sentences),
        kept=100.0 * float(kept.mean()) / NEIGHBOURS,
        chance_kept=100.0 * NEIGHBOURS / (len(sentences) - 1),
        cosine=float(np.sum(first * second, axis=1).mean()) if same else None,
        mean_cosine=(_mean_cosine(first), _mean_cosine(second)),
        hub=tuple(100.0 * float(counts.max()) / len(sentences) for counts in hubs),  # type: ignore[arg-type]
        hub_sentence=tuple(sentences[int(counts.argmax())] for counts in hubs),  # type: ignore[arg-type]
        moved=_find_moved(sentences, second, lists, kept),
        scores=scores,
    )


def _mean_cosine(rows: np.ndarray) -> float:
    """Of two different rows of length 1."""
    count = len(rows)
    return float((np.sum(rows.sum(axis=0) ** 2) - np.sum(rows**2)) / (count * (count - 1)))


def find_neighbours(embeddings: np.ndarray) -> np.ndarray:
    """The `NEIGHBOURS` nearest other rows of each row, nearest first; int64 `[rows, NEIGHBOURS]`.

    Args:
        embeddings: float64 `[rows, dim]`, of length 1 each.
    """
    lists = []
    for start in range(0, len(embeddings), _QUERIES):
        # Rounded, so that what float32 loses decides no order; equal ones are in that of the rows.
        cosines = quantize(embeddings[start : start + _QUERIES] @ embeddings.T)
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -np.inf  # its own
        lists.append(np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBOURS])
    return np.concatenate(lists)


def _find_moved(
    sentences: Sequence[str],
    after: np.ndarray,
    lists: tuple[np.ndarray, np.ndarray],
    kept: np.ndarray,
) -> tuple[Moved, ...]:
    old, new = lists[0][:, 0], lists[1][:, 0]
    behind = np.sum(after * (after[new] - after[old]), axis=1)
    order = [row for row in np.lexsort((-behind, kept)) if kept[row] < NEIGHBOURS]
    return tuple(
        Moved(sentences[row], int(kept[row]), sentences[old[row]], sentences[new[row]])
        for row in order[:_MOVED]
    )


def compare_scores(
    before: Evaluation, after: Evaluation, similarity: str = "cosine"
) -> tuple[ScoreChange, ...]:
    """Compares two encoders' response selection by a similarity, on the same samples."""
    return tuple(
        ScoreChange(
            name,
            before.scores[name],
            after.scores[name],
            interval(before.items, name),
            interval(after.items, name),
            difference(before.items, after.items, name),
        )
        for name in (f"{similarity}_{score}" for score in _SCORES)
    )


def describe(changes: Changes) -> str:
    """A summary in one line, without sentences of the corpus."""
    parts = [_describe_score(score) for score in changes.scores if score.name.endswith("_r1")]
    parts.append(
        f"{changes.kept:.0f}% of the {NEIGHBOURS} nearest neighbours kept "
        f"({changes.chance_kept:.0f}% by chance)"
    )
    parts.append("mean cosine of two sentences {:.2f} -> {:.2f}".format(*changes.mean_cosine))
    parts.append("the largest hub in {:.1f}% -> {:.1f}% of the lists".format(*changes.hub))
    return "; ".join(parts)


def _describe_score(score: ScoreChange) -> str:
    change = score.difference
    figures = f"{score.before:.1f} -> {score.after:.1f} (p {change.p_value:.2g})"
    what = f"response selection (R@1){_WAYS[score.name.split('_')[0]]}"
    if change.p_value >= _CERTAIN:
        return f"no significant change in {what}, {figures}"
    return f"{what} {'rose' if change.value > 0 else 'fell'} {figures}"


def list_figures(changes: Changes) -> list[tuple[str, str, str, str]]:
    """The figures as rows of (what, before, after, change); the first row is the header."""
    rows = [("", "before", "after", "change")]
    for score in changes.scores:
        change = score.difference
        way, name = score.name.split("_")
        rows.append(
            (
                f"response selection {_SCORES[name]}{_WAYS[way]}, %",
                _with_interval(score.before, score.before_interval),
                _with_interval(score.after, score.after_interval),
                f"{change.value:+.1f} ({change.low:+.1f} to {change.high:+.1f}), "
                f"p {change.p_value:.2g}",
            )
        )
    for label, (first, second), digits in (
        ("mean cosine of two sentences", changes.mean_cosine, 3),
        (f"largest hub, % of the lists of {NEIGHBOURS} nearest", changes.hub, 1),
    ):
        cells = f"{first:.{digits}f}", f"{second:.{digits}f}", f"{second - first:+.{digits}f}"
        rows.append((label, *cells))
    kept = f"{changes.kept:.1f} (by chance {changes.chance_kept:.1f})"
    rows.append((f"neighbours kept, % of the {NEIGHBOURS} nearest", "", "", kept))
    if changes.cosine is not None:
        label = "cosine of a sentence before and after, raw"
        rows.append((label, "", "", f"{changes.cosine:.3f}"))
    return rows


def _with_interval(value: float, limits: tuple[float, float] | None) -> str:
    return f"{value:.1f}" + (f" ({limits[0]:.1f} to {limits[1]:.1f})" if limits else "")


def list_moved(changes: Changes, most: int) -> list[tuple[str, str, str, str]]:
    """The sentences that moved most, as rows; the first row is the header.

    Args:
        changes: what changed.
        most: longest sentence in characters; longer ones are cut off.
    """
    rows = [("sentence", "nearest before", "nearest after", "kept")]
    for moved in changes.moved:
        texts = (moved.sentence, moved.before, moved.after)
        first, second, third = (_cut(text, most) for text in texts)
        rows.append((first, second, third, f"{moved.kept} of {NEIGHBOURS}"))
    return rows


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def format_text(changes: Changes) -> str:
    """The figures and the sentences that moved most, as tables for a terminal."""
    parts = [align(list_figures(changes), text_columns=1)]
    if changes.moved:
        parts.append("the sentences that moved most:\n" + align(list_moved(changes, _SHOWN), 3))
    return "\n\n".join(parts)


def format_markdown(changes: Changes, title: str, notes: Sequence[str]) -> str:
    """The figures and the sentences that moved most, as a Markdown page.

    Args:
        changes: what changed.
        title: the page's title.
        notes: where the figures come from, a paragraph each.
    """
    hubs = [_cut(text, _WRITTEN) for text in changes.hub_sentence]
    parts = [f"# {title}", f"{describe(changes)}.", *notes, _table(list_figures(changes))]
    parts.append(
        "The largest hub is the sentence that is among the nearest of most others. Before: "
        f"“{hubs[0]}”; after: “{hubs[1]}”. The raw cosine compares embeddings without aligning "
        "them: a rotation of all embeddings makes it fall and changes nothing else."
    )
    if changes.moved:
        parts += ["## The sentences that moved most", _table(list_moved(changes, _WRITTEN))]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
