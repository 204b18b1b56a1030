"""The paper's evaluation sets (section 5.1.2): semantic retrieval, by MAP and MRR over candidates
from BM25, and dialogue semantic textual similarity (STS), by Spearman's correlation.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from dcse_tf.encoder.backend import normalize
from dcse_tf.errors import InputError, name_input
from dcse_tf.evaluation.metrics import Encode, Evaluation, rate, spearman, tied_share
from dcse_tf.files import atomic_file, hash_bytes
from dcse_tf.input_files import BadLines, read_lines

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Query:
    """A query and its candidates, as indices of sentences; the first line has the index 0."""

    sentence: int
    positives: np.ndarray
    negatives: np.ndarray


@dataclasses.dataclass(frozen=True)
class RetrievalSet:
    """A select.txt: its sentences, the queries among them, and each sentence's intent or ""."""

    sentences: list[str]
    queries: list[Query]
    intents: list[str]


def find_half(*texts: str) -> str:
    """The half, "choose" or "report", of a query or a pair, by a hash of its texts in any order.

    The same texts are in the same half of every set, whatever else is in the set.
    """
    first_byte = hash_bytes("\n".join(sorted(texts)).encode())[:2]
    return "report" if int(first_byte, 16) % 2 else "choose"


def _keep(
    path: pathlib.Path, half: str, items: list[T], texts: Sequence[tuple[str, ...]], least: int
) -> list[T]:
    """The queries or pairs of a half, or of "all", given the texts of each."""
    kept = [item for item, own in zip(items, texts) if half in ("all", find_half(*own))]
    if len(kept) < least:
        raise InputError(
            f"{path}: expected at least {least} in the half of `half`={half}, found {len(kept)} "
            f"of its {len(texts)} queries or pairs"
        )
    return kept


def read_retrieval_set(path: pathlib.Path, half: str = "all") -> RetrievalSet:
    """Reads lines of index, sentence, intent, positives and negatives, tab-separated.

    Positives and negatives are comma-separated indices. A sentence without positives or without
    negatives is not a query, because every ranking of its candidates would be equally good. With
    another `half` than all, only its queries are kept; candidates may be of the other one. Raises
    InputError if a line does not have this form, there is no line for an index, a sentence is its
    own candidate or has a candidate twice, or there is no query.
    """
    rows: list[tuple[int, list[str]]] = []
    for number, line in read_lines(path, BadLines()):
        fields = line.split("\t")
        if len(fields) != 5 or fields[0] != str(len(rows)):
            raise InputError(
                f"{path}:{number}: expected index {len(rows)}, sentence, intent, positives, "
                f"negatives, tab-separated; found {len(fields)} field(s) from {fields[0][:20]!r}"
            )
        rows.append((number, fields[1:]))

    queries = []
    for index, (number, (_, _, *lists)) in enumerate(rows):
        problem = f"{path}:{number}: expected comma-separated indices"
        with name_input(problem, ValueError, OverflowError):
            positives, negatives = (
                np.array([int(part) for part in text.split(",") if part.strip()], np.int64)
                for text in lists
            )
        indices = np.concatenate([[index], positives, negatives])
        if not 0 <= indices.min() <= indices.max() < len(rows):
            raise InputError(f"{path}:{number}: an index is not between 0 and {len(rows) - 1}")
        # A query that is its own positive would always be found, and a candidate cannot be both
        # positive and negative.
        found, counts = np.unique(indices, return_counts=True)
        if counts.max() > 1:
            raise InputError(
                f"{path}:{number}: expected the sentence, its positives and its negatives to be "
                f"different lines; index {found[counts.argmax()]} occurs {counts.max()} times"
            )
        if len(positives) and len(negatives):
            queries.append(Query(index, positives, negatives))
    if not queries:
        raise InputError(f"{path}: no query with a positive and a negative")
    sentences, intents = ([columns[place] for _, columns in rows] for place in (0, 1))
    texts = [(sentences[query.sentence],) for query in queries]
    return RetrievalSet(sentences, _keep(path, half, queries, texts, 1), intents)


def write_retrieval_set(path: pathlib.Path, retrieval_set: RetrievalSet) -> None:
    """Writes a file for `read_retrieval_set`, atomically, with ascending indices; sentences and
    intents have neither tabs nor line breaks.
    """
    nothing = np.zeros(0, np.int64)
    lists = {q.sentence: (q.positives, q.negatives) for q in retrieval_set.queries}
    texts = zip(retrieval_set.sentences, retrieval_set.intents, strict=True)
    with atomic_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        for index, columns in enumerate(texts):
            found = lists.get(index, (nothing, nothing))
            indices = [",".join(map(str, sorted(each.tolist()))) for each in found]
            print(index, *columns, *indices, sep="\t", file=file)


def evaluate_retrieval(retrieval_set: RetrievalSet, encode: Encode) -> Evaluation:
    """MAP and MRR of cosine rankings, in percent.

    Returns:
        Scores: map, mrr; chance_map, chance_mrr, those of a random ranking; tie_share, the
        percentage of candidates with the same score as another candidate of their query; and
        queries. Items: one per query.
    """
    embeddings = normalize(encode(retrieval_set.sentences))
    rows = []
    for query in retrieval_set.queries:
        candidates = np.concatenate([query.positives, query.negatives])
        rows.append((embeddings[candidates] @ embeddings[query.sentence], len(query.positives)))
    items: dict[str, np.ndarray] = {}
    for name in ("map", "mrr"):
        items[name], items[f"chance_{name}"] = rate(name, rows)
    items["tie_share"], _ = rate("tie_share", rows)
    means = {name: float(np.mean(values)) for name, values in items.items()}
    return Evaluation({**means, "queries": float(len(rows))}, items)


@dataclasses.dataclass(frozen=True)
class StsSet:
    """Pairs of sentences, `first` and `second`, with degrees of similarity by annotators."""

    degrees: np.ndarray  # float [pairs], from 1 to 5
    first: list[str]
    second: list[str]


def read_sts_set(path: pathlib.Path, half: str = "all") -> StsSet:
    """Reads lines of a degree from 1 to 5 and two sentences, tab-separated; those of a half. Raises
    InputError if a line does not have this form, or there are fewer than two pairs.

    A pair and its reverse are in the same half. Pairs that share one sentence may be in different
    ones. If they were kept together, a pair's half would depend on the other lines, and chains of
    shared sentences could put nearly all pairs into one half.
    """
    degrees: list[float] = []
    pairs: list[tuple[str, ...]] = []
    for number, line in read_lines(path, BadLines()):
        fields = line.split("\t")
        try:
            degree = float(fields[0])
        except ValueError:
            degree = float("nan")
        if len(fields) != 3 or not 1.0 <= degree <= 5.0:
            raise InputError(
                f"{path}:{number}: expected a degree from 1 to 5 and two sentences, "
                f"tab-separated; found {len(fields)} field(s), the first {fields[0][:20]!r}"
            )
        degrees.append(degree)
        pairs.append(tuple(fields[1:]))
    if len(pairs) < 2:
        raise InputError(f"{path}: expected at least two pairs")
    kept = _keep(path, half, list(zip(degrees, *zip(*pairs), strict=True)), pairs, 2)
    of_half, first, second = zip(*kept, strict=True)
    return StsSet(np.array(of_half), list(first), list(second))


def evaluate_sts(sts_set: StsSet, encode: Encode) -> Evaluation:
    """Spearman's correlation of degrees and cosines, in percent.

    Returns:
        Scores: spearman; chance_spearman, which is 0; tie_share, the percentage of pairs with the
        same cosine as another pair; and pairs. Items: degree and cosine, one per pair.
    """
    first, second = np.split(normalize(encode(sts_set.first + sts_set.second)), 2)
    cosines = np.sum(first * second, axis=-1)
    scores = {
        "spearman": 100.0 * float(spearman(sts_set.degrees, cosines)),
        "chance_spearman": 0.0,
        "tie_share": 100.0 * tied_share(cosines),
        "pairs": float(len(cosines)),
    }
    return Evaluation(scores, {"degree": sts_set.degrees, "cosine": cosines})
