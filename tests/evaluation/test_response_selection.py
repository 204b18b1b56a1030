"""Response selection: how samples are drawn, and what their scores are."""

import numpy as np
import pytest
import reference

from dcse_tf.data.dialogue import GivenCandidates, Session, Utterance
from dcse_tf.data.formats.candidates import CandidateGroup
from dcse_tf.evaluation.response_selection import (
    Sample,
    evaluate_scores,
    make_samples,
    sample_group,
    score_by_embeddings,
    score_by_matching,
    score_by_reranker,
)

# Texts that recur in any case, as they do in customer service.
_COMMON = ["OK", "ok", "Ok", "好的", "Thanks", "THANKS"]
SETTINGS = {"candidates": 5, "context_turns": 2, "max_samples": 0, "seed": 0}


def _sessions(count: int = 40) -> list[tuple[str, list[str]]]:
    sessions = []
    for number in range(count):
        own = [f"question {number}", f"answer {number}", f"more {number}"]
        turns = [*own[: 1 + number % 3], _COMMON[number % len(_COMMON)], f"回答 {number}"]
        sessions.append((f"s{number}", turns))
    return sessions


def _make(sessions, dialogues=None, **changes):
    """Makes samples of sessions given as (id, texts), and of the dialogues they are pieces of."""
    given = {name: GivenCandidates(dialogue, ()) for name, dialogue in (dialogues or {}).items()}
    spoken = [
        Session(name, tuple(Utterance("x", text) for text in texts), given.get(name))
        for name, texts in sessions
    ]
    return make_samples(spoken, **{**SETTINGS, **changes})


@pytest.mark.parametrize("seed", range(5))
def test_negatives_are_other_sessions_responses_that_differ_whatever_the_case(seed):
    samples = _make(_sessions(), seed=seed)
    responses = {sample.candidates[0] for sample in samples}
    assert len(samples) == 40
    for sample in samples:
        assert len({text.casefold() for text in sample.candidates}) == len(sample.candidates) == 5
        assert set(sample.candidates[1:]) <= responses
    # The common texts were drawn as true responses and as negatives, so the rule was needed.
    assert any(sample.candidates[0] in _COMMON for sample in samples)
    assert any(text in _COMMON for sample in samples for text in sample.candidates[1:])
    assert len({frozenset(sample.candidates[1:]) for sample in samples}) > 20  # a draw for each


@pytest.mark.parametrize("max_samples", [0, 15])
def test_samples_depend_on_the_seed_and_not_on_the_order_of_the_sessions(max_samples):
    sessions = _sessions()
    shuffled = [sessions[i] for i in np.random.default_rng(1).permutation(len(sessions))]
    expected = _make(sessions, max_samples=max_samples)
    assert _make(shuffled, max_samples=max_samples) == expected
    assert len(expected) == (max_samples or 40)
    other = _make(sessions, max_samples=max_samples, seed=1)
    assert {s.candidates[0] for s in other} != {s.candidates[0] for s in expected}


def test_a_session_s_response_does_not_depend_on_the_other_sessions():
    whole, half = _make(_sessions()), _make(_sessions()[:20])
    drawn = {(tuple(s.context), s.candidates[0]) for s in whole}
    assert {(tuple(s.context), s.candidates[0]) for s in half} <= drawn


@pytest.mark.parametrize("context_turns", [1, 2, 9])
def test_the_context_is_what_was_said_before_the_response(context_turns):
    sessions = [(f"s{n}", [f"{n} turn {i}" for i in range(6)]) for n in range(30)]
    places = set()
    for sample in _make(sessions, context_turns=context_turns):
        number, _, place = sample.candidates[0].split()
        turns, place = sessions[int(number)][1], int(place)
        assert sample.context == turns[max(0, place - context_turns) : place]
        assert list(sample.later) == turns[place + 1 : place + 1 + context_turns]
        places.add(place)
    # Any turn can be the response; only the first has nothing before it.
    assert places == set(range(1, 6))


def _spoken(count: int, roles: str):
    """Sessions in which the roles speak in turn, each with words of its own."""
    turns = [[Utterance(r, f"{r} {n} {i}") for i, r in enumerate(roles * 3)] for n in range(count)]
    return [Session(f"s{number}", tuple(own)) for number, own in enumerate(turns)]


def _evaluate(samples, score):
    """The scores by a function of a candidate and its sample."""
    rows = [np.array([float(score(text, s)) for text in s.candidates]) for s in samples]
    return evaluate_scores(samples, rows, "own").scores


def test_a_ranking_by_roles_alone_is_chance_as_negatives_share_the_responder_s_role():
    samples = make_samples(_spoken(60, "ab"), **{**SETTINGS, "candidates": 10})
    scores = _evaluate(samples, lambda text, sample: text[0] == sample.responder)
    assert scores["own_r1"] == pytest.approx(scores["role_r1"]) == pytest.approx(10)


def test_a_role_with_too_few_responses_is_taken_for_a_name():
    rare = Session("rare", (Utterance("a", "a hello"), Utterance("c", "c supervises")))
    settings = {**SETTINGS, "candidates": 10, "context_turns": 9}
    samples = make_samples([*_spoken(60, "ab"), rare], **settings)
    (alone,) = (sample for sample in samples if sample.responder == "c")
    assert alone.of_role is None
    assert {text[0] for text in alone.candidates[1:]} == {"a", "b"}
    assert all(sample.of_role == 9 for sample in samples if sample.responder != "c")
    assert _evaluate(samples, lambda *_: 0)["role_r1"] == pytest.approx(10)


def test_pieces_of_dialogues_end_with_their_response_and_negatives_are_of_other_dialogues():
    """Every dialogue of five turns is three pieces, and every second one says "ok" before it."""
    sessions, dialogues = [], {}
    for number in range(12):
        turns = ["Ok" if number % 2 else "no", *(f"{number} turn {i}" for i in range(1, 5))]
        for end in (2, 3, 5):
            sessions.append((f"{number}:{end}", turns[:end]))
            dialogues[f"{number}:{end}"] = f"d{number}"
    sessions += [("a", ["hello", "OK"]), ("b", ["hello", "NO"])]
    samples = _make(sessions, dialogues, context_turns=9, candidates=20)
    said = sorted((*s.context, s.candidates[0]) for s in samples)
    assert said == sorted(tuple(turns) for _, turns in sessions)
    for sample in samples:
        negatives = {text.casefold() for text in sample.candidates[1:]}
        assert sample.candidates[0].split()[0] not in {text.split()[0] for text in negatives}
        assert not negatives & {text.casefold() for text in sample.context}


def test_too_few_different_responses_give_no_samples():
    assert _make([]) == []
    assert _make(_sessions(4)) == []
    # Many sessions, but two texts in all, one of them in two cases.
    sessions = [(f"s{n}", ["hello", ("ok", "OK")[n % 2], "thanks"]) for n in range(50)]
    assert _make(sessions, candidates=3) == []
    assert len(_make(sessions, candidates=2)) == 50


VECTORS = {"a": [1, 0], "b": [0, 2], "c": [3, 3], "d": [-1, 0], "e": [0, 0]}


def test_cosines_by_hand_with_earlier_turns_and_with_later_ones_too():
    calls = []

    def encode(texts):
        calls.append(sorted(texts))
        return np.array([VECTORS[text] for text in texts], np.float32)

    samples = [Sample(["a", "b"], ["a", "c", "d"], later=("c",)), Sample(["c"], ["d", "e", "b"])]
    scores = score_by_embeddings(samples, encode, {})
    assert calls == [sorted(VECTORS)]  # each once
    # The first context's mean is [0.5, 1], of length sqrt(1.25); with c, [4/3, 5/3].
    first = [0.5 / np.sqrt(1.25), 1.5 / np.sqrt(2 * 1.25), -0.5 / np.sqrt(1.25)]
    second = [-np.sqrt(0.5), 0, np.sqrt(0.5)]
    np.testing.assert_allclose(scores["cosine"], [first, second], rtol=1e-6)
    both = [4 / np.sqrt(41), 9 / np.sqrt(82), -4 / np.sqrt(41)]
    np.testing.assert_allclose(scores["cosine_bidirectional"], [both, second], rtol=1e-6)
    assert list(score_by_embeddings(samples[1:], encode, {})) == ["cosine"]


def test_a_matching_scores_both_contexts_in_one_call_for_each_number_of_candidates():
    calls = []

    def match(contexts, candidates):
        calls.append((contexts, candidates))
        return np.array([[len(c) + len(t) for t in row] for c, row in zip(contexts, candidates)])

    samples = [Sample(["a"], ["x", "xx"], later=("b",)), Sample(["a", "c"], ["x", "xx", "xxx"])]
    scores = score_by_matching(samples, match)
    assert [row.tolist() for row in scores["matching"]] == [[2, 3], [3, 4, 5]]
    assert [row.tolist() for row in scores["matching_bidirectional"]] == [[3, 4], [3, 4, 5]]
    assert len(calls) == 2


def test_a_re_ranker_sees_earlier_turns_and_the_speakers_if_all_are_known():
    def score(contexts, candidates, roles, responders):
        seen.append((contexts, roles, responders))
        return [np.zeros(len(group)) for group in candidates]

    seen = []
    known = Sample(["a"], ["b", "c"], roles=["x"], responder="y", later=("d",))
    assert list(score_by_reranker([known], score)) == ["reranker"]
    score_by_reranker([known, Sample(["a"], ["b", "c"])], score)
    assert seen == [([["a"]], [["x"]], ["y"]), ([["a"], ["a"]], None, None)]


def test_scores_of_drawn_samples_by_hand():
    samples = [Sample(["a"], list("bcdefghijk")), Sample(["l", "m"], list("nopqrstuvw"))]
    # The first is found at once, the second in third place.
    rows = [np.r_[1, np.linspace(0, 0.8, 9)], np.r_[0.5, 0.9, 0.8, np.linspace(0, 0.4, 7)]]
    scores = evaluate_scores(samples, rows, "own").scores
    assert [scores[f"own_r{k}"] for k in (1, 2, 5)] == pytest.approx([50, 50, 100])
    assert scores["own_mrr"] == pytest.approx(100 * (1 + 1 / 3) / 2)
    assert (scores["tie_share"], scores["samples"]) == (0, 2)
    constant = _evaluate(samples, lambda *_: 1)
    assert [constant[f"own_r{k}"] for k in (1, 2, 5)] == pytest.approx([10, 20, 50])
    assert constant["own_mrr"] == pytest.approx(10 * sum(1 / place for place in range(1, 11)))
    names = ("own_r1", "own_r2", "own_r5", "own_mrr")
    assert all(constant[f"chance_{name}"] == pytest.approx(constant[name]) for name in names)
    assert "own_r2" not in _evaluate([Sample(["a"], ["b", "c"])], lambda *_: 1)  # of two candidates


def make_group(labels, name="g", context=("hi", "lo")):
    turns = tuple(Utterance("ab"[place % 2], text) for place, text in enumerate(context))
    texts = tuple(f"{name} {place}" for place in range(len(labels)))
    return CandidateGroup(name, turns, texts, tuple(labels), "a")


def evaluate_groups(groups, table):
    samples = [sample_group(group) for group in groups]
    rows = [np.array([table[text] for text in sample.candidates]) for sample in samples]
    return evaluate_scores(samples, rows, "own", grouped=True)


def draw_groups(seed, sizes, several=True):
    rng = np.random.default_rng(seed)
    groups, table = [], {}
    for number, size in enumerate(sizes):
        labels = np.zeros(size, int)
        labels[rng.permutation(size)[: 1 + several * rng.integers(0, size - 1)]] = 1
        groups.append(make_group(labels.tolist(), f"g{number}"))
        # Few values, so that there are ties; and few candidates, whose orders can all be tried.
        table.update({text: int(rng.integers(0, 4)) for text in groups[-1].candidates})
    return groups, table


def test_a_group_s_sample_has_the_speakers_and_the_true_responses_first():
    sample = sample_group(make_group([0, 1, 0, 1], context=("q", "w", "e")))
    assert sample == Sample(["q", "w", "e"], ["g 1", "g 3", "g 0", "g 2"], 2, ["a", "b", "a"], "a")
    cut = sample_group(make_group([0, 1], context=("q", "w", "e")), turns=2)
    assert (cut.context, cut.roles) == (["w", "e"], ["b", "a"])


def test_scores_of_groups_by_hand():
    groups = [make_group([0, 0, 1], "x"), make_group([1, 0, 0], "y")]
    # The true response of x is third, that of y first; the first other one of x is above it.
    table = {"x 0": 3, "x 1": 2, "x 2": 1, "y 0": 5, "y 1": 4, "y 2": 0}
    scores = evaluate_groups(groups, table).scores
    assert [scores[f"own_{name}"] for name in ("r1", "r2", "r1_of_2")] == [50, 50, 50]
    assert scores["own_mrr"] == scores["own_map"] == pytest.approx(100 * (1 / 3 + 1) / 2)
    assert "own_r5" not in scores
    assert (scores["chance_own_r1"], scores["chance_own_r2"]) == pytest.approx((100 / 3, 200 / 3))
    assert scores["chance_own_r1_of_2"] == 50
    assert (scores["groups"], scores["candidates"], scores["groups_of_3"]) == (2, 3, 2)
    # Of two, the other one is the first in the file; of a pair, it is the same as R@1.
    of_two = evaluate_groups([make_group([0, 1, 0])], {"g 0": 1, "g 1": 2, "g 2": 3}).scores
    assert of_two["own_r1_of_2"] == 100
    assert "own_r1_of_2" not in evaluate_groups([make_group([0, 1])], {"g 0": 1, "g 1": 2}).scores


@pytest.mark.parametrize("seed", range(4))
def test_scores_of_groups_equal_the_reference(seed):
    groups, table = draw_groups(seed, [6, 4, 6, 5, 6])
    found = evaluate_groups(groups, table)
    expected = {name: [] for name in ("r1", "r2", "r5", "map", "mrr")}
    for group in groups:
        values = [table[text] for text in group.candidates]
        relevant = [label == 1 for label in group.labels]
        expected["map"].append(reference.average_precision(values, relevant))
        expected["mrr"].append(reference.reciprocal_rank(values, relevant))
        for k in (1, 2, 5) if len(values) == 6 else ():
            orders = list(reference.rankings(values))
            hits = [sum(relevant[place] for place in order[:k]) for order in orders]
            expected[f"r{k}"].append(sum(hits) / len(hits) / sum(relevant))
    for name, values in expected.items():
        np.testing.assert_allclose(found.items[f"own_{name}"], 100 * np.array(values))
        assert found.scores[f"own_{name}"] == pytest.approx(100 * np.mean(values))
    assert found.scores["candidates"] == 6


def test_a_constant_score_of_groups_is_chance():
    groups, table = draw_groups(0, [10, 10, 7, 10])
    scores = evaluate_groups(groups, dict.fromkeys(table, 0.25)).scores
    names = [name for name in scores if name.startswith("own_")]
    assert len(names) == 6
    assert all(scores[name] == pytest.approx(scores[f"chance_{name}"]) for name in names)


def test_recalls_are_of_the_size_that_most_groups_have_and_of_two_the_larger():
    for sizes, expected in (([3, 4, 3], 3), ([3, 4], 4), ([4, 3, 5, 5, 3, 3], 3)):
        found = evaluate_groups(*draw_groups(1, sizes, several=False))
        assert found.scores["candidates"] == expected
        assert len(found.items["own_r1"]) == sizes.count(expected)
        assert len(found.items["own_map"]) == len(sizes)
