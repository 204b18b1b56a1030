"""Halves of an evaluation set: settings are chosen on one, and what they score is reported on the
other.

Of many settings tried on a set, the best is so in part by chance, and its score there is too high.
On queries or pairs that had no say in the choice it is not.
"""

import dataclasses
import hashlib
import pathlib

import numpy as np

from dcse_tf.errors import InputError
from dcse_tf.evaluation.semantic_retrieval import RetrievalSet
from dcse_tf.evaluation.sts import StsSet

ALL = "all"
CHOOSE = "choose"
REPORT = "report"


def find_half(*texts: str) -> str:
    """The half of a query, or of a pair: a hash of the texts alone, in whichever order.

    So the same texts are in the same half of every set, whatever else stands in it.
    """
    digest = hashlib.sha256("\n".join(sorted(texts)).encode()).digest()
    return REPORT if digest[0] % 2 else CHOOSE


def halve_retrieval_set(path: pathlib.Path, retrieval_set: RetrievalSet, half: str) -> RetrievalSet:
    """The queries of a half, or all; candidates stay as they are, those of a query too.

    Queries of the same text are in the same half.

    Args:
        path: the set's file, for the message.
        retrieval_set: the whole.
        half: "choose", "report" or "all".

    Raises:
        InputError: no query is in this half.
    """
    sentences = retrieval_set.sentences
    queries = [q for q in retrieval_set.queries if half in (ALL, find_half(sentences[q.sentence]))]
    if not queries:
        raise InputError(f"{path}: none of its queries is in the half of --half={half}")
    return dataclasses.replace(retrieval_set, queries=queries)


def halve_sts_set(path: pathlib.Path, sts_set: StsSet, half: str) -> StsSet:
    """The pairs of a half, or all; a pair and its reverse are in the same half.

    Pairs that have one sentence in common may be in different halves. Kept together, a pair's half
    would hang on the other lines: a pair added later could carry others from one half to the other,
    and where sentences are in several pairs, chains of them could carry nearly all into one half.
    A sentence's embedding is then known to both halves, as the candidates of retrieval are.

    Args:
        path: the set's file, for the message.
        sts_set: the whole.
        half: "choose", "report" or "all".

    Raises:
        InputError: fewer than two pairs are in this half.
    """
    pairs = list(zip(sts_set.first, sts_set.second, strict=True))
    places = [i for i, pair in enumerate(pairs) if half in (ALL, find_half(*pair))]
    if len(places) < 2:
        raise InputError(
            f"{path}: expected at least two pairs in the half of --half={half}, "
            f"found {len(places)} of {len(pairs)}"
        )
    first, second = ([column[i] for i in places] for column in (sts_set.first, sts_set.second))
    return StsSet(sts_set.degrees[np.array(places)], first, second)
