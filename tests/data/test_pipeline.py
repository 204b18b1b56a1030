"""The order, the draws and the resuming of batches, on a corpus whose ids can be read."""

import functools

import numpy as np
import pytest
from lettered_corpus import FIRST_TURN, MASK, PAD, SPECIAL, TOKENS, prepare_sessions, read_turn

from dcse_tf.data.dialogue import Context
from dcse_tf.data.manifest import Corpus
from dcse_tf.data.masking import MaskingRule
from dcse_tf.data.stream import (
    BatchForm,
    Stream,
    make_contrastive_dataset,
    make_masked_lm_dataset,
    make_simcse_dataset,
)

# 22 sessions of 2 to 6 turns, 4 x (2 + 3 + 4 + 5 + 6) + 2 + 3 = 85 utterances of 10 tokens.
TURNS = [2 + number % 5 for number in range(22)]
BATCH = 5  # 4 steps an epoch, 2 sessions left out
MLM_BATCH = 20  # 4 steps an epoch, 5 utterances left out
CONTEXT = Context(2, "both")
RULE = MaskingRule(0.3, 10, MASK, SPECIAL, len(TOKENS))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    manifest = prepare_sessions(folder, TURNS, words=6)
    return Corpus(folder / "data", manifest)


def take(dataset, steps, replicas=1):
    return list(dataset.take(steps * replicas).as_numpy_iterator())


def contrastive(
    corpus,
    steps,
    batch_form="unique",
    negatives=3,
    context_tokens=0,
    context=CONTEXT,
    batch_size=BATCH,
    seed=0,
    **stream,
):
    form = BatchForm(batch_form, negatives, session_turns=4, context_tokens=context_tokens)
    stream = Stream(batch_size, seed, **stream)
    return take(make_contrastive_dataset(corpus, form, context, stream), steps, stream.replicas)


def masked_lm(corpus, steps, batch_size=MLM_BATCH, seed=0, **stream):
    stream = Stream(batch_size, seed, **stream)
    return take(make_masked_lm_dataset(corpus, RULE, stream), steps, stream.replicas)


def responses(batches):
    """(session, turn) of the response of every row."""
    return [
        read_turn(batch["token_ids"][place].tolist())
        for batch in batches
        for place in batch["candidate_index"][:, 0]
    ]


def utterances(batches):
    """(session, turn) -> places of its predictions, in the order of the rows."""
    found = []
    for batch in batches:
        ids = batch["token_ids"].copy()
        width = ids.shape[1]
        ids.reshape(-1)[batch["mask_positions"]] = batch["mask_ids"]
        for number, row in enumerate(ids):
            places = [p % width for p in batch["mask_positions"].tolist() if p // width == number]
            found.append((read_turn(row.tolist()), tuple(sorted(places))))
    return found


def epochs(items, size, count):
    assert len(items) == size * count
    return [items[start : start + size] for start in range(0, len(items), size)]


def assert_same(one, two):
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def differ(one, two):
    return any(
        a[name].shape != b[name].shape or (a[name] != b[name]).any()
        for a, b in zip(one, two, strict=True)
        for name in a
    )


def dense(corpus, steps, **settings):
    return contrastive(corpus, steps, **{"batch_form": "dense", **settings})


def flat(corpus, steps, **settings):
    """Contexts in one sequence of at most 12 of their up to 1 + 4 x 9 tokens."""
    return contrastive(corpus, steps, **{"context_tokens": 12, **settings})


def simcse(corpus, steps, seed=0, **stream):
    stream = Stream(MLM_BATCH, seed, **stream)
    return take(make_simcse_dataset(corpus, stream), steps, stream.replicas)


@pytest.fixture(scope="module")
def first(corpus):
    """A function of a maker and a number: so many steps with its usual settings, built once."""
    longest = functools.cache(lambda make: make(corpus, 24))  # six epochs
    return lambda make, steps: longest(make)[:steps]


makers = pytest.mark.parametrize("make", [contrastive, dense, masked_lm, flat, simcse])


@makers
def test_resuming_at_any_step_goes_on_as_if_unbroken(corpus, first, make):
    """At the end of an epoch (4), and within a later one and across its end."""
    for step in (4, 6):
        assert_same(make(corpus, 9 - step, first_step=step), first(make, 9)[step:])


@makers
def test_the_seed_alone_decides(corpus, first, make):
    assert_same(make(corpus, 2, seed=0), first(make, 2))
    assert differ(make(corpus, 2, seed=4), first(make, 2))


def test_an_epoch_visits_no_session_twice(first):
    visited = epochs(responses(first(contrastive, 12)), 4 * BATCH, 3)
    for epoch in visited:
        sessions = [session for session, _ in epoch]
        assert len(set(sessions)) == len(sessions)
        assert all(turn < TURNS[session] for session, turn in epoch)


def test_every_epoch_has_another_order_other_responses_and_leaves_out_others(first):
    visited = epochs(responses(first(contrastive, 24)), 4 * BATCH, 6)
    orders = {tuple(session for session, _ in epoch) for epoch in visited}
    drawn = {tuple(sorted(epoch)) for epoch in visited}
    left_out = {frozenset(range(22)) - {session for session, _ in epoch} for epoch in visited}
    assert len(orders) == 6
    assert len(drawn) == 6
    assert len(left_out) > 1
    turns_of_first = {turn for epoch in visited for session, turn in epoch if TURNS[session] == 6}
    assert len(turns_of_first) > 3


def test_an_epoch_does_not_follow_the_files(first):
    """Sessions were written 0, 1, 2, ... to three shards in turn."""
    order = [session for session, _ in responses(first(contrastive, 4))]
    assert order != sorted(order)
    assert [session % 3 for session in order[:6]] != [order[i % 3] % 3 for i in range(6)]


def test_batches_are_made_as_asked_for(corpus):
    for side, slots in (("both", 4), ("before", 2)):
        for batch in contrastive(corpus, 2, context=Context(2, side), negatives=2):
            assert batch["context_index"].shape == batch["turn_mask"].shape == (BATCH, slots)
            assert batch["candidate_index"].shape == (BATCH, 3)
            assert batch["candidate_mask"].all()
            assert batch["turn_mask"].any(axis=1).all()


def test_contexts_are_of_the_session_of_the_response_and_negatives_are_not(first):
    for batch in first(contrastive, 8):
        table = [read_turn(row.tolist()) for row in batch["token_ids"]]
        for turns, mask, candidates in zip(
            batch["context_index"], batch["turn_mask"], batch["candidate_index"]
        ):
            (session, response), *negatives = (table[place] for place in candidates)
            # The places around the response, those outside the session masked.
            around = [response + offset for offset in (-2, -1, 1, 2)]
            assert mask.tolist() == [0 <= turn < TURNS[session] for turn in around]
            found = [table[place] for place in turns[mask]]
            expected = [(session, turn) for turn in around if 0 <= turn < TURNS[session]]
            assert found == expected
            others = [other for other, _ in negatives]
            assert session not in others
            assert len(set(others)) == 3


def test_every_step_draws_other_negatives(corpus):
    """Told by rows, which the shuffled order of the sessions does not change."""
    drawn = set()
    for batch in contrastive(corpus, 6, batch_size=22):
        table = [read_turn(row.tolist())[0] for row in batch["token_ids"]]
        sessions = [[table[place] for place in row] for row in batch["candidate_index"]]
        row_of = {row[0]: number for number, row in enumerate(sessions)}
        drawn.add(tuple(tuple(row_of[session] for session in row) for row in sessions))
    assert len(drawn) == 6


def test_every_place_of_every_epoch_draws_another_response(tmp_path):
    """In sessions of one length a draw that forgot the epoch would give the same turns again."""
    manifest = prepare_sessions(tmp_path, [6] * 12)
    steps = contrastive(Corpus(tmp_path / "data", manifest), 4, batch_size=12)
    turns = [tuple(turn for _, turn in responses([batch])) for batch in steps]
    assert len(set(turns)) == 4
    assert all(len(set(row)) > 2 for row in turns)


def test_two_replicas_share_the_batch_of_one(corpus):
    whole = contrastive(corpus, 5, batch_size=4, replicas=1)
    halves = contrastive(corpus, 5, batch_size=4, replicas=2)
    assert [len(half["turn_mask"]) for half in halves] == [2] * 10
    assert responses(halves) == responses(whole)
    for first, second, batch in zip(halves[::2], halves[1::2], whole, strict=True):
        for name in ("context_index", "candidate_index"):
            together = [half["token_ids"][half[name]] for half in (first, second)]
            expected = batch["token_ids"][batch[name]]
            for found, rows in zip(together, (expected[:2], expected[2:]), strict=True):
                np.testing.assert_array_equal(found, rows)


def test_an_epoch_visits_no_utterance_twice(first):
    visited = epochs(utterances(first(masked_lm, 12)), 4 * MLM_BATCH, 3)
    names = [[name for name, _ in epoch] for epoch in visited]
    assert all(len(set(epoch)) == len(epoch) for epoch in names)
    assert all(turn < TURNS[session] for session, turn in names[0])
    assert names[0] != names[1] != names[2]
    assert set(names[0]) != set(names[1]) or set(names[1]) != set(names[2])


def test_masks_are_drawn_anew_in_every_epoch(first):
    """2 of 8 places, 28 pairs: about 3 of 80 utterances have the same mask twice, by chance."""
    batches = first(masked_lm, 8)
    assert len({batch["mask_positions"].tobytes() for batch in batches}) == 8
    first, second = epochs(utterances(batches), 4 * MLM_BATCH, 2)
    first, second = dict(first), dict(second)
    both = first.keys() & second.keys()
    assert len(both) >= 75
    assert sum(first[name] == second[name] for name in both) < 15
    assert all(len(places) == 2 for places in first.values())


def test_utterances_are_padded_to_the_longest_of_the_batch(tmp_path):
    manifest = prepare_sessions(tmp_path, [2, 3, 4])
    (batch,) = masked_lm(Corpus(tmp_path / "data", manifest), 1, batch_size=9)
    assert batch["token_ids"].shape == (9, 4)  # [CLS], two letters, [SEP]
    assert batch["padding_mask"].all()
    assert (batch["token_ids"] != PAD).all()


def test_two_replicas_share_the_masked_batch_of_one(corpus, first):
    whole = first(masked_lm, 3)
    halves = masked_lm(corpus, 3, replicas=2)
    assert len(halves) == 6
    for step, batch in enumerate(whole):
        pair = [dict(half) for half in halves[2 * step : 2 * step + 2]]
        # Places of the second half begin anew.
        pair[1]["mask_positions"] = pair[1]["mask_positions"] + pair[0]["token_ids"].size
        for name, value in batch.items():
            np.testing.assert_array_equal(np.concatenate([half[name] for half in pair]), value)


def test_the_dense_form_takes_a_run_of_turns_of_every_session(first):
    """Runs of at most 4 turns; all of them are responses, and begin anywhere."""
    starts = set()
    for batch in first(dense, 8):
        runs = {}
        for session, turn in responses([batch]):
            runs.setdefault(session, []).append(turn)
        assert len(runs) == BATCH
        for session, turns in runs.items():
            assert turns == list(range(turns[0], turns[0] + min(4, TURNS[session])))
            assert turns[-1] < TURNS[session]
            if TURNS[session] == 6:
                starts.add(turns[0])
    assert starts == {0, 1, 2}


def read_turns(row):
    """(session, turn) of every turn in a sequence; the first ones may be cut."""
    ids = [int(i) for i in row if i]
    firsts = [place for place, i in enumerate(ids) if 5 <= i < FIRST_TURN]
    return [(ids[place] - 5, ids[place + 1] - FIRST_TURN) for place in firsts]


@pytest.mark.parametrize(
    ("batch_form", "side"), [("plain", "before"), ("unique", "both"), ("dense", "both")]
)
def test_contexts_in_one_sequence_are_those_of_the_turns_apart(corpus, batch_form, side):
    settings = {"batch_form": batch_form, "context": Context(2, side)}
    apart = contrastive(corpus, 2, **settings)
    whole = flat(corpus, 2, context_tokens=40, **settings)
    for one, two in zip(apart, whole, strict=True):
        np.testing.assert_array_equal(one["candidate_mask"], two["candidate_mask"])
        assert two["turn_mask"].all()
        assert two["context_index"].shape == (len(one["turn_mask"]), 1)
        for row, mask in enumerate(one["turn_mask"]):
            turns, (sequence,) = one["context_index"][row][mask], two["context_index"][row]
            expected = [read_turn(one["token_ids"][place].tolist()) for place in turns]
            assert read_turns(two["token_ids"][sequence]) == expected
            candidates = [batch["token_ids"][batch["candidate_index"][row]] for batch in (one, two)]
            assert [read_turns(ids) for ids in candidates[0]] == [
                read_turns(ids) for ids in candidates[1]
            ]
