import numpy as np
import pytest

from dcse_tf.data.dialogue import Utterance
from dcse_tf.evaluation.options import ChangesOptions, EvaluateOptions
from dcse_tf.evaluation.report import format_table, make_result
from dcse_tf.evaluation.response_selection import (
    HeldOutSession,
    Sample,
    cosine_score,
    evaluate_both_contexts,
    evaluate_response_selection,
    make_samples,
)
from dcse_tf.options import OptionError

# Texts that recur in any case, as they do in customer service.
_COMMON = ["OK", "ok", "Ok", "好的", "Thanks", "THANKS"]
SETTINGS = {
    "candidates": 5,
    "context_turns": 2,
    "max_samples": 0,
    "seed": 0,
}


def _sessions(count: int = 40) -> list[tuple[str, list[str]]]:
    sessions = []
    for number in range(count):
        own = [f"question {number}", f"answer {number}", f"more {number}"]
        turns = [*own[: 1 + number % 3], _COMMON[number % len(_COMMON)], f"回答 {number}"]
        sessions.append((f"s{number}", turns))
    return sessions


def _make(sessions, dialogues=None, **changes):
    """Makes samples of sessions given as (id, texts), and of the dialogues they are pieces of."""
    spoken = [
        HeldOutSession(
            name, tuple(Utterance("x", text) for text in texts), (dialogues or {}).get(name)
        )
        for name, texts in sessions
    ]
    return make_samples(spoken, **{**SETTINGS, **changes})


@pytest.mark.parametrize("seed", range(10))
def test_negatives_never_equal_the_response_or_each_other_whatever_the_case(seed):
    samples = _make(_sessions(), seed=seed)
    assert len(samples) == 40
    for sample in samples:
        assert len(sample.candidates) == 5
        assert len({text.casefold() for text in sample.candidates}) == 5
    # The common texts were drawn as true responses and as negatives, so the rule was needed.
    assert any(sample.candidates[0] in _COMMON for sample in samples)
    assert any(text in _COMMON for sample in samples for text in sample.candidates[1:])


@pytest.mark.parametrize("max_samples", [0, 15])
def test_samples_are_the_same_whatever_the_order_of_the_sessions(max_samples):
    sessions = _sessions()
    shuffled = [sessions[i] for i in np.random.default_rng(1).permutation(len(sessions))]
    expected = _make(sessions, max_samples=max_samples)
    assert _make(shuffled, max_samples=max_samples) == expected
    assert len(expected) == (max_samples or 40)


def test_another_seed_draws_otherwise():
    first, second = _make(_sessions(), seed=0), _make(_sessions(), seed=1)
    assert first == _make(_sessions(), seed=0)
    responses = [{sample.candidates[0] for sample in samples} for samples in (first, second)]
    assert responses[0] != responses[1]
    chosen = [{s.candidates[0].split()[-1] for s in _make(_sessions(), seed=i, max_samples=9)}
              for i in (0, 1)]  # fmt: skip
    assert chosen[0] != chosen[1]


def test_a_sessions_response_does_not_depend_on_the_other_sessions():
    whole, half = _make(_sessions()), _make(_sessions()[:20])
    drawn = {(tuple(s.context), s.candidates[0]) for s in whole}
    assert {(tuple(s.context), s.candidates[0]) for s in half} <= drawn


def _find(sample: Sample, sessions) -> tuple[list[str], int]:
    """The session whose turns the sample has, and the response's place."""
    for _, turns in sessions:
        for place, text in enumerate(turns):
            rest = turns[:place] + turns[place + 1 :]
            if text == sample.candidates[0] and set(sample.context) <= set(rest):
                return turns, place
    raise AssertionError(f"no session has {sample}")


@pytest.mark.parametrize("context_turns", [1, 2, 9])
def test_context_is_what_was_said_before_the_response(context_turns):
    sessions = [(f"s{n}", [f"{n} turn {i}" for i in range(6)]) for n in range(30)]
    places = set()
    for sample in _make(sessions, context_turns=context_turns):
        turns, place = _find(sample, sessions)
        earlier = turns[max(0, place - context_turns) : place]
        later = turns[place + 1 : place + 1 + context_turns]
        assert (sample.context, list(sample.later)) == (earlier, later)
        assert sample.with_later_turns().context == earlier + later
        places.add(place)
    # Any turn can be the response; only the first has nothing before it.
    assert places == set(range(1, 6))


def test_bidirectional_contexts_are_scored_apart_and_each_text_once():
    """An encoder that finds a response by the turn after it alone."""
    sessions = [(f"s{n}", [f"{n} hello", f"{n} said", f"{n} repeats"]) for n in range(12)]
    samples = [
        sample for sample in _make(sessions, candidates=10) if sample.candidates[0].endswith("said")
    ]
    calls = []

    def score(contexts, candidates):
        calls.append(len(contexts))
        found = [any(text.endswith("repeats") for text in context) for context in contexts]
        return np.array([[float(each), *[0.5] * 9] for each in found])

    found = evaluate_both_contexts(samples, score, "cosine")
    assert calls == [2 * len(samples)]
    assert {way: found[way].scores[f"{way}_r1"] for way in found} == {
        "cosine": 0,
        "cosine_bidirectional": 100,
    }
    pieces = _make([(f"s{n}", [f"{n} a", f"{n} b"]) for n in range(12)], candidates=10)
    assert list(evaluate_both_contexts(pieces, score, "cosine")) == ["cosine"]


def _spoken(count: int, roles: str):
    """Sessions in which the roles speak in turn, each with words of its own."""
    return [
        HeldOutSession(
            f"s{n}",
            tuple(
                Utterance(roles[i % len(roles)], f"{roles[i % len(roles)]} {n} {i}")
                for i in range(6)
            ),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("same_role", [True, False])
def test_a_ranking_by_roles_alone_is_chance_if_negatives_share_the_responders_role(same_role):
    settings = {**SETTINGS, "candidates": 10}
    samples = make_samples(_spoken(60, "ab"), **settings, same_role=same_role)

    def by_role(contexts, candidates):
        return np.array([[float(text[0] == row[0][0]) for text in row] for row in candidates])

    found = evaluate_response_selection(samples, by_role)
    scores = found.scores
    assert scores["matching_r1"] == pytest.approx(scores["role_r1"])
    assert (scores["role_r1"] == pytest.approx(10)) == same_role
    assert same_role or scores["role_r1"] > 15
    table = format_table([make_result("response_matching", "test.jsonl", "f", found)])
    assert ("knows only the role of each candidate has R@1" in table) != same_role
    for sample in samples:
        assert sample.of_role == sum(text[0] == sample.responder for text in sample.candidates[1:])


def test_a_role_with_too_few_responses_is_taken_for_a_name():
    spoken = _spoken(60, "ab")
    rare = HeldOutSession("rare", (Utterance("a", "a hello"), Utterance("c", "c supervises")))
    settings = {**SETTINGS, "candidates": 10, "context_turns": 9}
    samples = make_samples([*spoken, rare], **settings)
    (alone,) = (sample for sample in samples if sample.responder == "c")
    assert alone.of_role is None
    assert {text[0] for text in alone.candidates[1:]} == {"a", "b"}
    assert all(sample.of_role == 9 for sample in samples if sample.responder != "c")
    score = evaluate_response_selection(samples, lambda c, r: np.zeros((61, 10))).scores["role_r1"]
    assert score == pytest.approx(10)

    named = [
        HeldOutSession(
            each.session_id,
            tuple(Utterance(f"{each.session_id}{turn.role}", turn.text) for turn in each.turns),
        )
        for each in spoken
    ]
    samples = make_samples(named, **settings)
    scores = evaluate_response_selection(samples, lambda c, r: np.zeros((60, 10))).scores
    assert "role_r1" not in scores
    assert samples == make_samples(named, **settings, same_role=False)


def test_negatives_are_responses_of_other_sessions():
    sessions = [(f"s{n}", [f"{n} turn {i}" for i in range(6)]) for n in range(30)]
    samples = _make(sessions)
    responses = {sample.candidates[0] for sample in samples}
    for sample in samples:
        own = sample.candidates[0].split()[0]
        assert set(sample.candidates[1:]) <= responses
        assert own not in {text.split()[0] for text in sample.candidates[1:]}
    assert len({frozenset(sample.candidates[1:]) for sample in samples}) > 20  # a draw for each


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
    assert len(samples) == len(sessions)
    assert sorted((*s.context, s.candidates[0]) for s in samples) == sorted(
        tuple(turns) for _, turns in sessions
    )
    for sample in samples:
        number = sample.candidates[0].split()[0]
        negatives, heard = ({text.casefold() for text in texts} for texts in
                         (sample.candidates[1:], sample.context))  # fmt: skip
        assert number not in {text.split()[0] for text in negatives}
        assert not negatives & heard
    assert {"OK", "NO"} <= {text for sample in samples for text in sample.candidates[1:]}


def test_too_few_different_responses_give_no_samples():
    assert _make([]) == []
    assert _make(_sessions(4)) == []
    # Many sessions, but two texts in all, one of them in two cases.
    sessions = [(f"s{n}", ["hello", ("ok", "OK")[n % 2], "thanks"]) for n in range(50)]
    assert _make(sessions, candidates=3) == []
    assert len(_make(sessions, candidates=2)) == 50


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (EvaluateOptions, {"model": "m", "response_selection": ("test.jsonl",)}),
        (ChangesOptions, {"before": "a", "after": "b", "data_dir": "data"}),
    ],
)
def test_fewer_sessions_than_candidates_are_refused(options, settings):
    with pytest.raises(OptionError, match="`max_samples`=9: expected at least `candidates`=10, or"):
        options(**settings, max_samples=9)
    assert options(**settings, max_samples=9, candidates=9).max_samples == 9
    assert options(**settings, max_samples=0, candidates=900).candidates == 900


SAMPLES = [Sample(["a"], list("bcdefghijk")), Sample(["l", "m"], list("nopqrstuvw"))]


def test_scores_by_hand():
    # The first is found at once, the second in third place.
    rows = np.array([[1.0, *np.linspace(0, 0.8, 9)], [0.5, 0.9, 0.8, *np.linspace(0, 0.4, 7)]])
    scores = evaluate_response_selection(SAMPLES, lambda contexts, candidates: rows).scores
    recalls = [scores[f"matching_r{k}"] for k in (1, 2, 5)]
    assert recalls == pytest.approx([50, 50, 100])
    assert scores["matching_mrr"] == pytest.approx(100 * (1 + 1 / 3) / 2)
    assert scores["tie_share"] == 0
    assert scores["samples"] == 2


def test_a_constant_scorer_has_exactly_chance():
    scores = evaluate_response_selection(
        SAMPLES, lambda contexts, candidates: np.zeros((2, 10))
    ).scores
    recalls = [scores[f"matching_r{k}"] for k in (1, 2, 5)]
    assert recalls == pytest.approx([10, 20, 50])
    assert scores["matching_mrr"] == pytest.approx(10 * sum(1 / place for place in range(1, 11)))
    for name in ("matching_r1", "matching_r2", "matching_r5", "matching_mrr"):
        assert scores[f"chance_{name}"] == pytest.approx(scores[name])
    assert scores["tie_share"] == 100


def test_recall_at_all_candidates_is_left_out():
    samples = [Sample(["a"], ["b", "c"])]
    scores = evaluate_response_selection(samples, lambda *_: np.array([[1.0, 0.0]])).scores
    assert {name for name in scores if name.startswith("matching_r")} == {"matching_r1"}


VECTORS = {"a": [1, 0], "b": [0, 2], "c": [3, 3], "d": [-1, 0], "e": [0, 0]}


def test_cosine_score_by_hand():
    calls = []

    def encode(*args):
        calls.append(args)
        return np.array([VECTORS[text] for text in args[0]], np.float32)

    scores = cosine_score(encode)([["a", "b"], ["c"]], [["a", "c", "d"], ["d", "e", "b"]])
    # The first context's mean is [0.5, 1], of length sqrt(1.25).
    first = [0.5 / np.sqrt(1.25), 1.5 / np.sqrt(2 * 1.25), -0.5 / np.sqrt(1.25)]
    np.testing.assert_allclose(scores, [first, [-np.sqrt(0.5), 0, np.sqrt(0.5)]], rtol=1e-6)
    ((texts,),) = calls
    assert type(texts) is list
    assert sorted(texts) == sorted(VECTORS)  # each once
    assert all(type(text) is str for text in texts)


def test_a_perfect_encoder_scores_100():
    sessions = [(f"s{n}", [f"{n} turn {i}" for i in range(4)]) for n in range(12)]
    samples = _make(sessions, candidates=10)

    def encode(texts):
        return np.eye(12)[[int(text.split()[0]) for text in texts]]

    scores = evaluate_response_selection(samples, cosine_score(encode)).scores
    assert (scores["matching_r1"], scores["matching_mrr"]) == (100, 100)
