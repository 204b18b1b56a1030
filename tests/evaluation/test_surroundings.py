"""Retrieval sets of turns in similar surroundings: by hand, and what must not matter."""

import numpy as np
import pytest

from dcse_tf.data.dialogue import GivenCandidates, Session, Utterance
from dcse_tf.evaluation.surroundings import build_surroundings_set

# 15 sessions each of a question about a table and about a train, between turns that tell which.
TOPICS = ("table", "train")


def make_sessions(count=15):
    said = ("agent", "{0} before"), ("customer", "asked in {0} {1}"), ("agent", "{0} after")
    return [
        Session(f"{topic}-{number}", tuple(Utterance(x, y.format(topic, number)) for x, y in said))
        for number in range(count)
        for topic in TOPICS
    ]


def encode(texts):
    """A topic's axis for turns around; nothing of it for the turn itself."""
    starts = *TOPICS, "a"
    return np.array([[text.startswith(start) for start in starts] for text in texts], np.float32)


def list_positives(found):
    return {
        found.sentences[query.sentence]: {found.sentences[place] for place in query.positives}
        for query in found.queries
    }


def test_positives_are_the_turns_with_the_most_similar_turns_around():
    found = build_surroundings_set(make_sessions(), encode, seed=0)
    assert len(found.sentences) == len(found.queries) == 30
    for sentence, positives in list_positives(found).items():
        assert len(positives - {sentence}) == 10
        assert all(f"in {sentence.split()[2]}" in other for other in positives)
    # All others are negatives: 30 turns less the query and its positives.
    assert {len(query.negatives) for query in found.queries} == {19}


def test_both_sides_count_alike():
    sessions = make_sessions(30)
    # What follows contradicts what was before, in half of the sessions.
    odd = [
        Session(s.session_id, (*s.turns[:2], Utterance("agent", "table after")))
        if number % 4 == 1
        else s
        for number, s in enumerate(sessions)
    ]
    found = list_positives(build_surroundings_set(odd, encode, seed=0))
    mixed = {s.turns[1].text for number, s in enumerate(sessions) if number % 4 == 1}
    assert all(found[text] <= mixed for text in mixed)  # 15 that contradict alike, of which 10
    assert not any(found[text] & mixed for text in found.keys() - mixed)


def test_neither_the_order_of_sessions_nor_repeats_matter():
    sessions = make_sessions()
    again = [*reversed(sessions), Session("repeat", sessions[0].turns)]
    first, second = (build_surroundings_set(each, encode, seed=3) for each in (sessions, again))
    assert sorted(first.sentences) == sorted(second.sentences)
    different = build_surroundings_set(sessions, encode, seed=4, sentences=25)
    assert set(different.sentences) < set(first.sentences)
    assert different.sentences != build_surroundings_set(sessions, encode, 5, 25).sentences


def test_surroundings_are_compared_without_what_all_turns_share():
    rng = np.random.default_rng(0)
    texts = [[f"{n} {place}" for place in range(3)] for n in range(30)]
    vectors = {text: rng.normal(size=8) + 3 for own in texts for text in own}
    sessions = [Session(own[0], tuple(Utterance("a", text) for text in own)) for own in texts]
    found = build_surroundings_set(sessions, lambda said: np.array([vectors[x] for x in said]), 0)

    def unit(rows):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    around = np.zeros([30, 30])
    for place in (0, 2):
        side = unit(np.array([vectors[own[place]] for own in texts]))
        side = unit(side - side.mean(axis=0))
        around += side @ side.T
    np.fill_diagonal(around, -9)
    for query in found.queries:
        own = int(found.sentences[query.sentence].split()[0])
        nearest = {f"{n} 1" for n in np.argsort(-around[own])[:10]}
        assert {found.sentences[n] for n in query.positives} == nearest


def test_candidates_are_of_other_dialogues_and_of_the_role_or_of_any_if_it_is_a_name():
    turns = [Utterance(("agent", "customer")[place % 2], f"t{place}") for place in range(40)]
    long = GivenCandidates("long", ())  # the dialogue that both pieces are of
    sessions = [Session(str(n), tuple(turns[n : n + 20]), long) for n in (0, 20)] + make_sessions()
    found = build_surroundings_set(sessions, encode, seed=0)
    roles = {turn.text: (turn.role, s.dialogue) for s in sessions for turn in s.turns}
    asked = [roles[found.sentences[query.sentence]] for query in found.queries]
    assert {("agent", "long"), ("customer", "long"), ("customer", "table-0")} < {*asked}
    for query, (_, dialogue) in zip(found.queries, asked, strict=True):
        others = [roles[found.sentences[n]] for n in (*query.positives, *query.negatives)]
        # Only the long dialogue has agents, who are compared with all others.
        assert all(each[0] == "customer" and each[1] != dialogue for each in others)


@pytest.mark.parametrize("sessions", [[], make_sessions(2)])
def test_few_turns_give_no_queries(sessions):
    assert build_surroundings_set(sessions, encode, seed=0).queries == []
