"""Builds dialogue STS sets: draws pairs from a corpus, writes annotators' sheets, merges them.

Nearly all pairs drawn at random are dissimilar. So candidate pairs are nearest neighbours by
unigrams or by word vectors, and sentences with the same intent (paper, section 5.1.2). From each
kind, pairs are drawn evenly over the range of similarity.
"""

import collections
import csv
import io
import itertools
import json
import pathlib
from collections.abc import Sequence

import numpy as np
import scipy.sparse
from absl import logging

from dcse_tf.bert.vectors import train_word_vectors
from dcse_tf.data.words import make_splitter
from dcse_tf.encoder.unit_length import normalize
from dcse_tf.errors import InputError, require
from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.sts import StsSet, write_sts_set
from dcse_tf.files import atomic_directory
from dcse_tf.input_files import UNREADABLE, open_input, resolve_inputs
from dcse_tf.sets.labelled_sentences import read_sentences
from dcse_tf.sets.set_options import BuildStsOptions, MergeStsOptions

COLUMNS = ("pair", "first", "second", "degree")
_GUIDELINES = """Give every pair a degree, 1 to 5, in the last column:

5: the same meaning, in this dialogue either could stand for the other
4: nearly the same; a detail that does not matter differs
3: roughly the same; something that matters differs or is missing
2: not the same, but about the same thing or with the same intent
1: nothing in common
"""
_NEIGHBOURS = 20  # per sentence; the more distant ones supply pairs of lower degrees
_RANGES = 5  # of similarity, one per degree
_ROWS = 512  # sentences whose similarities to all others are computed at a time
_MOST_USES = 3  # pairs that a sentence may be in
_VECTOR_SIZE = 100

# Two sentences by index, the strategy that chose them, and their similarity under it.
Pair = tuple[int, int, str, float]


def pair_neighbours(vectors: scipy.sparse.csr_matrix | np.ndarray, strategy: str) -> list[Pair]:
    """Pairs each sentence with its nearest neighbours by cosine.

    Args:
        vectors: float `[sentences, dim]`, rows of unit length; a row of zeros has no neighbours.
        strategy: the strategy's name, recorded in each pair.

    Returns:
        The pairs with a positive cosine, without duplicates.
    """
    pairs = {}
    count = vectors.shape[0]
    for start in range(0, count, _ROWS):
        block = vectors[start : start + _ROWS] @ vectors.T
        similarity = np.asarray(block.todense() if scipy.sparse.issparse(block) else block)
        similarity[np.arange(len(similarity)), start + np.arange(len(similarity))] = -np.inf
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, : min(_NEIGHBOURS, count - 1)]
        for row, others in enumerate(nearest.tolist()):
            for other in others:
                if similarity[row, other] > 0.0:
                    both = min(start + row, other), max(start + row, other)
                    pairs[both] = float(similarity[row, other])
    return [(*both, strategy, value) for both, value in sorted(pairs.items())]


def pair_intents(
    intents: Sequence[str], vectors: scipy.sparse.csr_matrix, count: int, rng: np.random.Generator
) -> list[Pair]:
    """Draws random pairs of sentences with the same intent; each intent is equally likely.

    Args:
        intents: the intent of each sentence; "" for none.
        vectors: float `[sentences, dim]`, rows of unit length; their cosine is the similarity.
        count: how many pairs to draw; duplicates are kept once.
        rng: draws them.
    """
    groups: dict[str, list[int]] = collections.defaultdict(list)
    for place, intent in enumerate(intents):
        if intent:
            groups[intent].append(place)
    choices = [group for _, group in sorted(groups.items()) if len(group) > 1]
    drawn = set()
    for _ in range(count if choices else 0):
        group = choices[rng.integers(len(choices))]
        drawn.add(tuple(sorted(rng.choice(group, 2, replace=False).tolist())))
    return [
        (first, second, "intent", float(vectors[first].multiply(vectors[second]).sum()))
        for first, second in sorted(drawn)
    ]


def choose_pairs(
    words: Sequence[Sequence[str]], intents: Sequence[str], count: int, seed: int
) -> list[Pair]:
    """Draws pairs by the strategies in turn, each evenly over its range of similarity.

    The strategies are "unigram", "word2vec" and, if sentences have intents, "intent".

    Args:
        words: the words of each sentence.
        intents: the intent of each sentence; "" for none.
        count: number of pairs; fewer are drawn if there are no more.
        seed: seed of all draws.
    """
    rng = np.random.default_rng(seed)
    index: dict[str, int] = {}
    columns = [sorted({index.setdefault(word, len(index)) for word in row}) for row in words]
    ends = np.cumsum([0, *map(len, columns)])
    places = np.array([place for row in columns for place in row], np.int64)
    weights = np.repeat([1.0 / np.sqrt(max(1, len(row))) for row in columns], np.diff(ends))
    unigrams = scipy.sparse.csr_matrix((weights, places, ends), shape=(len(words), len(index)))
    vectors = train_word_vectors(words, _VECTOR_SIZE, seed)
    means = normalize(np.stack([vectors.mean(row) for row in words]))
    candidates = [
        pair_neighbours(unigrams, "unigram"),
        pair_neighbours(means, "word2vec"),
        pair_intents(intents, unigrams, 20 * count, rng),
    ]

    orders = []
    for pairs in filter(None, candidates):
        values = np.array([value for *_, value in pairs])
        edges = np.linspace(values.min(), values.max(), _RANGES + 1)[1:-1]
        ranges = np.digitize(values, edges)
        # Of a range with few pairs, each comes early as often as one of a range with many.
        even = 1.0 / np.bincount(ranges)[ranges]
        order = rng.choice(len(pairs), len(pairs), replace=False, p=even / even.sum())
        orders.append([pairs[place] for place in order])

    chosen: dict[tuple[int, int], Pair] = {}
    uses: collections.Counter[int] = collections.Counter()
    for pair in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*orders))):
        both = pair[:2]
        if len(chosen) == count:
            break
        if both not in chosen and max(uses[place] for place in both) < _MOST_USES:
            chosen[both] = pair
            uses.update(both)
    return list(chosen.values())


def build_sts(config: BuildStsOptions) -> str:
    """Reads sentences, chooses pairs, and writes the sheets and a record of the pairs.

    Returns:
        How many pairs there are by which strategy, in one line.

    Raises:
        InputError: the input cannot be used.
        FileExistsError: the output exists and may not be replaced.
    """
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        split = make_splitter("auto")
        sentences, _ = read_sentences(config, split, config.is_given("intent_column"))
        first: dict[str, tuple[str, tuple[str, ...]]] = {}
        for text, intents in sentences:
            first.setdefault(text.casefold(), (text, intents))
        different = list(first.values())
        if len(different) < 2:
            raise InputError(f"`input`={','.join(config.input)}: has fewer than two sentences")
        order = np.random.default_rng(config.seed).permutation(len(different))
        drawn = [different[place] for place in order[: config.sentences or None]]
        texts = [text for text, _ in drawn]
        labels = [intents[0] if len(intents) == 1 else "" for _, intents in drawn]
        pairs = choose_pairs([split(text) for text in texts], labels, config.pairs, config.seed)
        if len(pairs) < config.pairs:
            logging.warning("only %d of %d pairs could be found", len(pairs), config.pairs)

        rows = [(n, texts[one], texts[other]) for n, (one, other, *_) in enumerate(pairs, start=1)]
        with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
            for row, (*_, strategy, similarity) in zip(rows, pairs, strict=True):
                record = dict(zip(COLUMNS, row)) | {"strategy": strategy, "similarity": similarity}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        (folder / "guidelines.txt").write_text(_GUIDELINES, encoding="utf-8")
        for annotator in range(1, config.annotators + 1):
            write_sheet(folder / f"sheet_{annotator}.csv", rows, config.seed + annotator)
    counts = collections.Counter(strategy for _, _, strategy, _ in pairs)
    told = ", ".join(f"{count} by {strategy}" for strategy, count in sorted(counts.items()))
    return f"{len(pairs)} pairs: {told}"


# The annotators' sheets


def write_sheet(path: pathlib.Path, pairs: Sequence[tuple[int, str, str]], order_seed: int) -> None:
    """Writes pairs (number, first, second) with an empty degree, in the sheet's own random order.

    The file begins with a byte-order mark; without it, Excel does not recognize UTF-8.
    """
    order = np.random.default_rng(order_seed).permutation(len(pairs))
    with path.open("w", encoding="utf-8-sig", newline="") as file:
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
    header = text.split("\n", 1)[0]
    delimiter = ";" if header.count(";") > header.count(",") else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        if not set(COLUMNS) <= set(reader.fieldnames or ()):
            raise InputError(f"{path}:1: expected the columns {', '.join(COLUMNS)}")
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if not any(row.values()):  # spreadsheets leave empty rows at the end
                continue
            pair, text = (row["pair"] or "").strip(), (row["degree"] or "").strip()
            if not pair or row["degree"] is None:
                raise InputError(f"{where}: expected {', '.join(COLUMNS)}")
            if pair in rows:
                raise InputError(f"{where}: pair {pair} is there twice")
            try:
                degree = float(text or "nan")
            except ValueError:
                degree = 0.0
            if text and degree not in (1.0, 2.0, 3.0, 4.0, 5.0):
                raise InputError(
                    f"{where}: expected a degree of 1, 2, 3, 4 or 5, found {text[:20]!r}"
                )
            rows[pair] = (row["first"], row["second"], degree)
    except csv.Error as error:
        # DictReader counts a line only after reading it; its inner reader has the right number.
        raise InputError(f"{path}:{reader.reader.line_num}: not CSV: {error}") from error
    return rows


def merge_sts(config: MergeStsOptions) -> str:
    """Merges annotators' sheets and writes the STS set; each pair gets the median of its degrees.

    Returns:
        What was merged, in a few lines: of each sheet how many of the kept pairs it rates and its
        Spearman correlation with the median of the others; and Krippendorff's alpha of the degrees
        as ordinal values. Both are nan where they are undefined.

    Raises:
        InputError: a sheet cannot be read, two sheets have different sentences for a pair, or
            fewer than two pairs remain.
        FileExistsError: the output exists and may not be replaced.
    """
    paths = resolve_inputs(config.sheets, "sheets")
    sheets = [read_sheet(path) for path in paths]
    texts: dict[str, tuple[str, str]] = {}
    for path, sheet in zip(paths, sheets, strict=True):
        for pair, (first, second, _) in sheet.items():
            if texts.setdefault(pair, (first, second)) != (first, second):
                raise InputError(f"{path}: pair {pair} has other sentences in another sheet")
    names = sorted(texts, key=lambda name: (len(name), name))
    nothing = ("", "", float("nan"))
    degrees = np.array([[sheet.get(name, nothing)[2] for name in names] for sheet in sheets])
    kept = np.sum(~np.isnan(degrees), axis=0) >= config.min_annotators
    if kept.sum() < 2:
        raise InputError(
            f"`min_annotators`={config.min_annotators}: {kept.sum()} pair(s) with a degree in so "
            f"many of {len(sheets)} sheet(s); expected two or more"
        )
    degrees = degrees[:, kept]
    rated = ~np.isnan(degrees)
    pairs = [texts[name] for name, keep in zip(names, kept, strict=True) if keep]

    alpha = float("nan")
    if np.ptp(degrees[rated]) > 0 and (rated.sum(axis=0) > 1).any():
        krippendorff = require("krippendorff", extra="sts", why="the agreement of annotators")
        alpha = float(krippendorff.alpha(degrees, level_of_measurement="ordinal"))
    lines = []
    for annotator, path in enumerate(paths):
        others = np.delete(degrees, annotator, axis=0)
        both = rated[annotator] & (~np.isnan(others)).any(axis=0)
        agreement = float("nan")
        if both.sum() > 1:
            medians = np.nanmedian(others[:, both], axis=0)
            agreement = float(metrics.spearman(degrees[annotator, both], medians))
        given = rated[annotator].sum()
        lines.append(f"{path}: {given} degrees, correlation with the others {agreement:.3f}")
    sts_set = StsSet(np.nanmedian(degrees, axis=0), *(list(side) for side in zip(*pairs)))
    write_sts_set(pathlib.Path(config.output), sts_set, config.overwrite)
    lines.append(f"Krippendorff's alpha (ordinal): {alpha:.3f}")
    lines.append(f"{len(pairs)} pairs, {np.sum(~kept)} left out for too few degrees")
    return "\n".join(lines)
