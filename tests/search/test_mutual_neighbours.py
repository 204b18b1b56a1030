"""Turns alike in like contexts: keys, the nearest of other dialogues, mutual pairs, the best."""

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from dcse_tf.errors import InputError
from dcse_tf.evaluation.nearest import Neighbours
from dcse_tf.search.mutual import (
    Pairs,
    average_rows,
    find_others,
    find_others_by_index,
    keep_best,
    make_keys,
    pair_mutually,
)
from dcse_tf.search.options import ApproximateOptions


def at(*degrees):
    """Vectors of length 1 in a plane."""
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def as_dict(pairs):
    rows = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    return dict(zip(rows, pairs.cosines.tolist(), strict=True))


def pair(keys, dialogue, text, count=1, **more):
    return pair_mutually(find_others(keys, np.array(dialogue), np.array(text), count, **more))


def test_a_key_is_the_turn_and_the_mean_of_those_around_it():
    # unit(east) + 2 x mean of unit(north) and unit(north) = (1, 2).
    embeddings = np.array([[3, 0], [0, 5], [0, 7]], np.float32)
    around = np.array([1]), np.array([2])
    key = make_keys(embeddings, np.zeros(2, np.float32), np.array([0]), around, 2.0)
    np.testing.assert_allclose(key, [[1 / np.sqrt(5), 2 / np.sqrt(5)]], rtol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_keys_equal_the_reference(weight):
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(6, 5)).astype(np.float32)
    mean = average_rows(embeddings)
    np.testing.assert_allclose(mean, embeddings.astype(np.float64).mean(axis=0), rtol=1e-5)
    text, before, after = np.array([0, 1, 2, 5]), np.array([-1, 0, 1, 5]), np.array([1, 2, -1, 3])
    expected = [
        reference.turn_key(embeddings[own], [embeddings[i] for i in others if i >= 0], weight, mean)
        for own, *others in zip(text, before, after, strict=True)
    ]
    keys = make_keys(embeddings, mean, text, (before, after), weight)
    assert keys.dtype == np.float32
    np.testing.assert_allclose(keys, expected, rtol=1e-5, atol=1e-6)


def test_an_encoder_that_has_diverged_is_refused():
    embeddings = np.array([[1.0, np.nan]], np.float32)
    nowhere = np.array([-1])
    with pytest.raises(InputError, match="diverged"):
        make_keys(embeddings, np.zeros(2, np.float32), np.array([0]), (nowhere, nowhere), 1.0)


def test_only_mutual_neighbours_are_a_pair():
    # 10 degrees is nearest to 0 and to 22, and its own nearest is 0.
    keys = at(0, 10, 22)
    found = pair(keys, [0, 1, 2], [0, 1, 2])
    assert as_dict(found) == {(0, 1): pytest.approx(np.cos(np.deg2rad(10)), abs=1e-6)}
    both = pair(keys, [0, 1, 2], [0, 1, 2], count=2)
    assert set(as_dict(both)) == {(0, 1), (0, 2), (1, 2)}


def test_turns_of_one_dialogue_are_none():
    assert set(as_dict(pair(at(0, 1, 9), [0, 0, 1], [0, 1, 2]))) == {(1, 2)}


def test_turns_of_one_text_are_none_and_do_not_stand_in_the_way():
    # The nearest of the first are two turns of its own text.
    assert set(as_dict(pair(at(0, 1, 2, 9), range(4), [0, 0, 0, 1]))) == {(2, 3)}


def test_where_all_are_of_one_dialogue_or_text_there_is_no_pair():
    assert len(pair(at(0, 1), [0, 0], [0, 1])) == 0
    assert len(pair(at(0, 1), [0, 1], [0, 0])) == 0
    assert len(pair(at(0), [0], [0])) == 0


def draw(seed, rows=60, dim=3, kinds=12):
    """Keys of few directions, so that many are equal, some by a hair of float32."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(kinds, dim))[rng.integers(0, kinds, rows)]
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    dialogue, text = rng.integers(0, rows // 4, rows), rng.integers(0, rows // 3, rows)
    return keys.astype(np.float32), dialogue, text


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(1, 7),
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
)
def test_pairs_equal_the_reference_whatever_the_blocks(seed, count, sizes):
    keys, dialogue, text = draw(seed)
    expected = reference.mutual_neighbours(
        keys.astype(np.float64), dialogue, text, [0] * len(keys), count
    )
    found = as_dict(pair(keys, dialogue, text, count, sizes=sizes))
    assert found == pytest.approx(expected, abs=2e-6)


def test_what_is_found_is_told_as_it_goes():
    keys, dialogue, text = draw(0)
    told = []
    find_others(keys, dialogue, text, 2, told.append, (25, 10))
    assert told == [25, 50, 60]


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_approximate_index_finds_the_same_in_a_small_corpus(kind):
    pytest.importorskip("faiss")
    rng = np.random.default_rng(1)
    keys = rng.normal(size=(200, 8))
    keys = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)
    dialogue, text = np.arange(200) // 5, np.arange(200) % 150
    exact = find_others(keys, dialogue, text, 3)
    told = []
    found = find_others_by_index(keys, dialogue, text, 3, kind, ApproximateOptions(), told.append)
    np.testing.assert_array_equal(found.rows, exact.rows)
    np.testing.assert_array_equal(found.cosines, exact.cosines)
    assert told == [200]


def test_pairs_are_there_once_in_the_order_of_their_rows():
    rows = np.array([[3, 2], [2, -1], [0, 1], [0, 1]])
    cosines = np.array([[0.9, 0.8], [0.7, -np.inf], [0.8, 0.7], [0.9, 0.6]])
    found = pair_mutually(Neighbours(rows, cosines))
    assert as_dict(found) == {(0, 2): 0.8, (0, 3): 0.9, (1, 2): 0.7}
    assert list(as_dict(found)) == [(0, 2), (0, 3), (1, 2)]


MUTUAL = Pairs(
    np.array([0, 0, 1, 2, 4]), np.array([3, 5, 4, 5, 5]), np.array([0.5, 0.9, 0.7, 0.7, 0.6])
)


def keep(share=1.0, least=-1.0, text=range(6)):
    distinct, kept = keep_best(MUTUAL, np.array(text), share, least)
    return list(as_dict(distinct)), list(as_dict(kept))


def test_the_most_similar_share_is_kept():
    every = [(0, 5), (1, 4), (2, 5), (4, 5), (0, 3)]
    assert keep() == (every, every)
    for share, count in ((0.2, 1), (0.21, 2), (0.4, 2), (0.0, 0)):
        assert keep(share) == (every, every[:count])


def test_a_least_similarity_is_kept_to_as_well():
    assert keep(least=0.7)[1] == [(0, 5), (1, 4), (2, 5)]
    assert keep(share=0.4, least=0.7)[1] == [(0, 5), (1, 4)]
    assert keep(least=0.95)[1] == []


def test_two_texts_make_one_pair_the_most_similar_one():
    # Turns 0 and 2 say the same, and so do 3 and 5: three of the pairs are of these two texts.
    assert keep(text=[0, 1, 0, 3, 4, 3])[0] == [(0, 5), (1, 4), (4, 5)]
