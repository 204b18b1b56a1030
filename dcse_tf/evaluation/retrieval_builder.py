"""Builds a semantic retrieval set from sentences with intents (paper, section 5.1.2)."""

import collections
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from dcse_tf.errors import InputError
from dcse_tf.evaluation.bm25 import Bm25
from dcse_tf.evaluation.semantic_retrieval import Query, RetrievalSet

SELECTIONS = ("top", "hard")


@dataclasses.dataclass(frozen=True)
class Selection:
    """How a query's candidates are chosen from the BM25 ranking of all other sentences.

    Attributes:
        kind: "top", what the paper says: the first `candidates`, relevant if of the query's
            intent, of which the first `max_positives` and `max_negatives` are kept. "hard", what
            the authors' files hold: the `max_positives` lowest of the query's intent and the
            `max_negatives` highest of other intents.
        candidates: for "top": sentences retrieved.
        max_positives: most positives of a query.
        max_negatives: most negatives of a query; 0 for all.
    """

    kind: str = "top"
    candidates: int = 100
    max_positives: int = 30
    max_negatives: int = 0

    def __post_init__(self) -> None:
        if self.kind not in SELECTIONS:
            raise ValueError(f"selection {self.kind!r}: expected one of {', '.join(SELECTIONS)}")

    def choose(self, ranked: np.ndarray, relevant: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positives and negatives, best first.

        Args:
            ranked: sentences, best first, the query not among them.
            relevant: bool, whether each has the query's intent.
        """
        if self.kind == "top":
            ranked, relevant = ranked[: self.candidates], relevant[: self.candidates]
            positives = ranked[relevant][: self.max_positives]
        else:
            positives = ranked[relevant][-self.max_positives :]
        return positives, ranked[~relevant][: self.max_negatives or None]


def sample_balanced(
    labelled: Sequence[tuple[str, str]], sentences: int, seed: int
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Draws different sentences, as many of each intent as there are, up to an even share.

    Of sentences that are equal but for case the first is kept; a text that stands under two
    intents is left out, since its label cannot be trusted. The sentences drawn are in random
    order: ties of BM25 go by place, which must not tell the intent.

    Args:
        labelled: (sentence, intent) pairs.
        sentences: how many to draw; 0 for all.
        seed: the seed.

    Returns:
        The pairs drawn, and counts of what was left out.
    """
    intents_of: dict[str, set[str]] = collections.defaultdict(set)
    first: dict[str, tuple[str, str]] = {}
    for sentence, intent in labelled:
        key = sentence.casefold()
        intents_of[key].add(intent)
        first.setdefault(key, (sentence, intent))
    groups: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for key, pair in first.items():
        if len(intents_of[key]) == 1:
            groups[pair[1]].append(pair)
    rng = np.random.default_rng(seed)
    shuffled = {
        intent: [group[place] for place in rng.permutation(len(group))]
        for intent, group in sorted(groups.items())
    }
    share = _even_share([len(group) for group in shuffled.values()], sentences)
    drawn = [pair for group in shuffled.values() for pair in group[: max(0, share - 1)]]
    # The last sentence of each share: of some intents, if it would be too many of all.
    last = [group[share - 1] for group in shuffled.values() if len(group) >= share > 0]
    wanted = (sentences or len(first)) - len(drawn)
    drawn += [last[place] for place in rng.permutation(len(last))[:wanted]]
    places = rng.permutation(len(drawn))
    ambiguous = sum(len(intents) > 1 for intents in intents_of.values())
    return [drawn[place] for place in places], {
        "repeated": len(labelled) - len(first),
        "under_two_intents": ambiguous,
        "not_drawn": len(first) - ambiguous - len(places),
    }


def _even_share(sizes: list[int], total: int) -> int:
    """The smallest share of each group with which the groups give `total` or all they have."""
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
    """Ranks all other sentences for each one, and keeps what the selection says.

    Args:
        labelled: (sentence, intent) pairs, all sentences different.
        words: a text's words.
        selection: how candidates are chosen.
        progress: called with queries done and all queries.

    Returns:
        The set, in which a sentence without a positive or a negative is no query, and counts of
        those.

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
            "each intent needs two sentences at least"
        )
    sentences = [sentence for sentence, _ in labelled]
    return RetrievalSet(sentences, queries, [intent for _, intent in labelled]), dropped
