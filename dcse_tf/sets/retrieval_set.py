"""Builds semantic retrieval sets from labelled sentences.

The ranking is that of rank-bm25. But rank-bm25 visits every sentence for every word of a query, so
that 10,000 queries on 10,000 sentences would take hours. Here its index only provides idf, lengths
and parameters, and each word visits only the sentences that contain it; others get zero from it.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
from rank_bm25 import BM25Okapi

from dcse_tf.data.words import make_splitter
from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import Query, RetrievalSet, write_retrieval_set
from dcse_tf.files import refuse_existing
from dcse_tf.progress import Progress
from dcse_tf.sets.labelled_sentences import one_label_each, read_sentences
from dcse_tf.sets.options import BuildRetrievalOptions


class Bm25:
    """Scores sentences for queries by BM25 (Robertson and Zaragoza 2009).

    Args:
        sentences: the words of each sentence; at least one must have a word.
    """

    def __init__(self, sentences: Sequence[Sequence[str]]):
        index = BM25Okapi([list(words) for words in sentences])
        places: dict[str, list[int]] = collections.defaultdict(list)
        counts: dict[str, list[int]] = collections.defaultdict(list)
        for place, frequencies in enumerate(index.doc_freqs):
            for word, count in frequencies.items():
                places[word].append(place)
                counts[word].append(count)
        lengths = np.array(index.doc_len)
        self._size = len(sentences)
        self._postings = {}
        for word, where in places.items():
            held = np.array(where)
            count = np.array(counts[word])
            # In rank-bm25's order of operations, because the last bit can decide near ties.
            saturation = index.k1 * (1 - index.b + index.b * lengths[held] / index.avgdl)
            weight = index.idf[word] * (count * (index.k1 + 1) / (count + saturation))
            self._postings[word] = (held, weight)

    def scores(self, query: Sequence[str]) -> np.ndarray:
        """Scores of all sentences, float64 `[sentences]`; repeated query words count repeatedly."""
        scores = np.zeros(self._size)
        for word in query:
            if word in self._postings:
                held, weight = self._postings[word]
                scores[held] += weight
        return scores

    def rank(self, query: Sequence[str]) -> np.ndarray:
        """Indices of all sentences, int64 `[sentences]`, best first; ties are ordered by index."""
        return np.argsort(-self.scores(query), kind="stable")


SELECTIONS = ("top", "hard")


@dataclasses.dataclass(frozen=True)
class Selection:
    """How a query's candidates are chosen from the BM25 ranking of all other sentences.

    Attributes:
        kind: "top", as the paper describes: of the first `candidates` sentences, those with the
            query's intent are positives and the others negatives; the first `max_positives` and
            `max_negatives` are kept. "hard", as in the authors' files: the `max_positives` lowest
            ranked sentences with the query's intent and the `max_negatives` highest ranked ones
            with other intents.
        candidates: number of sentences retrieved ("top").
        max_positives: positives per query, at most.
        max_negatives: negatives per query, at most; 0 for all.
    """

    kind: str = "top"
    candidates: int = 100
    max_positives: int = 30
    max_negatives: int = 0

    def __post_init__(self) -> None:
        if self.kind not in SELECTIONS:
            raise ValueError(f"selection {self.kind!r}: expected one of {', '.join(SELECTIONS)}")

    def choose(self, ranked: np.ndarray, relevant: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Chooses the positives and negatives of a query; returns their indices, best first.

        Args:
            ranked: int `[sentences]`, indices of sentences, best first, without the query.
            relevant: bool `[sentences]`, whether each of them has the query's intent.
        """
        if self.kind == "top":
            ranked, relevant = ranked[: self.candidates], relevant[: self.candidates]
            positives = ranked[relevant][: self.max_positives]
        else:
            positives = ranked[relevant][-self.max_positives :]
        return positives, ranked[~relevant][: self.max_negatives or None]


def sample_balanced(
    labelled: Sequence[tuple[str, str]], sentences: int, seed: int, min_label_sentences: int = 1
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Draws distinct sentences, spread as evenly over the labels as possible.

    Of sentences that differ only in case, the first is kept. A text with two labels is left out,
    because neither can be trusted. The result is shuffled, because BM25 breaks ties by index, and
    the index must not reveal the label.

    Args:
        labelled: (sentence, label) pairs.
        sentences: how many sentences to draw; 0 for all.
        seed: seed of the draw.
        min_label_sentences: labels with fewer distinct sentences are left out.

    Returns:
        The pairs drawn, and reason -> number of sentences left out.
    """
    labels_of: dict[str, set[str]] = collections.defaultdict(set)
    first: dict[str, tuple[str, str]] = {}
    for sentence, label in labelled:
        key = sentence.casefold()
        labels_of[key].add(label)
        first.setdefault(key, (sentence, label))
    groups: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for key, pair in first.items():
        if len(labels_of[key]) == 1:
            groups[pair[1]].append(pair)
    rng = np.random.default_rng(seed)
    shuffled = {
        label: [group[place] for place in rng.permutation(len(group))]
        for label, group in sorted(groups.items())
        if len(group) >= min_label_sentences
    }
    share = _even_share([len(group) for group in shuffled.values()], sentences)
    drawn = [pair for group in shuffled.values() for pair in group[: max(0, share - 1)]]
    # The last sentence of each share is drawn for some labels only, if all would be too many.
    last = [group[share - 1] for group in shuffled.values() if len(group) >= share > 0]
    wanted = (sentences or len(first)) - len(drawn)
    drawn += [last[place] for place in rng.permutation(len(last))[:wanted]]
    places = rng.permutation(len(drawn))
    ambiguous = sum(len(labels) > 1 for labels in labels_of.values())
    enough = sum(map(len, shuffled.values()))
    return [drawn[place] for place in places], {
        "repeated": len(labelled) - len(first),
        "under_two_labels": ambiguous,
        "of_small_labels": len(first) - ambiguous - enough,
        "not_drawn": enough - len(places),
    }


def _even_share(sizes: list[int], total: int) -> int:
    """The smallest limit per group with which the groups have `total` items together, or all."""
    share, largest = 0, max(sizes, default=0)
    if not total or total >= sum(sizes):
        return largest
    while sum(min(size, share) for size in sizes) < total:
        share += 1
    return share


def build_retrieval_set(
    labelled: Sequence[tuple[str, str]],
    words: Callable[[str], list[str]],
    selection: Selection,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[RetrievalSet, dict[str, int]]:
    """Uses each sentence as a query, with candidates from all other sentences.

    Args:
        labelled: (sentence, intent) pairs, all sentences distinct.
        words: splits a text into words.
        selection: how candidates are chosen.
        progress: called with (queries done, all queries).

    Returns:
        The set, and counts of the sentences that are not queries for lack of a positive or a
        negative.

    Raises:
        InputError: no query is left.
    """
    split = [words(sentence) for sentence, _ in labelled]
    if not any(split):
        raise InputError("no sentence has a word")
    intents = np.unique([intent for _, intent in labelled], return_inverse=True)[1]
    index = Bm25(split)
    queries = []
    dropped = {"without_positives": 0, "without_negatives": 0}
    for place, query in enumerate(split):
        ranked = index.rank(query)
        ranked = ranked[ranked != place]
        positives, negatives = selection.choose(ranked, intents[ranked] == intents[place])
        if not len(positives):
            dropped["without_positives"] += 1
        elif not len(negatives):
            dropped["without_negatives"] += 1
        else:
            queries.append(Query(place, positives, negatives))
        progress(place + 1, len(split))
    if not queries:
        raise InputError(
            f"none of {len(split)} sentences has both a positive and a negative candidate; "
            "each intent needs at least two sentences"
        )
    sentences = [sentence for sentence, _ in labelled]
    return RetrievalSet(sentences, queries, [intent for _, intent in labelled]), dropped


_HARD_NEGATIVES = 40  # per query, as in the authors' files


@dataclasses.dataclass(frozen=True)
class Built:
    """What `build_retrieval` built: counts, mean positives and negatives per query, and
    `left_out`, reason -> number of sentences.
    """

    sentences: int
    labels: int
    queries: int
    positives: float
    negatives: float
    left_out: dict[str, int]


def build_retrieval(config: BuildRetrievalOptions) -> Built:
    """Builds a retrieval set from labelled sentences and writes it.

    Raises:
        InputError: the input cannot be used, or gives no query.
        FileExistsError: the output exists and may not be replaced.
    """
    output = pathlib.Path(config.output)
    refuse_existing(output, config.overwrite)
    split = make_splitter(config.words)
    sentences, left_out = read_sentences(config, split)
    labelled, unlabelled = one_label_each(sentences)
    if not labelled:
        raise InputError(
            f"`input`={','.join(config.input)}: no sentence with one label "
            f"({len(sentences)} sentences read)"
        )

    drawn, not_drawn = sample_balanced(
        labelled, config.sentences, config.seed, config.min_label_sentences
    )
    if not drawn and not not_drawn["of_small_labels"]:
        raise InputError(
            f"`input`={','.join(config.input)}: each of {len(labelled)} labelled sentences is also "
            "there with another label"
        )
    if not drawn:
        raise InputError(
            f"`min_label_sentences`={config.min_label_sentences}: no label of the "
            f"{len(labelled)} labelled sentences has so many"
        )
    hard = config.selection == "hard"
    selection = Selection(
        config.selection,
        config.candidates,
        config.max_positives,
        config.max_negatives or (_HARD_NEGATIVES if hard else 0),
    )
    progress = Progress("queries")
    retrieval_set, dropped = build_retrieval_set(drawn, split, selection, progress.update)
    write_retrieval_set(output, retrieval_set)

    return Built(
        sentences=len(drawn),
        labels=len({label for _, label in drawn}),
        queries=len(retrieval_set.queries),
        positives=float(np.mean([len(q.positives) for q in retrieval_set.queries])),
        negatives=float(np.mean([len(q.negatives) for q in retrieval_set.queries])),
        left_out={**left_out, **unlabelled, **not_drawn, **dropped},
    )
