"""rank-bm25 defines the scores: ours are the same numbers, to the last bit."""

import csv
import math
import os
import pathlib
import re

import numpy as np
import pytest
from rank_bm25 import BM25Okapi

from dcse_tf.sets.retrieval_set import Bm25

_DATA = pathlib.Path(
    os.environ.get("DCSE_SHARED_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data")
)


def assert_equal_to_the_library(sentences, queries, first=100):
    library, ours = BM25Okapi(sentences), Bm25(sentences)
    for query in queries:
        expected = library.get_scores(query)
        scores = ours.scores(query)
        assert scores.dtype == np.float64
        assert np.array_equal(scores, expected)
        order = sorted(range(len(sentences)), key=lambda place: (-expected[place], place))
        ranked = ours.rank(query)
        assert ranked[:first].tolist() == order[:first]
        assert sorted(ranked.tolist()) == list(range(len(sentences)))


def make_corpus(seed):
    """Sentences and queries; few words, so that scores tie; word 0 is almost everywhere."""
    rng = np.random.default_rng(seed)
    frequencies = 1 / np.arange(1, 41)

    def draw(most):
        words = rng.choice(40, size=rng.integers(0, most), p=frequencies / frequencies.sum())
        return [f"w{word}" for word in words]

    sentences = [["w0"] * bool(rng.random() < 0.7) + draw(9) for _ in range(160)]
    sentences += [[]] * 5 + sentences[:10]
    queries = [*sentences[::3], ["w1", "new", "w1", "w0", "w1"], ["new", "newer"], ["w0"] * 3, []]
    queries += [draw(30) for _ in range(20)]
    return [sentences[place] for place in rng.permutation(len(sentences))], queries


@pytest.mark.parametrize("seed", range(5))
def test_scores_and_ranking_are_those_of_the_library(seed):
    sentences, queries = make_corpus(seed)
    # What makes these corpora hard is in them.
    library = BM25Okapi(sentences)
    share = np.mean(["w0" in sentence for sentence in sentences])
    assert share > 0.5
    assert library.idf["w0"] == library.epsilon * library.average_idf
    assert [] in sentences
    assert any(len(set(query)) < len(query) for query in queries)
    assert any(word not in library.idf for query in queries for word in query)
    assert_equal_to_the_library(sentences, queries)


def test_words_that_are_everywhere_count_below_zero_as_in_the_library():
    # Both words are in more than half of the sentences, so the mean idf, the floor, is negative.
    sentences = [["a", "b"], ["a", "b", "b"], ["b", "a"], ["a"], ["b"]]
    assert BM25Okapi(sentences).idf["a"] < 0
    assert_equal_to_the_library(sentences, [["a"], ["b", "b"], ["a", "b", "c"]])


@pytest.mark.parametrize("sentences", [[["a"]], [["a"], []], [["a"], ["a"]], [["a", "a"], ["b"]]])
def test_the_smallest_corpora(sentences):
    assert_equal_to_the_library(sentences, [["a"], ["b"], ["a", "a", "b"], []])


def test_scores_by_hand():
    scores = Bm25([["a", "b"], ["b"], ["c"]]).scores(["a"])
    # idf: ln((3 - 1 + 0.5) / (1 + 0.5)) = ln(5/3). Two words where the mean is 4/3, k1 = 1.5,
    # b = 0.75: 1 (1.5 + 1) / (1 + 1.5 (0.25 + 0.75 * 2 / (4/3))) = 2.5 / 3.0625.
    assert scores == pytest.approx([math.log(5 / 3) * 2.5 / 3.0625, 0, 0])
    assert Bm25([("a", "b"), ("b",), ("c",)]).scores(("a", "x", "a")) == pytest.approx(2 * scores)


def test_equal_scores_rank_by_place():
    index = Bm25([["c"], ["a"], ["b"], ["a"], [], ["c"], ["a"]])
    assert index.rank(["a"]).tolist() == [1, 3, 6, 0, 2, 4, 5]
    assert index.rank(["x"]).tolist() == list(range(7))
    assert index.rank([]).tolist() == list(range(7))


def test_a_query_leaves_the_index_as_it_was():
    sentences, queries = make_corpus(7)
    index = Bm25(sentences)
    first = [index.scores(query) for query in queries]
    index.scores(queries[0])[:] = 1.0
    assert all(np.array_equal(index.scores(q), s) for q, s in zip(queries, first, strict=True))


def test_real_sentences_score_as_in_the_library():
    path = _DATA / "banking77" / "train.csv"
    if not path.is_file():
        pytest.skip("banking77 is not here: $DCSE_SHARED_DATA")
    with path.open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert len(texts) > 9000
    sentences = [re.findall(r"\w+", text.lower()) for text in texts[:: len(texts) // 300]][:300]
    assert len(sentences) == 300
    assert_equal_to_the_library(sentences, sentences)
