import pytest
import tensorflow as tf
from lettered_corpus import read_turn, turn_ids

from dcse_tf.data.batch import choose_turns, make_sample
from dcse_tf.data.dialogue import Context


def make_session(turns):
    """Session 7, whose utterances have 3 to 5 words and the fingerprints 100, 101, ..."""
    return {
        "session": tf.constant(-7, tf.int64),
        "token_ids": tf.ragged.constant(
            [turn_ids(7, t, 1 + t % 3) for t in range(turns)], tf.int32
        ),
        "utterances": tf.range(100, 100 + turns, dtype=tf.int64),
    }


def draw(turns, seed, context_turns=2, side="both", max_tokens=10):
    seed = tf.constant([5, seed], tf.int64)
    sample = make_sample(make_session(turns), seed, Context(context_turns, side), max_tokens)
    return {name: value.numpy() for name, value in sample.items()}


def response(sample):
    return int(sample["utterances"][-1]) - 100


@pytest.mark.parametrize(
    ("num_turns", "chosen", "context_turns", "side", "turns", "mask"),
    [
        # In the middle: every slot is filled.
        (7, 3, 2, "both", [1, 2, 4, 5, 3], "1111"),
        (7, 3, 2, "before", [1, 2, 3], "11"),
        # At the ends: turns that are not there have the response's index.
        (7, 0, 2, "both", [0, 0, 1, 2, 0], "0011"),
        (7, 6, 2, "both", [4, 5, 6, 6, 6], "1100"),
        (7, 1, 2, "both", [1, 0, 2, 3, 1], "0111"),
        (7, 5, 3, "both", [2, 3, 4, 6, 5, 5, 5], "111100"),
        (7, 1, 3, "before", [1, 1, 0, 1], "001"),
        # The shortest session.
        (2, 0, 3, "both", [0, 0, 0, 1, 0, 0, 0], "000100"),
        (2, 1, 3, "both", [1, 1, 0, 1, 1, 1, 1], "001000"),
        (2, 1, 1, "before", [0, 1], "1"),
    ],
)
def test_the_context_is_the_turns_around_the_response(
    num_turns, chosen, context_turns, side, turns, mask
):
    context = Context(context_turns, side)
    found, found_mask = choose_turns(tf.constant(num_turns), tf.constant(chosen), context)
    assert found.numpy().tolist() == turns
    assert found_mask.numpy().tolist() == [place == "1" for place in mask]
    assert context.slots == len(mask)
    real = [turn for turn, place in zip(turns[:-1], mask, strict=True) if place == "1"]
    assert context.of(num_turns, chosen) == real


@pytest.mark.parametrize("turns", [1, 3])
def test_only_a_first_turn_can_be_without_context(turns):
    both, before = Context(turns, "both"), Context(turns, "before")
    assert before.of(9, 0) == []
    assert (both.first_response, before.first_response) == (0, 1)
    assert all(both.of(2, response) == [1 - response] for response in (0, 1))
    assert before.of(2, 1) == [0]


@pytest.mark.parametrize("side", ["both", "before"])
@pytest.mark.parametrize("turns", [2, 3, 6])
def test_a_sample_is_the_tokens_of_the_turns_chosen(turns, side):
    for seed in range(8):
        sample = draw(turns, seed, side=side)
        assert sample["session"] == -7
        slots = 4 if side == "both" else 2
        assert sample["token_ids"].shape == (slots + 1, 10)
        chosen, mask = choose_turns(
            tf.constant(turns), tf.constant(response(sample)), Context(2, side)
        )
        assert sample["turn_mask"].tolist() == mask.numpy().tolist()
        for row, utterance, turn in zip(sample["token_ids"], sample["utterances"], chosen.numpy()):
            expected = turn_ids(7, turn, 1 + turn % 3)
            assert row.tolist() == expected + [0] * (10 - len(expected))
            assert utterance == 100 + turn


def test_the_longest_utterance_fills_the_row():
    sample = draw(3, 0, max_tokens=6)  # [CLS] s7 t2 w0 w1 w2 [SEP] has 7
    assert sample["token_ids"].shape[1] == 6
    sample = draw(3, 0, max_tokens=7)
    assert [2, 6 + 6, 67, 73, 74, 75, 3] in sample["token_ids"].tolist()


@pytest.mark.parametrize(("side", "expected"), [("both", {0, 1, 2, 3}), ("before", {1, 2, 3})])
def test_every_turn_with_a_context_can_be_the_response(side, expected):
    assert {response(draw(4, seed, side=side)) for seed in range(60)} == expected


@pytest.mark.parametrize(("side", "first"), [("both", 0), ("before", 1)])
def test_all_responses_are_drawn_alike(side, first):
    """1,200 draws of 4 or 3 turns; five standard deviations are below 5 x 17 = 85."""
    session = make_session(4)

    def draw_one(number):
        seed = tf.stack([tf.zeros([], tf.int64), number])
        return make_sample(session, seed, Context(1, side), 10)["utterances"][-1] - 100

    drawn = list(tf.data.Dataset.range(1200).map(draw_one).as_numpy_iterator())
    for turn in range(first, 4):
        assert abs(drawn.count(turn) - 1200 / (4 - first)) < 85


def test_the_seed_alone_decides():
    for seed in range(5):
        one, two = draw(8, seed), draw(8, seed)
        assert all((one[name] == two[name]).all() for name in one)
    assert len({response(draw(8, seed)) for seed in range(20)}) > 3


def test_absent_turns_repeat_the_response():
    sample = draw(2, 0, context_turns=3)
    rows = [read_turn(row.tolist()) for row in sample["token_ids"]]
    absent = [turn for turn, real in zip(rows[:-1], sample["turn_mask"]) if not real]
    assert absent == [rows[-1]] * 5
