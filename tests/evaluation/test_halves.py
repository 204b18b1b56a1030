"""A set falls into two halves by its texts alone, and is scored by half."""

import collections
import random

import numpy as np
import pytest

from dcse_tf.errors import InputError
from dcse_tf.evaluation import retrieval
from dcse_tf.evaluation.retrieval import Query, RetrievalSet, StsSet, find_half

HALVES = ("choose", "report")


def make_retrieval_set(count=60):
    """Two intents by turns; sentence 7 stands in it twice."""
    sentences = [f"句子 {i}" for i in range(count)]
    sentences[-1] = sentences[7]
    places = np.arange(count)
    queries = [
        Query(i, np.flatnonzero((places % 2 == i % 2) & (places != i)), places[places % 2 != i % 2])
        for i in range(count)
    ]
    return RetrievalSet(sentences, queries, [""] * count)


def make_sts_set(count=60):
    first, second = [f"a {i}" for i in range(count)], [f"b {i}" for i in range(count)]
    first[-1], second[-1] = second[7], first[7]
    return StsSet(np.arange(count) % 5 + 1.0, first, second)


def halve(folder, whole, half):
    """Reads a half of a set from its file."""
    path = folder / "set.txt"
    if isinstance(whole, RetrievalSet):
        retrieval.write_retrieval_set(path, whole)
        return retrieval.read_retrieval_set(path, half)
    path.write_text("".join(f"{d}\t{a}\t{b}\n" for d, a, b in get_pairs(whole)))
    return retrieval.read_sts_set(path, half)


def get_texts(half):
    return [half.sentences[query.sentence] for query in half.queries]


def get_pairs(half):
    return list(zip(half.degrees.tolist(), half.first, half.second, strict=True))


def test_the_halves_of_a_retrieval_set_are_apart_and_together_the_whole(tmp_path):
    whole = make_retrieval_set()
    halves = [halve(tmp_path, whole, half) for half in HALVES]
    indices = [query.sentence for half in halves for query in half.queries]
    assert sorted(indices) == list(range(60))
    assert all(half.sentences == whole.sentences for half in halves)
    assert not set(get_texts(halves[0])) & set(get_texts(halves[1]))  # not the one that is twice
    for half in halves:  # with all their candidates
        assert all(repr(q) == repr(whole.queries[q.sentence]) for q in half.queries)
    assert repr(halve(tmp_path, whole, "all")) == repr(whole)


def test_the_halves_of_an_sts_set_are_apart_and_together_the_whole(tmp_path):
    whole = make_sts_set()
    halves = [get_pairs(halve(tmp_path, whole, half)) for half in HALVES]
    assert sorted(halves[0] + halves[1]) == sorted(get_pairs(whole))
    texts = [{frozenset(pair[1:]) for pair in half} for half in halves]
    assert not texts[0] & texts[1]  # not the pair that is there the other way round too
    assert get_pairs(halve(tmp_path, whole, "all")) == get_pairs(whole)


def test_another_order_of_the_lines_leaves_the_halves_as_they_are(tmp_path):
    retrieval, sts = make_retrieval_set(), make_sts_set()
    order = random.Random(3).sample(range(60), 60)
    new = {old: place for place, old in enumerate(order)}
    queries = [
        Query(new[q.sentence], *(np.array([new[i] for i in c]) for c in (q.positives, q.negatives)))
        for q in (retrieval.queries[old] for old in order)
    ]
    mixed = RetrievalSet([retrieval.sentences[i] for i in order], queries, [""] * 60)
    pairs = [get_pairs(sts)[i] for i in order]
    turned = StsSet(np.array([p[0] for p in pairs]), [p[2] for p in pairs], [p[1] for p in pairs])
    for half in HALVES:
        texts, more = (get_texts(halve(tmp_path, s, half)) for s in (retrieval, mixed))
        assert collections.Counter(texts) == collections.Counter(more)
        one, other = (get_pairs(halve(tmp_path, s, half)) for s in (sts, turned))
        assert sorted(one) == sorted((degree, b, a) for degree, a, b in other)


def test_a_half_is_what_the_hash_says_for_good():
    """SHA-256 begins 0x53 of 好的, 0xca of a, 0x7e of a, line feed, b (by sha256sum)."""
    assert find_half("好的") == "report"
    assert find_half("a") == "choose"
    assert find_half("a", "b") == find_half("b", "a") == "choose"


def test_a_half_that_is_too_small_is_an_error_that_names_the_file(tmp_path):
    one = RetrievalSet(["a", "b", "c"], [Query(0, np.array([1]), np.array([2]))], [""] * 3)
    with pytest.raises(InputError, match=r"set\.txt: .* 1 in .*`half`=report, found 0 of its 1"):
        halve(tmp_path, one, "report")
    pairs = StsSet(np.array([1.0, 2.0]), ["a", "b"], ["b", "a"])
    with pytest.raises(InputError, match=r"set\.txt: .* 2 in .*`half`=report, found 0 of its 2"):
        halve(tmp_path, pairs, "report")
