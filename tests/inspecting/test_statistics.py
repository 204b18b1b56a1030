import collections
import dataclasses
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from dcse_tf.data.dialogue import Session, Utterance
from dcse_tf.inspecting import statistics
from dcse_tf.inspecting.statistics import Lengths, StatisticsCollector

TEXTS = [
    "Where is my parcel", "WHERE is my parcel", "where is my parcel?", "Straße 5", "STRASSE 5",
    "ok", "OK", "Ok", "好的", "什么时候 发货", "好的 谢谢", "...", "I want a refund for it",
]  # fmt: skip
INTENTS = ["refund", "ask time", "退货"]


def draw_sessions(seed):
    """Few texts and short sessions, so that both come again; 0 to 3 intents a turn."""
    rng = random.Random(seed)
    sessions = []
    for number in range(rng.randint(1, 40)):
        turns = []
        for _ in range(rng.randint(1, rng.choice([2, 6]))):
            intents = tuple(rng.sample(INTENTS, rng.randint(0, 3)))
            turns.append(Utterance(rng.choice(["user", "agent"]), rng.choice(TEXTS), intents))
        sessions.append(Session(f"s{number}", tuple(turns)))
    return sessions


def talk(*texts):
    return Session("s", tuple(Utterance("user", text) for text in texts))


def count_tokens(texts):
    """Words and two marks; unknown are those with a character that is no letter."""
    words = [text.split() for text in texts]
    unknown = [sum(not word.isalpha() for word in row) for row in words]
    return np.array([len(row) + 2 for row in words]), np.array(unknown)


def collect(sessions, counter=count_tokens, chunk=4096):
    collector = StatisticsCollector(str.split, counter, chunk)
    for session in sessions:
        collector.add(session)
    return collector.finish()


def count_plainly(sessions):
    """What `Statistics` says, from lists and Counters."""
    turns = [turn for session in sessions for turn in session.turns]
    folded = [turn.text.casefold() for turn in turns]
    whole = [tuple(turn.text.casefold() for turn in session.turns) for session in sessions]
    frequent = collections.Counter(folded).most_common()
    frequent.sort(key=lambda item: (-item[1], item[0]))

    def lengths(values):
        return {"counts": dict(collections.Counter(values)), "total": sum(values)}

    return {
        "sessions": len(sessions),
        "turns": len(turns),
        "speakers": dict(collections.Counter(turn.role for turn in turns)),
        "intents": dict(collections.Counter(name for turn in turns for name in turn.intents)),
        "labelled_turns": len([turn for turn in turns if turn.intents]),
        "turns_a_session": lengths([len(session.turns) for session in sessions]),
        "words_an_utterance": lengths([len(turn.text.split()) for turn in turns]),
        "characters_an_utterance": lengths([len(turn.text) for turn in turns]),
        "tokens_an_utterance": lengths([len(turn.text.split()) + 2 for turn in turns]),
        "unknown_tokens": sum(not word.isalpha() for turn in turns for word in turn.text.split()),
        "repeated_utterances": sum(folded.count(text) > 1 for text in folded) / len(turns),
        "repeated_sessions": sum(whole.count(texts) > 1 for texts in whole) / len(sessions),
        "frequent_utterances": [item for item in frequent[:20] if item[1] > 1],
    }


@pytest.mark.parametrize("seed", range(25))
def test_counts_are_those_of_lists_and_counters(seed):
    sessions = draw_sessions(seed)
    found = collect(sessions)
    expected = count_plainly(sessions)
    for name in ("repeated_utterances", "repeated_sessions"):
        expected[name] = pytest.approx(expected[name], abs=1e-12)
    assert dataclasses.asdict(found) == expected
    for counts in (found.speakers, found.intents):
        assert list(counts.values()) == sorted(counts.values(), reverse=True)
    assert list(found.words_an_utterance.counts) == sorted(found.words_an_utterance.counts)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_sessions_changes_nothing(seed):
    sessions = draw_sessions(seed)
    shuffled = random.Random(seed).sample(sessions, len(sessions))
    assert collect(shuffled) == collect(sessions)


def test_a_turn_of_several_intents_counts_for_each_and_once_as_labelled():
    turns = [("a", "b"), (), ("a",), ("c", "a")]
    session = Session("s", tuple(Utterance("user", f"t{i}", x) for i, x in enumerate(turns)))
    found = collect([session])
    assert found.intents == {"a": 3, "b": 1, "c": 1}
    assert found.labelled_turns == 3


def test_repetitions_ignore_case_but_nothing_else():
    # 3 of 7 turns: ok, OK, Ok. "ok." and "o k" are other texts.
    found = collect([talk("ok", "OK"), talk("Ok", "ok."), talk("o k", "好", "的")])
    assert found.repeated_utterances == pytest.approx(3 / 7, abs=1e-12)
    assert found.frequent_utterances == [("ok", 3)]


def test_a_repeated_session_has_the_same_texts_in_the_same_order():
    # The first two of five; then turned round, cut short, and parted elsewhere.
    sessions = [talk("a", "b c"), talk("A", "B C"), talk("b c", "a"), talk("a"), talk("a b", "c")]
    assert collect(sessions).repeated_sessions == pytest.approx(2 / 5, abs=1e-12)
    assert collect([talk("a", "b")]).repeated_sessions == 0.0


def test_frequent_utterances_are_exact_though_candidates_were_forgotten(monkeypatch):
    monkeypatch.setattr(statistics, "_CANDIDATES", 10)
    cold = (f"cold {number}" for number in range(10_000))
    sessions = [talk("late", next(cold), next(cold))]
    for number in range(200):
        hot = [f"hot {step}" for step in (1, 2, 3) if number % step == 0]
        sessions.append(talk(*hot, next(cold), next(cold)))
    # Forgotten after its first turn, it comes back twice: three turns in all, two as a candidate.
    sessions += [talk("late", "LATE")]
    # Of 200 sessions every one, every second, every third (0, 3, ... 198: 67).
    expected = [("hot 1", 200), ("hot 2", 100), ("hot 3", 67), ("late", 3)]
    assert collect(sessions).frequent_utterances == expected


def test_at_most_twenty_frequent_utterances_are_named_ties_by_name():
    sessions = [talk(f"{number:02d}") for number in range(29, -1, -1)] * 2 + [talk("29")]
    named = collect(sessions).frequent_utterances
    assert named == [("29", 3), *((f"{number:02d}", 2) for number in range(19))]


@pytest.mark.parametrize("chunk", [1, 3, 7, 10_000])
def test_tokens_are_counted_over_the_borders_of_chunks(chunk):
    sessions = draw_sessions(3)
    calls = []

    def counter(texts):
        calls.append(list(texts))
        return count_tokens(texts)

    found = collect(sessions, counter, chunk)
    expected = count_plainly(sessions)
    assert dataclasses.asdict(found)["tokens_an_utterance"] == expected["tokens_an_utterance"]
    assert found.unknown_tokens == expected["unknown_tokens"] > 0
    # Every text once, in order, as it stands, and none of the calls is empty.
    texts = [turn.text for session in sessions for turn in session.turns]
    assert [text for call in calls for text in call] == texts
    assert len(texts) > 50
    assert (len(calls) > 1) == (chunk < 10_000)
    assert all(calls)


def test_without_a_tokenizer_there_are_no_tokens():
    sessions = draw_sessions(1)
    found = collect(sessions, None, chunk=2)
    assert found.tokens_an_utterance is None
    assert found.unknown_tokens == 0
    with_tokens = collect(sessions)
    without = {"tokens_an_utterance": None, "unknown_tokens": 0}
    assert dataclasses.replace(with_tokens, **without) == found


def test_no_sessions_make_statistics_of_nothing():
    found = collect([])
    assert (found.sessions, found.turns, found.frequent_utterances) == (0, 0, [])
    assert (found.repeated_utterances, found.repeated_sessions) == (0.0, 0.0)
    assert found.turns_a_session == Lengths({}, 0)


def test_lengths_by_hand():
    # Six things: 2, 2, 2, 5, 5, 9 long; 25 in all.
    lengths = Lengths.of(collections.Counter([5, 2, 9, 2, 5, 2]))
    assert lengths.counts == {2: 3, 5: 2, 9: 1}
    assert lengths.total == 25
    assert lengths.mean() == pytest.approx(25 / 6, abs=1e-12)
    above = {0: 1.0, 1: 1.0, 2: 0.5, 4: 0.5, 5: 1 / 6, 8: 1 / 6, 9: 0.0, 100: 0.0}
    assert {n: lengths.share_above(n) for n in above} == pytest.approx(above, abs=1e-12)
    # Half of six is the third; 0.51 needs the fourth, 5/6 the fifth, 0.84 the last.
    quantiles = {0.5: 2, 0.51: 5, 0.83: 5, 0.84: 9, 1.0: 9}
    assert {share: lengths.quantile(share) for share in quantiles} == quantiles


def test_lengths_of_nothing_are_zero():
    nothing = Lengths.of(collections.Counter())
    assert (nothing.mean(), nothing.share_above(0), nothing.quantile(0.5)) == (0.0, 0.0, 0)


@pytest.mark.parametrize("share", ["0.5", "0.95", "0.99", "0.995"])
def test_a_quantile_is_the_least_length_that_enough_things_do_not_exceed(share):
    rng = random.Random(share)
    for number in (*range(1, 30), 40, 100, 200, 1000):
        values = sorted(rng.randint(0, 50) for _ in range(number))
        expected = values[math.ceil(Fraction(share) * number) - 1]
        assert Lengths.of(collections.Counter(values)).quantile(float(share)) == expected
