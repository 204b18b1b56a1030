"""Negatives, the utterance table and its index, on a batch made by hand."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from lettered_corpus import turn_ids

from dcse_tf.data.dialogue import Context, Session, Utterance
from dcse_tf.data.records import serialize_session
from dcse_tf.data.responses import (
    ResponseSource,
    UtteranceSource,
    draw_candidates,
    draw_views,
    sample_negatives,
)
from dcse_tf.data.table import make_batches

PADDED = 0
MAX_TOKENS = 16
NAMES = {"context": "context_index", "candidates": "candidate_index"}
NAMES |= {name: name for name in ("turn_mask", "candidate_mask", "weights")}
# Sessions as rows of turns: three context slots, then the response. A turn is (session, turn,
# words); "ok" is one text that many sessions share; None is an absent turn.
OK = (0, 7, 0)
ROWS = [
    [(1, 0, 0), (1, 1, 3), (1, 3, 0), (1, 2, 5)], [None, (2, 0, 1), OK, (2, 2, 0)],
    [OK, (3, 1, 0), (3, 3, 2), OK], [None, None, (4, 1, 0), OK], [None, None, (5, 0, 0), (5, 1, 1)],
    [(6, 0, 9), (6, 1, 0), OK, (6, 2, 0)], [None, (7, 0, 0), (7, 1, 0), OK],
    [(8, 0, 0), (8, 0, 0), (8, 2, 0), (8, 1, 2)],
]  # fmt: skip


def draw(samples, source, negatives, seed, replicas):
    splits = tf.range(replicas + 1) * (len(samples["session"]) // replicas)
    step = source.make_step(samples, splits, seed, tf.constant(1, tf.int64))
    batches = make_batches(step, {"rows": draw_candidates(step, negatives)}, PADDED)
    for batch in batches:
        batch |= {name: batch.pop(f"rows_{own}") for own, name in NAMES.items()}
    return [{name: value.numpy() for name, value in batch.items()} for batch in batches]


def make(rows=ROWS, negatives=3, seed=0, replicas=1, form="unique"):
    sessions = [[turn for turn in row if turn] for row in rows]
    response = tf.constant([len(session) - 1 for session in sessions])
    samples = {**make_sessions(sessions), "response": response}
    source = ResponseSource(form, Context(3, "before"), 0, MAX_TOKENS)
    return draw(samples, source, negatives, seed, replicas)


def strip(row):
    return tuple(int(i) for i in row if i)


def gather(name, *batches):
    """The tokens behind an index of batches, padding removed, as nested lists of tuples."""
    return [[strip(b["token_ids"][place]) for place in row] for b in batches for row in b[name]]


def gather_real(index, mask, batch):
    rows = zip(gather(index, batch), batch[mask], strict=True)
    return [[ids for ids, real in zip(row, own, strict=True) if real] for row, own in rows]


def contexts(batch):
    """The turns of every row that there are, as token ids."""
    return gather_real("context_index", "turn_mask", batch)


def candidates(batch):
    """The real candidates of every row as token ids, the true response first."""
    return gather_real("candidate_index", "candidate_mask", batch)


seeds = pytest.mark.parametrize("seed", range(3))


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_table_has_every_utterance_used_once(replicas):
    for batch in make(replicas=replicas):
        table = [strip(row) for row in batch["token_ids"]]
        assert len(set(table)) == len(table)
        used = {*batch["context_index"].ravel(), *batch["candidate_index"].ravel()}
        assert used == set(range(len(table)))


@seeds
def test_gathering_through_the_index_gives_back_the_samples(seed):
    (batch,) = make(seed=seed)
    assert batch["turn_mask"].tolist() == [[turn is not None for turn in row[:3]] for row in ROWS]
    expected = [[tuple(turn_ids(*turn)) for turn in row[:3] if turn] for row in ROWS]
    assert contexts(batch) == expected
    firsts = [row[0] for row in gather("candidate_index", batch)]
    assert firsts == [tuple(turn_ids(*row[-1])) for row in ROWS]
    assert batch["candidate_mask"][:, 0].all()


@seeds
def test_negatives_are_other_responses_and_never_the_same_text(seed):
    (batch,) = make(seed=seed, negatives=4)
    responses = {tuple(turn_ids(*row[-1])) for row in ROWS}
    for row, found in zip(ROWS, candidates(batch), strict=True):
        truth, *negatives = found
        assert set(negatives) <= responses - {truth}
        assert len(set(found)) == len(found)
        own = {tuple(turn_ids(*turn)) for turn in row if turn and turn != OK}
        assert not own & set(negatives)


def test_every_row_draws_negatives_of_its_own():
    """The draws of two rows are independent: they share as many as chance has it, seldom all."""
    count, negatives = 40, 9
    session = response = tf.range(count, dtype=tf.int64)
    rows, mask = sample_negatives(session, response, negatives, tf.constant([3, 4]))
    assert mask.numpy().all()
    found = [set(row[1:]) for row in rows.numpy().tolist()]
    common = [len(a & b) for a, b in itertools.combinations(found, 2)]
    # Two independent draws of 9 of 38 others share 9 * 9 / 38 = 2.1 on average.
    assert 1.8 < np.mean(common) < 2.5
    assert max(common) < negatives


def test_two_rows_of_one_session_are_no_negatives_of_each_other():
    """Nor is the text of either, where a third session has it too."""
    session = tf.constant([1, 1, 2, 3], tf.int64)
    response = tf.constant([10, 20, 20, 30], tf.int64)
    for seed in range(8):
        rows, mask = sample_negatives(session, response, 2, tf.constant([0, seed]))
        found = [set(r[1:][m[1:]]) for r, m in zip(rows.numpy(), mask.numpy(), strict=True)]
        # The texts of session 1 are 10 and 20. For the text 20 its first row stands, row 1.
        assert found == [{3}, {3}, {0, 3}, {0, 1}]


def test_places_without_a_negative_are_masked():
    """Six distinct responses: a row can have five negatives, whatever is asked for."""
    distinct = {row[-1] for row in ROWS}
    assert len(distinct) == 6
    (batch,) = make(negatives=7)
    assert batch["candidate_mask"].shape == (8, 8)
    assert batch["candidate_mask"].sum(axis=1).tolist() == [6] * 8
    assert all(set(row) == {tuple(turn_ids(*t)) for t in distinct} for row in candidates(batch))
    # What is masked points at the row's own response, so that nothing else is encoded for it.
    for index, mask in zip(batch["candidate_index"], batch["candidate_mask"], strict=True):
        assert (index[~mask] == index[0]).all()


@pytest.mark.parametrize("replicas", [2, 4])
@seeds
def test_more_replicas_have_the_same_rows_with_the_same_candidates(replicas, seed):
    (whole,) = make(seed=seed)
    parts = make(seed=seed, replicas=replicas)
    assert [len(part["turn_mask"]) for part in parts] == [8 // replicas] * replicas
    for name in ("context_index", "candidate_index"):
        assert gather(name, *parts) == gather(name, whole)
    for name in ("turn_mask", "candidate_mask"):
        together = np.concatenate([part[name] for part in parts])
        np.testing.assert_array_equal(together, whole[name])
    # A replica encodes no more than its rows need.
    assert all(len(part["token_ids"]) < len(whole["token_ids"]) for part in parts)


def test_the_seed_alone_decides_the_draw():
    draws = [candidates(make(seed=seed)[0]) for seed in (0, 0, 1, 2)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2] != draws[3]


def test_renaming_sessions_and_texts_changes_no_draw():
    """Fingerprints only mark what is equal; their values weigh nothing."""
    session, response = tf.range(8, dtype=tf.int64), tf.constant([3, 1, 4, 1, 5, 9, 2, 6], tf.int64)
    seed = tf.constant([0, 1])
    one = sample_negatives(session, response, 4, seed)
    two = sample_negatives(-(session**3) - 5, response * -(2**58) + 7, 4, seed)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


def test_negatives_are_drawn_alike():
    """Of six distinct responses one row may draw five; 2 of them 400 times make 160 each."""
    counts = collections.Counter()
    for seed in range(400):
        every = tf.range(6, dtype=tf.int64)
        rows, mask = sample_negatives(every, every, 2, tf.constant([2, seed]))
        assert mask.numpy().all()
        counts.update(rows[0, 1:].numpy().tolist())
    assert set(counts) == {1, 2, 3, 4, 5}
    # Four standard deviations: 4 x sqrt(400 x 0.4 x 0.6) = 39.
    assert all(abs(count - 160) < 39 for count in counts.values())


def test_all_negatives_are_those_that_could_be_drawn():
    (drawn,), (every,) = make(negatives=7), make(negatives=0)
    assert every["candidate_mask"].shape == (8, 9)
    assert list(map(sorted, candidates(every))) == list(map(sorted, candidates(drawn)))
    assert [row[0] for row in candidates(every)] == [row[0] for row in candidates(drawn)]


@seeds
def test_the_plain_form_has_the_same_samples_and_an_entry_for_every_use(seed):
    (unique,), (plain,) = (make(seed=seed, form=form) for form in ("unique", "plain"))
    for name in ("context_index", "candidate_index"):
        assert gather(name, plain) == gather(name, unique)
    for name in ("turn_mask", "candidate_mask"):
        np.testing.assert_array_equal(plain[name], unique[name])
    # 8 rows of 3 turns and 4 candidates, padded to the longest of the corpus.
    assert plain["token_ids"].shape == (8 * (3 + 4), MAX_TOKENS)
    index = [*plain["context_index"].ravel(), *plain["candidate_index"].ravel()]
    assert index == list(range(56))


# Sessions as lists of turns for the dense form.
SESSIONS = [[(1, 0, 0), (1, 1, 3), OK], [(2, 0, 1), (2, 1, 2)], [OK, (3, 1, 0), OK, (3, 3, 2)],
            [(4, 0, 0), (4, 1, 0)]]  # fmt: skip


def make_sessions(sessions=SESSIONS):
    return {
        "session": tf.constant([1000 + number for number in range(len(sessions))], tf.int64),
        "token_ids": tf.ragged.constant([[turn_ids(*t) for t in s] for s in sessions], tf.int32),
        "utterances": tf.ragged.constant([[hash(t) for t in s] for s in sessions], tf.int64),
    }


def make_dense(side="both", negatives=0, replicas=1, sessions=SESSIONS):
    source = ResponseSource("dense", Context(2, side), 16, MAX_TOKENS)
    return draw(make_sessions(sessions), source, negatives, 2, replicas)


@pytest.mark.parametrize("side", ["both", "before"])
def test_every_turn_with_a_context_is_a_response_of_the_dense_form(side):
    (batch,) = make_dense(side)
    expected = []
    for session in SESSIONS:
        for place, response in enumerate(session):
            around = [place - 2, place - 1] + ([place + 1, place + 2] if side == "both" else [])
            context = [session[i] for i in around if 0 <= i < len(session)]
            texts = [tuple(turn_ids(*turn)) for turn in (response, *context)]
            expected += [(texts[0], texts[1:])] if context else []
    firsts = [row[0] for row in gather("candidate_index", batch)]
    assert list(zip(firsts, contexts(batch), strict=True)) == expected
    table = [strip(row) for row in batch["token_ids"]]
    assert len(set(table)) == len(table)


def test_dense_negatives_are_no_texts_of_the_own_session():
    (batch,) = make_dense()
    rows = iter(candidates(batch))
    everything = {tuple(turn_ids(*turn)) for session in SESSIONS for turn in session}
    for session in SESSIONS:
        own = {tuple(turn_ids(*turn)) for turn in session}
        for _ in session:
            assert set(next(rows)[1:]) == everything - own


def test_negatives_of_the_same_place_begin_or_end_their_sessions_alike():
    sessions = [[(n, turn, 0) for turn in range(3)] for n in (1, 2, 3)]
    samples = make_sessions(sessions)
    samples["before"] = tf.ragged.constant([[0, 1, 2], [0, 1, 2], [6, 7, 8]], tf.int32)
    samples["after"] = tf.ragged.constant([[2, 1, 0], [8, 7, 6], [9, 8, 7]], tf.int32)
    source = ResponseSource("dense", Context(2, "both"), 16, MAX_TOKENS, same_place=True)
    (batch,) = draw(samples, source, 0, 2, 1)
    texts = {tuple(turn_ids(*turn)): turn[:2] for turns in sessions for turn in turns}
    found = {texts[own]: {texts[x] for x in others} for own, *others in candidates(batch)}
    far = {(3, 0), (3, 1), (3, 2)}  # seven turns or more before the end, as two of session 2
    assert found == {
        **{(1, 0): {(2, 0)}, (1, 1): {(2, 1)}, (1, 2): {(2, 2)}},
        **{(2, 0): {(1, 0)} | far, (2, 1): {(1, 1)} | far, (2, 2): {(1, 2)}},
        **{text: {(2, 0), (2, 1)} for text in far},
    }
    # The turns of the session count, not those of the run that was drawn of it.
    texts = [np.array(turn_ids(9, turn, 0)) for turn in range(9)]
    session = Session("9", tuple(Utterance("a", "b") for _ in texts))
    three = dataclasses.replace(source, session_turns=3)
    run = three.draw(serialize_session(session, texts), [5, 6])
    assert run["before"].numpy().tolist() == (run["before"][0] + tf.range(3)).numpy().tolist()
    assert (run["before"] + run["after"]).numpy().tolist() == [8, 8, 8]
    assert run["token_ids"][0].numpy().tolist() == turn_ids(9, int(run["before"][0]), 0)


def test_replicas_of_the_dense_form_have_whole_sessions():
    (whole,), parts = make_dense(negatives=3), make_dense(negatives=3, replicas=2)
    assert [len(part["turn_mask"]) for part in parts] == [3 + 2, 4 + 2]
    for name in ("context_index", "candidate_index"):
        assert gather(name, *parts) == gather(name, whole)


def test_a_session_of_one_turn_gives_no_response():
    (batch,) = make_dense(sessions=[[(1, 0, 0)], [(2, 0, 0), (2, 1, 0)], [(3, 0, 0), (3, 1, 0)]])
    assert len(batch["turn_mask"]) == 4


def test_weights_and_totals_are_those_of_all_replicas():
    for parts in (make(), make(replicas=4)):
        assert [float(part["rows_weights_total"][0]) for part in parts] == [8.0] * len(parts)
        assert sum(float(part["samples"][0]) for part in parts) == 8.0
        assert all((part["weights"] == 1.0).all() for part in parts)
    (alone,) = make([[None, None, (n, 0, 0), OK] for n in range(1, 5)])  # all say one thing
    assert alone["candidate_mask"].tolist() == [[True, False, False, False]] * 4
    assert (alone["weights"].any(), float(alone["rows_weights_total"][0])) == (False, 0.0)


def test_every_run_of_a_long_session_is_drawn():
    texts = [np.array(turn_ids(9, turn, 0)) for turn in range(5)]
    session = Session("9", tuple(Utterance("a", "b") for _ in texts))
    source = ResponseSource("dense", Context(2, "both"), 3, 16)
    record, found = serialize_session(session, texts), set()
    for seed in range(30):
        run = source.draw(record, [seed, 0])["token_ids"].to_list()
        found.add(tuple(map(tuple, run)))
    runs = (texts[begin : begin + 3] for begin in range(3))
    assert found == {tuple(tuple(text.tolist()) for text in run) for run in runs}


def test_the_views_of_a_repeated_text_stand_once():
    ids = tf.ragged.constant([[2, 5, 3], [2, 6, 3], [2, 5, 3]], tf.int32)
    step = UtteranceSource().make_step(
        {"token_ids": ids}, tf.constant([0, 3]), 0, tf.constant(1, tf.int64)
    )
    targets = draw_views(step).targets
    mask = targets["candidate_mask"].numpy().tolist()
    assert mask == [[True, False, True, False], [True, True, False, False], [False] * 4]
    assert targets["weights"].numpy().tolist() == [1.0, 1.0, 0.0]
