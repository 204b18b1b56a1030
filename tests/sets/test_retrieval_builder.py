import collections
import dataclasses
import itertools
import os
import pathlib

import numpy as np
import pytest
from rank_bm25 import BM25Okapi

from dcse_tf.data.words import make_splitter
from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import read_retrieval_set, write_retrieval_set
from dcse_tf.sets.options import BuildRetrievalOptions
from dcse_tf.sets.retrieval_set import (
    SELECTIONS,
    Bm25,
    Selection,
    build_retrieval_set,
    sample_balanced,
)

_DATA = pathlib.Path(
    os.environ.get("DCSE_SHARED_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data")
)


def make_labelled(seed, sizes=(30, 25, 20, 4, 1)):
    """Different sentences; an intent's words are drawn more often, and scores tie."""
    rng = np.random.default_rng(seed)
    labelled = {}
    for intent, size in enumerate(sizes):
        held = 0
        while held < size:
            words = [f"w{rng.integers(4) + 3 * intent * (rng.random() < 0.5)}" for _ in range(4)]
            # The last word makes sentences differ, and stands in no other.
            text = " ".join([*words[: rng.integers(1, 5)], f"{intent}-{held}"])
            if text not in labelled:
                labelled[text] = f"intent {intent}"
                held += 1
    pairs = list(labelled.items())
    return [pairs[place] for place in rng.permutation(len(pairs))]


def expected_queries(labelled, kind, candidates, max_positives, max_negatives):
    """The definition, in loops: {query: (positives, negatives)}, and who has none of them."""
    words = [text.split() for text, _ in labelled]
    library = BM25Okapi(words)
    queries, without_positives, without_negatives = {}, [], []
    for query, (_, intent) in enumerate(labelled):
        scores = library.get_scores(words[query])
        others = [place for place in range(len(labelled)) if place != query]
        others.sort(key=lambda place: (-scores[place], place))
        if kind == "top":
            others = others[:candidates]
        positives = [place for place in others if labelled[place][1] == intent]
        negatives = [place for place in others if labelled[place][1] != intent]
        if kind == "hard":
            positives.reverse()  # from below
        positives = positives[:max_positives]
        if max_negatives:
            negatives = negatives[:max_negatives]
        if not positives:
            without_positives.append(query)
        elif not negatives:
            without_negatives.append(query)
        else:
            queries[query] = (sorted(positives), sorted(negatives))
    return queries, len(without_positives), len(without_negatives)


def indices(retrieval_set):
    return {
        query.sentence: (sorted(query.positives.tolist()), sorted(query.negatives.tolist()))
        for query in retrieval_set.queries
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "selection",
    [
        ("top", 100, 30, 0),
        ("top", 20, 5, 0),
        ("top", 20, 5, 4),
        ("top", 2, 30, 0),
        ("hard", 100, 30, 40),
        ("hard", 100, 4, 7),
        ("hard", 100, 1, 0),
    ],
)
def test_candidates_are_those_of_the_definition(seed, selection):
    labelled = make_labelled(seed)
    expected, without_positives, without_negatives = expected_queries(labelled, *selection)
    found, dropped = build_retrieval_set(labelled, str.split, Selection(*selection))
    assert indices(found) == expected
    assert without_positives > 0  # an intent has one sentence
    assert dropped == {
        "without_positives": without_positives,
        "without_negatives": without_negatives,
    }
    assert found.sentences == [text for text, _ in labelled]
    assert found.intents == [intent for _, intent in labelled]


def test_sentences_without_positives_or_negatives_are_candidates_and_no_queries():
    labelled = [("x p", "a"), ("x q", "a"), ("x r", "a"), ("v s", "b"), ("v w", "b")]
    labelled += [("w t", "c"), ("u", "c")]
    found, dropped = build_retrieval_set(labelled, str.split, Selection("top", 2))
    # The two best of each, where nothing is shared the first by place: 0 to 2 find one another;
    # 3 finds 4 and 0; 4 finds 3 and 5; 5 finds 4 and 0; 6 finds 0 and 1.
    assert indices(found) == {3: ([4], [0]), 4: ([3], [5])}
    assert dropped == {"without_positives": 2, "without_negatives": 3}
    assert len(found.sentences) == 7


def test_the_defaults_are_the_paper_s():
    """BM25's first 100 others, of which at most 30 positives (section 5.1.2)."""
    labelled = make_labelled(0, (60, 60, 60))
    found, _ = build_retrieval_set(labelled, str.split, Selection())
    assert indices(found) == expected_queries(labelled, "top", 100, 30, 0)[0]
    sizes = [(len(query.positives), len(query.negatives)) for query in found.queries]
    assert max(positives for positives, _ in sizes) == 30
    assert all(positives + negatives <= 100 for positives, negatives in sizes)


@pytest.mark.parametrize("kind", SELECTIONS)
def test_candidates_are_others_of_the_right_intent_each_once_best_first(kind):
    labelled = make_labelled(4)
    index = Bm25([text.split() for text, _ in labelled])
    found, _ = build_retrieval_set(labelled, str.split, Selection(kind, 50, 6, 9))
    for query in found.queries:
        scores = index.scores(labelled[query.sentence][0].split())
        for group, same, most in ((query.positives, True, 6), (query.negatives, False, 9)):
            assert query.sentence not in group
            assert len(set(group.tolist())) == len(group) <= most
            keys = [(-scores[place], place) for place in group]
            assert keys == sorted(keys)
            intent = labelled[query.sentence][1]
            assert all((labelled[place][1] == intent) == same for place in group)


def test_what_the_flag_offers_and_what_there_is_agree():
    (field,) = (f for f in dataclasses.fields(BuildRetrievalOptions) if f.name == "selection")
    assert set(field.metadata["choices"]) == set(SELECTIONS)
    assert {"top", "hard"} == set(SELECTIONS)
    assert field.default == Selection().kind


def test_progress_counts_every_query():
    calls = []
    labelled = make_labelled(0, (4, 3))
    build_retrieval_set(labelled, str.split, Selection(), lambda *now: calls.append(now))
    assert calls == [(done, 7) for done in range(1, 8)]


@pytest.mark.parametrize(
    ("labelled", "message"),
    [
        ([("a b", "x"), ("a c", "x")], "none of 2 sentences has both"),
        ([("a b", "x"), ("a c", "y")], "none of 2 sentences has both"),
        ([(" ", "x"), ("  ", "y")], "no sentence has a word"),
        ([], "no sentence has a word"),
    ],
)
def test_a_set_without_a_query_is_refused(labelled, message):
    with pytest.raises(InputError, match=message):
        build_retrieval_set(labelled, str.split, Selection())


def make_pairs(*sizes):
    return [
        (f"{intent} {n}", str(intent)) for intent, size in enumerate(sizes) for n in range(size)
    ]


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        ((50, 50, 50), 30),
        ((50, 50, 50), 31),
        ((50, 50, 50), 32),
        ((50,) * 10, 11),
        ((50,) * 10, 95),
        ((2, 3, 60, 70), 45),
        ((2, 3, 60, 70), 46),
        ((1, 5), 6),
        ((1, 5), 5),
        ((4, 4, 4, 4), 3),
        ((7, 8), 100),
    ],
)
def test_intents_are_as_even_as_can_be(sizes, total):
    for seed in range(10):
        drawn, _ = sample_balanced(make_pairs(*sizes), total, seed)
        counts = collections.Counter(intent for _, intent in drawn)
        assert len(set(drawn)) == len(drawn) == min(total, sum(sizes))
        # An intent that has more sentences to give is at most one short of every other.
        largest = max(counts.values())
        for intent, size in enumerate(sizes):
            assert counts[str(intent)] == size or counts[str(intent)] >= largest - 1


def test_zero_draws_all():
    pairs = make_pairs(3, 9, 1)
    drawn, left_out = sample_balanced(pairs, 0, 0)
    assert sorted(drawn) == sorted(pairs)
    assert set(left_out.values()) == {0}
    assert sample_balanced([], 0, 0) == sample_balanced([], 5, 0) == ([], left_out)


def test_repeated_and_doubtful_texts_are_left_out_and_counted():
    labelled = [
        ("Where is it", "a"),
        ("where is IT", "a"),
        ("Where is it", "a"),
        ("yes", "a"),
        ("no", "b"),
        ("YES", "b"),  # under two intents
        ("Straße", "b"),
        ("STRASSE", "b"),
        ("退款", "b"),
    ]
    drawn, left_out = sample_balanced(labelled, 0, 0)
    assert sorted(drawn) == [("Straße", "b"), ("Where is it", "a"), ("no", "b"), ("退款", "b")]
    # "where is IT", "Where is it", "YES" and "STRASSE" say again what was there.
    assert left_out == {"repeated": 4, "under_two_labels": 1, "of_small_labels": 0, "not_drawn": 0}
    drawn, left_out = sample_balanced(labelled, 2, 0)
    assert sorted(intent for _, intent in drawn) == ["a", "b"]
    assert left_out == {"repeated": 4, "under_two_labels": 1, "of_small_labels": 0, "not_drawn": 2}


def test_labels_with_few_sentences_are_left_out_and_counted():
    """Repeats and texts under two labels count for none: 3, 2 and 1 are left."""
    labelled = [("a", "x"), ("b", "x"), ("c", "x"), ("A", "x"), ("d", "y"), ("e", "y")]
    labelled += [("f", "y"), ("f", "z"), ("g", "z")]
    drawn, left_out = sample_balanced(labelled, 0, 0, min_label_sentences=3)
    assert sorted(drawn) == [("a", "x"), ("b", "x"), ("c", "x")]
    assert left_out == {"repeated": 2, "under_two_labels": 1, "of_small_labels": 3, "not_drawn": 0}
    drawn, left_out = sample_balanced(labelled, 3, 0, min_label_sentences=2)
    assert sorted({label for _, label in drawn}) == ["x", "y"]
    assert left_out == {"repeated": 2, "under_two_labels": 1, "of_small_labels": 1, "not_drawn": 2}


def test_the_same_seed_draws_the_same_and_another_seed_others():
    pairs = make_pairs(40, 30)
    draws = [sample_balanced(pairs, 20, seed)[0] for seed in (0, 0, 1)]
    assert draws[0] == draws[1]
    assert set(draws[0]) != set(draws[2])


def test_every_sentence_of_an_intent_may_be_drawn():
    pairs = make_pairs(8, 30)
    held = {pair for seed in range(40) for pair in sample_balanced(pairs, 10, seed)[0]}
    assert held == set(pairs)


@pytest.mark.parametrize("total", [0, 120])
def test_the_order_of_the_input_does_not_order_the_intents(total):
    """Else ties of BM25, which go by place, would prefer some intents."""
    for seed in range(3):
        drawn, _ = sample_balanced(make_pairs(100, 100), total, seed)
        intents = [intent for _, intent in drawn]
        half = len(intents) // 2
        # Of random orders of 60 + 60 or more, fewer than one in a million is outside of these.
        assert 0.25 < intents[:half].count("0") / half < 0.75
        assert sum(a != b for a, b in itertools.pairwise(intents)) > len(intents) / 4
        numbers = [int(text.split()[1]) for text, _ in drawn]
        assert numbers != sorted(numbers)


def test_what_was_built_survives_its_file(tmp_path):
    drawn, _ = sample_balanced(make_labelled(2), 60, 0)
    built, _ = build_retrieval_set(drawn, str.split, Selection("top", 20, 5))
    write_retrieval_set(tmp_path / "select.txt", built)
    again = read_retrieval_set(tmp_path / "select.txt")
    assert (again.sentences, again.intents) == (built.sentences, built.intents)
    assert indices(again) == indices(built) != {}


def test_hard_selection_rebuilds_the_authors_dev_set_of_jddc():
    path = _DATA / "dialoguecse_official" / "jddc" / "dev" / "select.txt"
    if not path.is_file():
        pytest.skip("the authors' dev set of jddc is not here: $DCSE_SHARED_DATA")
    published = read_retrieval_set(path)
    split = make_splitter("jieba")
    words = [split(sentence) for sentence in published.sentences]
    index, intents = Bm25(words), np.array(published.intents)
    selection = Selection("hard", max_positives=30, max_negatives=40)
    shares = []
    for query in published.queries[:300]:
        ranked = index.rank(words[query.sentence])
        ranked = ranked[ranked != query.sentence]
        same = intents[ranked] == intents[query.sentence]
        ours = selection.choose(ranked, same)
        theirs = (query.positives, query.negatives)
        shares.append([np.isin(a, b).mean() for a, b in zip(theirs, ours, strict=True)])
    positives, negatives = np.mean(shares, axis=0)
    assert len(shares) == 300
    assert positives > 0.95
    assert negatives > 0.80
