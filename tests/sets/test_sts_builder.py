import collections
import itertools

import numpy as np
import pytest
import reference
import scipy.sparse

from dcse_tf.sets import options, sts_set
from dcse_tf.sets.options import BuildStsOptions
from dcse_tf.sets.sts_set import (
    choose_pairs,
    draw_evenly,
    intent_pairs,
    neighbour_pairs,
    unigram_vectors,
)

ALL = ("unigram", "word2vec", "intent")


def _corpus(sentences=60, seed=0):
    """Sentences of four words out of forty, four intents and some without, random vectors."""
    rng = np.random.default_rng(seed)
    words = [rng.choice([f"w{i}" for i in range(40)], 4).tolist() for _ in range(sentences)]
    intents = rng.choice(["", "parcel", "refund", "发票", "coffee"], sentences).tolist()
    return words, intents, rng.normal(size=(sentences, 5))


def _choose(corpus=None, **changes):
    settings = {"strategies": ALL, "count": 30, "max_uses": 3, "seed": 0, **changes}
    return choose_pairs(*(corpus or _corpus()), **settings)


def _keys(pairs):
    return {(pair.first, pair.second) for pair in pairs}


def _overlap(first, second):
    """Cosine of two sets of words."""
    a, b = set(first), set(second)
    return len(a & b) / (len(a) * len(b)) ** 0.5


def _slow_neighbours(rows, count):
    """Every pair in which one is among the `count` nearest of the other, with its similarity."""
    pairs = {}
    for i, row in enumerate(rows):
        products = {j: sum(row * other) for j, other in enumerate(rows) if j != i}
        for j in sorted(products, key=lambda j: -products[j])[:count]:
            if products[j] > 0:
                pairs[min(i, j), max(i, j)] = products[j]
    return pairs


def _spread(similarities):
    """Candidates of these similarities that have no sentence in common."""
    return [(2 * i, 2 * i + 1, "x", value) for i, value in enumerate(similarities)]


def _draw(candidates, count, seed=0, max_uses=1, taken=None, uses=None):
    state = {"taken": set() if taken is None else taken, "uses": {} if uses is None else uses}
    return draw_evenly(candidates, count, seed, max_uses=max_uses, **state)


def test_the_settings_know_the_same_strategies():
    assert options.STRATEGIES == ALL
    assert BuildStsOptions(input=("a",), output_dir="b").strategies == ALL


def test_unigram_vectors_give_the_overlap_of_words_by_hand():
    rows = unigram_vectors([["a", "b", "b"], [], ["b", "c"], ["d"], ["b", "a"], ["a", "b", "c"]])
    # {a, b} and {b, c}: 1 / sqrt(2 * 2); {a, b} and {a, b, c}: 2 / sqrt(2 * 3)
    third = 2 / 6**0.5
    expected = [
        [1, 0, 0.5, 0, 1, third],
        [0, 0, 0, 0, 0, 0],
        [0.5, 0, 1, 0, 0.5, third],
        [0, 0, 0, 1, 0, 0],
        [1, 0, 0.5, 0, 1, third],
        [third, 0, third, 0, third, 1],
    ]
    np.testing.assert_allclose((rows @ rows.T).todense(), expected, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 9, 10])
@pytest.mark.parametrize("sparse", [False, True])
def test_neighbours_equal_a_slow_search_whatever_is_held_at_a_time(monkeypatch, size, sparse):
    monkeypatch.setattr(sts_set, "_ROWS", 3)
    monkeypatch.setattr(sts_set, "_NEIGHBOURS", 2)
    rows = np.random.default_rng(size).normal(size=(size, 4))
    rows[size // 2] = 0
    expected = _slow_neighbours(rows, 2)
    found = neighbour_pairs(scipy.sparse.csr_matrix(rows) if sparse else rows, "word2vec")
    assert [pair[:2] for pair in found] == sorted(expected)
    assert {pair[2] for pair in found} <= {"word2vec"}
    np.testing.assert_allclose([p[3] for p in found], [expected[p[:2]] for p in found])


def test_a_row_of_zeros_has_no_neighbours():
    rows = np.array([[1.0, 0], [0, 0], [0.6, 0.8], [0, 0]])
    assert neighbour_pairs(rows, "word2vec") == [(0, 2, "word2vec", pytest.approx(0.6))]
    assert neighbour_pairs(unigram_vectors([[], ["a"], [], ["b"]]), "unigram") == []


def test_the_pair_goes_into_the_list_once_though_both_are_neighbours():
    pairs = neighbour_pairs(unigram_vectors([["a", "b"], ["b", "a"], ["b"]]), "unigram")
    assert [pair[:2] for pair in pairs] == [(0, 1), (0, 2), (1, 2)]


def test_intent_pairs_are_of_one_intent_and_the_similarity_is_that_of_the_words():
    words, intents, _ = _corpus()
    pairs = intent_pairs(intents, unigram_vectors(words), 500, seed=0)
    assert len(pairs) > 100
    assert len({pair[:2] for pair in pairs}) == len(pairs)
    for first, second, strategy, similarity in pairs:
        assert first < second
        assert intents[first] == intents[second] != ""
        assert strategy == "intent"
        assert similarity == pytest.approx(_overlap(words[first], words[second]))


def test_every_intent_is_as_likely_as_any_other():
    """By pairs, 60 sentences have 1,770 and 200 have 19,900: a share of 8%."""
    intents = ["small"] * 60 + ["large"] * 200 + ["alone"] + [""] * 50
    vectors = unigram_vectors([["a"]] * len(intents))
    pairs = intent_pairs(intents, vectors, 400, seed=0)
    drawn = collections.Counter(intents[first] for first, *_ in pairs)
    assert set(drawn) == {"small", "large"}
    assert 0.4 < drawn["small"] / drawn.total() < 0.6


@pytest.mark.parametrize("intents", [["", "", ""], ["a", "b", "c"], []])
def test_without_two_sentences_of_an_intent_there_are_no_intent_pairs(intents):
    assert intent_pairs(intents, unigram_vectors([["a"]] * len(intents)), 10, seed=0) == []


@pytest.mark.parametrize(("count", "each"), [(25, 5), (50, 10), (5, 1)])
def test_draws_are_even_over_the_spans(count, each):
    # 300 unlike, 12 of the rest a span; the ends are at 0 and 1, so a span is 0.2 wide.
    values = [0.0, 1.0] + [0.1] * 300 + [0.3] * 12 + [0.5] * 12 + [0.7] * 12 + [0.9] * 12
    drawn = collections.Counter(int(pair.similarity * 5) for pair in _draw(_spread(values), count))
    drawn[4] += drawn.pop(5, 0)  # 1 belongs to the last span
    assert drawn == dict.fromkeys(range(5), each)


def test_what_a_span_lacks_comes_from_the_others():
    values = [0.0] + [0.1] * 20 + [0.5] * 2 + [0.9] * 20 + [1.0]
    drawn = [pair.similarity for pair in _draw(_spread(values), 22)]
    assert drawn.count(0.5) == 2
    assert sum(value < 0.2 for value in drawn) == sum(value > 0.8 for value in drawn) == 10
    assert len(_draw(_spread(values), 1000)) == len(values)


def test_equal_similarities_are_one_span():
    assert len(_draw(_spread([0.5] * 8), 6)) == 6
    assert _draw([], 5) == []
    assert _draw(_spread([0.5]), 0) == []


def test_a_taken_pair_and_a_used_sentence_are_passed_over():
    candidates = [(0, 1, "x", 0.1), (0, 2, "x", 0.5), (1, 2, "x", 0.5), (3, 4, "x", 0.9)]
    taken, uses = {(0, 2)}, {3: 2}
    drawn = _draw(candidates, 10, max_uses=2, taken=taken, uses=uses)
    assert _keys(drawn) == {(0, 1), (1, 2)}
    assert taken == {(0, 1), (0, 2), (1, 2)}
    assert uses == {0: 1, 1: 2, 2: 1, 3: 2}


@pytest.mark.parametrize("seed", range(4))
def test_no_pair_is_chosen_twice_and_no_sentence_with_itself(seed):
    # The vectors are made of the words, so that the same pairs are near for both.
    words, intents, _ = _corpus(seed=seed)
    vectors = unigram_vectors(words).toarray()
    pairs = _choose((words, intents, vectors), count=90, max_uses=20, seed=seed)
    assert len(pairs) == 90
    assert len({frozenset(key) for key in _keys(pairs)}) == 90
    assert all(pair.first != pair.second for pair in pairs)


@pytest.mark.parametrize("max_uses", [1, 2, 5])
def test_no_sentence_is_used_more_often_than_allowed(max_uses):
    pairs = _choose(count=1000, max_uses=max_uses)
    uses = collections.Counter(place for pair in pairs for place in (pair.first, pair.second))
    assert max(uses.values()) == max_uses
    # Were every sentence used so often, there would be 60 * max_uses / 2 pairs.
    assert 0.8 * 30 * max_uses < len(pairs) <= 30 * max_uses


@pytest.mark.parametrize(
    ("count", "shares"), [(30, (10, 10, 10)), (31, (10, 10, 11)), (32, (10, 11, 11))]
)
def test_every_strategy_has_an_even_share(count, shares):
    drawn = collections.Counter(pair.strategy for pair in _choose(count=count, max_uses=9))
    assert drawn == dict(zip(ALL, shares))


def test_what_a_strategy_lacks_comes_from_those_after_it():
    words, _, vectors = _corpus()
    intents = ["refund"] * 2 + [""] * 58
    pairs = _choose((words, intents, vectors), strategies=("intent", "unigram"), count=20)
    assert collections.Counter(pair.strategy for pair in pairs) == {"intent": 1, "unigram": 19}


def test_one_strategy_needs_nothing_of_the_others():
    words, _, _ = _corpus()
    pairs = _choose((words, [""] * 60, None), strategies=("unigram",))
    assert {pair.strategy for pair in pairs} == {"unigram"}
    assert len(pairs) == 30


def test_a_similarity_is_that_of_the_strategy():
    words, _, vectors = corpus = _corpus()
    for pair in _choose(corpus):
        if pair.strategy == "word2vec":
            expected = reference.cosine(vectors[pair.first], vectors[pair.second])
        else:
            expected = _overlap(words[pair.first], words[pair.second])
        assert pair.similarity == pytest.approx(expected)


def test_the_length_of_a_word_vector_does_not_matter():
    words, intents, vectors = _corpus()
    lengths = np.random.default_rng(1).uniform(0.1, 10, (60, 1))
    pairs, same = (_choose((words, intents, v), count=60) for v in (vectors, vectors * lengths))
    assert _keys(pairs) == _keys(same)


def test_sentences_without_a_word_vector_are_no_neighbours():
    words, intents, vectors = _corpus()
    vectors[:40] = 0
    pairs = _choose((words, intents, vectors), strategies=("word2vec",), count=30, max_uses=9)
    assert len(pairs) == 30
    assert min(min(key) for key in _keys(pairs)) >= 40


def test_pairs_come_in_random_order():
    pairs = _choose()
    first = [pair.first for pair in pairs]
    assert first not in (sorted(first), sorted(first, reverse=True))
    changes = sum(a.strategy != b.strategy for a, b in itertools.pairwise(pairs))
    assert changes > 8  # in blocks of strategies it would be 2, at random about 20


@pytest.mark.parametrize("strategy", ALL)
def test_the_same_seed_chooses_the_same_and_another_seed_others(strategy):
    pairs = _choose(strategies=(strategy,), seed=1)
    assert pairs == _choose(strategies=(strategy,), seed=1)
    assert _keys(pairs) != _keys(_choose(strategies=(strategy,), seed=2))
