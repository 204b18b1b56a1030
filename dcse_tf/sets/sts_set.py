"""Builds dialogue STS sets: draws pairs from a corpus, writes annotators' sheets, merges them.

Nearly all pairs drawn at random are dissimilar. So candidate pairs are nearest neighbours by
unigrams or by word vectors, and sentences with the same intent. From each kind, pairs are drawn
evenly over the range of similarity.
"""

import collections
import csv
import dataclasses
import io
import json
import pathlib
from collections.abc import Sequence

import numpy as np
import scipy.sparse
from absl import logging

from dcse_tf.bert.vectors import fold_case, read_word_vectors, train_word_vectors
from dcse_tf.data.words import make_splitter
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError, require
from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.sts import StsSet, write_sts_set
from dcse_tf.files import atomic_directory, atomic_file
from dcse_tf.input_files import UNREADABLE, open_input, resolve_inputs
from dcse_tf.sets.labelled_sentences import read_sentences
from dcse_tf.sets.options import BuildStsOptions, MergeStsOptions

COLUMNS = ("pair", "first", "second", "degree")
DEGREES = (
    "5: the same meaning, in this dialogue either could stand for the other",
    "4: nearly the same; a detail that does not matter differs",
    "3: roughly the same; something that matters differs or is missing",
    "2: not the same, but about the same thing or with the same intent",
    "1: nothing in common",
)


@dataclasses.dataclass(frozen=True)
class Merged:
    """An STS set merged from several sheets.

    Attributes:
        sts_set: the pairs with the median of their degrees.
        alpha: Krippendorff's alpha of the degrees as ordinal values; NaN where it is undefined
            (no pair with two degrees, or all degrees equal).
        sheets: the annotators' files.
        rated: for each annotator, how many of the kept pairs they rated.
        agreement: each annotator's Spearman correlation with the median of the others, or NaN.
        left_out: number of pairs left out for too few degrees.
    """

    sts_set: StsSet
    alpha: float
    sheets: list[str]
    rated: list[int]
    agreement: list[float]
    left_out: int


def write_sheet(path: pathlib.Path, pairs: Sequence[tuple[int, str, str]], order_seed: int) -> None:
    """Writes pairs (number, first, second) with an empty degree, in the sheet's own random order.

    The file begins with a byte-order mark; without it, Excel does not recognize UTF-8.
    """
    order = np.random.default_rng(order_seed).permutation(len(pairs))
    with (
        atomic_file(path) as partial,
        partial.open("w", encoding="utf-8-sig", newline="") as file,
    ):
        sheet = csv.writer(file)
        sheet.writerow(COLUMNS)
        sheet.writerows((*pairs[place], "") for place in order)


def read_sheet(path: pathlib.Path) -> dict[str, tuple[str, str, float]]:
    """Reads an annotator's sheet: pair -> (first, second, degree), NaN for an empty degree.

    Fields are separated by commas or, as some spreadsheets write them, by semicolons.

    Raises:
        InputError: a column is missing, a degree is not 1 to 5, or a pair occurs twice.
    """
    rows: dict[str, tuple[str, str, float]] = {}
    try:
        with open_input(path) as file:
            text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error.reason}; save it as CSV UTF-8") from error
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    first_line = text.split("\n", 1)[0]
    delimiter = ";" if first_line.count(";") > first_line.count(",") else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path}:1: expected the columns {', '.join(COLUMNS)}")
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if not any(row.values()):  # spreadsheets leave empty rows at the end
                continue
            pair = (row["pair"] or "").strip()
            if any(row[name] is None for name in COLUMNS) or not pair:
                raise InputError(f"{where}: expected {', '.join(COLUMNS)}")
            if pair in rows:
                raise InputError(f"{where}: pair {pair} is there twice")
            rows[pair] = (row["first"], row["second"], _parse_degree(where, row["degree"]))
    except csv.Error as error:
        # DictReader counts a line only after reading it; its inner reader has the right number.
        raise InputError(f"{path}:{reader.reader.line_num}: not CSV: {error}") from error
    return rows


def _parse_degree(where: str, text: str) -> float:
    text = text.strip()
    if not text:
        return float("nan")
    try:
        degree = float(text)
    except ValueError:
        degree = 0.0
    if degree not in (1.0, 2.0, 3.0, 4.0, 5.0):
        raise InputError(f"{where}: expected a degree of 1, 2, 3, 4 or 5, found {text[:20]!r}")
    return degree


def merge_sheets(paths: Sequence[pathlib.Path], min_annotators: int) -> Merged:
    """Merges annotators' sheets; each pair gets the median of its degrees.

    Args:
        paths: the sheets, one per annotator.
        min_annotators: pairs with degrees from fewer annotators are left out.

    Raises:
        InputError: a sheet cannot be read, two sheets have different sentences for a pair, or
            fewer than two pairs remain.
    """
    sheets = [read_sheet(path) for path in paths]
    texts: dict[str, tuple[str, str]] = {}
    for path, sheet in zip(paths, sheets, strict=True):
        for pair, (first, second, _) in sheet.items():
            if texts.setdefault(pair, (first, second)) != (first, second):
                raise InputError(f"{path}: pair {pair} has other sentences in another sheet")
    names = sorted(texts, key=lambda name: (len(name), name))
    nothing = ("", "", float("nan"))
    degrees = np.array([[sheet.get(name, nothing)[2] for name in names] for sheet in sheets])
    kept = np.sum(~np.isnan(degrees), axis=0) >= min_annotators
    if kept.sum() < 2:
        raise InputError(
            f"{int(kept.sum())} pair(s) with a degree in at least {min_annotators} of the "
            f"{len(sheets)} sheet(s), `min_annotators`; expected two or more"
        )
    degrees = degrees[:, kept]
    pairs = [texts[name] for name, keep in zip(names, kept, strict=True) if keep]
    return Merged(
        sts_set=StsSet(np.nanmedian(degrees, axis=0), [p[0] for p in pairs], [p[1] for p in pairs]),
        alpha=_alpha(degrees),
        sheets=[str(path) for path in paths],
        rated=np.sum(~np.isnan(degrees), axis=1).tolist(),
        agreement=[_agreement(degrees, annotator) for annotator in range(len(sheets))],
        left_out=int(np.sum(~kept)),
    )


def _alpha(degrees: np.ndarray) -> float:
    given = degrees[~np.isnan(degrees)]
    if np.ptp(given) == 0 or not np.any(np.sum(~np.isnan(degrees), axis=0) > 1):
        return float("nan")
    krippendorff = require("krippendorff", extra="sts", why="the agreement of annotators")
    return float(krippendorff.alpha(degrees, level_of_measurement="ordinal"))


def _agreement(degrees: np.ndarray, annotator: int) -> float:
    others = np.delete(degrees, annotator, axis=0)
    both = ~np.isnan(degrees[annotator]) & np.any(~np.isnan(others), axis=0)
    if both.sum() < 2:
        return float("nan")
    medians = np.nanmedian(others[:, both], axis=0)
    return float(metrics.spearman(degrees[annotator, both], medians))


_NEIGHBOURS = 20  # per sentence; the more distant ones supply pairs of lower degrees
_BINS = 5  # one per degree
_ROWS = 512  # sentences whose similarities to all others are computed at a time


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two sentences by index, the strategy that chose them, and their similarity under it."""

    first: int
    second: int
    strategy: str
    similarity: float


def unigram_vectors(words: Sequence[Sequence[str]]) -> scipy.sparse.csr_matrix:
    """Binary bag-of-words vectors scaled to unit length: sparse float `[sentences, words]`."""
    index: dict[str, int] = {}
    columns = [sorted({index.setdefault(word, len(index)) for word in row}) for row in words]
    starts = np.cumsum([0, *map(len, columns)])
    places = np.array([place for row in columns for place in row], np.int64)
    weights = np.repeat([1.0 / np.sqrt(max(1, len(row))) for row in columns], np.diff(starts))
    return scipy.sparse.csr_matrix((weights, places, starts), shape=(len(words), len(index)))


def neighbour_pairs(
    vectors: scipy.sparse.csr_matrix | np.ndarray, strategy: str
) -> list[tuple[int, int, str, float]]:
    """Pairs each sentence with its nearest neighbours by cosine.

    Args:
        vectors: float `[sentences, dim]`, rows of unit length; a row of zeros has no neighbours.
        strategy: the strategy's name, recorded in each pair.

    Returns:
        (first, second, strategy, cosine) of each pair with a positive cosine, without duplicates.
    """
    pairs = {}
    count = vectors.shape[0]
    wanted = min(_NEIGHBOURS, count - 1)
    for start in range(0, count, _ROWS):
        block = vectors[start : start + _ROWS] @ vectors.T
        similarity = np.asarray(block.todense() if scipy.sparse.issparse(block) else block)
        similarity[np.arange(len(similarity)), start + np.arange(len(similarity))] = -np.inf
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :wanted]
        for row, others in enumerate(nearest.tolist()):
            for other in others:
                value = float(similarity[row, other])
                if value > 0.0:
                    pairs[min(start + row, other), max(start + row, other)] = value
    return [(first, second, strategy, value) for (first, second), value in sorted(pairs.items())]


def intent_pairs(
    intents: Sequence[str], vectors: scipy.sparse.csr_matrix, count: int, seed: int
) -> list[tuple[int, int, str, float]]:
    """Draws random pairs of sentences with the same intent; each intent is equally likely.

    Args:
        intents: the intent of each sentence; "" for none.
        vectors: float `[sentences, dim]`, rows of unit length; their cosine is the similarity.
        count: how many pairs to draw; duplicates are kept once.
        seed: seed of the draws.
    """
    groups: dict[str, list[int]] = {}
    for place, intent in enumerate(intents):
        if intent:
            groups.setdefault(intent, []).append(place)
    choices = [group for _, group in sorted(groups.items()) if len(group) > 1]
    rng = np.random.default_rng(seed)
    drawn = set()
    for _ in range(count if choices else 0):
        group = choices[rng.integers(len(choices))]
        first, second = sorted(rng.choice(group, 2, replace=False).tolist())
        drawn.add((first, second))
    ordered = sorted(drawn)
    rows, columns = ([pair[side] for pair in ordered] for side in (0, 1))
    values = np.asarray(vectors[rows].multiply(vectors[columns]).sum(axis=1)).ravel()
    return [(*pair, "intent", float(v)) for pair, v in zip(ordered, values, strict=True)]


def draw_evenly(
    candidates: Sequence[tuple[int, int, str, float]],
    count: int,
    seed: int,
    *,
    taken: set[tuple[int, int]],
    uses: dict[int, int],
    max_uses: int,
) -> list[Pair]:
    """Draws pairs evenly from five equal ranges of similarity, until each range is exhausted.

    Args:
        candidates: pairs (first, second, strategy, similarity).
        count: how many pairs to draw.
        seed: seed of the draws.
        taken: pairs that must not be drawn; drawn pairs are added.
        uses: sentence -> number of pairs it is in so far; updated.
        max_uses: the most pairs that a sentence may be in.
    """
    rng = np.random.default_rng(seed)
    values = np.array([value for *_, value in candidates])
    if not len(values):
        return []
    edges = np.linspace(values.min(), values.max(), _BINS + 1)[1:-1]
    spans = np.digitize(values, edges)
    queues = [rng.permutation(np.flatnonzero(spans == span)).tolist() for span in range(_BINS)]
    drawn: list[Pair] = []
    while len(drawn) < count and any(queues):
        for queue in queues:
            while queue and len(drawn) < count:
                first, second, strategy, value = candidates[queue.pop()]
                fresh = (first, second) not in taken
                if fresh and max(uses.get(first, 0), uses.get(second, 0)) < max_uses:
                    taken.add((first, second))
                    for place in (first, second):
                        uses[place] = uses.get(place, 0) + 1
                    drawn.append(Pair(first, second, strategy, value))
                    break
    return drawn


def choose_pairs(
    words: Sequence[Sequence[str]],
    intents: Sequence[str],
    vectors: np.ndarray | None,
    *,
    strategies: Sequence[str],
    count: int,
    max_uses: int,
    seed: int,
) -> list[Pair]:
    """Draws pairs with all strategies, in shares as equal as possible and in random order.

    Args:
        words: the words of each sentence.
        intents: the intent of each sentence; "" for none. Used by "intent".
        vectors: float `[sentences, dim]`, mean word vectors. Used by "word2vec".
        strategies: some of "unigram", "word2vec" and "intent".
        count: number of pairs.
        max_uses: the most pairs that a sentence may be in.
        seed: seed of all draws.
    """
    unigrams = unigram_vectors(words)
    candidates = {}
    for strategy in strategies:
        if strategy == "unigram":
            candidates[strategy] = neighbour_pairs(unigrams, strategy)
        elif strategy == "word2vec":
            assert vectors is not None
            candidates[strategy] = neighbour_pairs(normalize(vectors), strategy)
        else:
            candidates[strategy] = intent_pairs(intents, unigrams, 20 * count, seed)

    taken: set[tuple[int, int]] = set()
    uses: dict[int, int] = {}
    pairs: list[Pair] = []
    # A strategy may have fewer pairs than its share; a second round fills the gap from the others.
    turns = [*strategies, *strategies]
    for number, strategy in enumerate(turns):
        left = len(strategies) - number if number < len(strategies) else 1
        pairs += draw_evenly(
            candidates[strategy],
            (count - len(pairs)) // left,
            seed + number,
            taken=taken,
            uses=uses,
            max_uses=max_uses,
        )
    rng = np.random.default_rng(seed)
    return [pairs[place] for place in rng.permutation(len(pairs))]


def build_sts(config: BuildStsOptions) -> dict[str, int]:
    """Reads sentences, chooses pairs, and writes the sheets and a record of the pairs.

    Returns:
        Strategy -> number of pairs.

    Raises:
        InputError: the input cannot be used, or has no intents although `strategies` needs them.
        FileExistsError: the output exists and may not be replaced.
    """
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        texts, intents = _draw_sentences(config)
        split = make_splitter(config.words)
        words = [split(text) for text in texts]
        vectors = _mean_vectors(config, words) if "word2vec" in config.strategies else None
        pairs = choose_pairs(
            words,
            intents,
            vectors,
            strategies=config.strategies,
            count=config.pairs,
            max_uses=config.max_uses,
            seed=config.seed,
        )
        if len(pairs) < config.pairs:
            logging.warning("only %d of %d pairs could be found", len(pairs), config.pairs)
        _write(config, folder, texts, pairs)
    counts = collections.Counter(pair.strategy for pair in pairs)
    return {strategy: counts[strategy] for strategy in config.strategies}


def _draw_sentences(config: BuildStsOptions) -> tuple[list[str], list[str]]:
    """Draws distinct sentences; the intent of each is "" unless it has exactly one."""
    labelled = "intent" in config.strategies or config.is_given("intent_column")
    sentences, _ = read_sentences(config, make_splitter(config.words), labelled)
    first: dict[str, tuple[str, tuple[str, ...]]] = {}
    for text, intents in sentences:
        first.setdefault(text.casefold(), (text, intents))
    different = list(first.values())
    if len(different) < 2:
        raise InputError(f"`input`={','.join(config.input)}: fewer than two different sentences")
    if "intent" in config.strategies and not any(len(i) == 1 for _, i in different):
        raise InputError(
            f"`input`={','.join(config.input)}: no sentence has an intent; give "
            "`strategies`=unigram,word2vec"
        )
    order = np.random.default_rng(config.seed).permutation(len(different))
    drawn = [different[place] for place in order[: config.sentences or None]]
    return [text for text, _ in drawn], [i[0] if len(i) == 1 else "" for _, i in drawn]


def _mean_vectors(config: BuildStsOptions, words: list[list[str]]) -> np.ndarray:
    if config.word_vectors:
        path, *others = resolve_inputs([config.word_vectors], "word_vectors")
        if others:
            raise InputError(
                f"`word_vectors`={config.word_vectors}: matches {1 + len(others)} files; expected "
                "one"
            )
        vectors = fold_case(read_word_vectors(path))
    else:
        vectors = train_word_vectors(words, config.vector_size, config.seed)
    means = np.stack([vectors.mean(row) for row in words])
    known = float(np.mean([word in vectors.rows for row in words for word in row]))
    logging.info("%.1f%% of the words have a vector", 100.0 * known)
    return means


def _write(
    config: BuildStsOptions, folder: pathlib.Path, texts: list[str], pairs: list[Pair]
) -> None:
    rows = [(number, texts[p.first], texts[p.second]) for number, p in enumerate(pairs, start=1)]
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for (number, first, second), pair in zip(rows, pairs, strict=True):
            record = {
                "pair": number,
                "first": first,
                "second": second,
                "strategy": pair.strategy,
                "similarity": round(pair.similarity, 6),
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    guide = ["Give every pair a degree, 1 to 5, in the last column:", "", *DEGREES]
    (folder / "guidelines.txt").write_text("\n".join(guide) + "\n", encoding="utf-8")
    for annotator in range(1, config.annotators + 1):
        write_sheet(folder / f"sheet_{annotator}.csv", rows, config.seed + annotator)


def merge_sts(config: MergeStsOptions) -> Merged:
    """Merges filled sheets and writes the STS set.

    Raises:
        InputError: a sheet cannot be used.
        FileExistsError: the output exists and may not be replaced.
    """
    merged = merge_sheets(resolve_inputs(config.sheets, "sheets"), config.min_annotators)
    write_sts_set(pathlib.Path(config.output), merged.sts_set, config.overwrite)
    return merged
