"""The examples and batches of post-training, read back turn by turn.

A turn's only token says what it is: 100 x session + turn.
"""

import collections

import numpy as np
import pytest
import reference
import tensorflow as tf
from drawn_dialogues import batch_samples, read, session

from dcse_tf.bert.layout import Layout
from dcse_tf.bert.pair_rule import PairRule
from dcse_tf.data import post_training
from dcse_tf.data.masking import MaskingRule

CLS, SEP, MASK, EOT = 2, 3, 4, 9
SPECIAL = (0, 1, CLS, SEP, MASK, EOT)
SEED = tf.constant([7, 11], tf.int64)
SESSIONS = [session(number, 5 + number % 4) for number in range(1, 13)]
each_kind = pytest.mark.parametrize("pairs", post_training.PAIRS)


def make_form(pairs, turns=20, rate=0.15, first=64, second=32, speakers=True, same_role=True):
    rule = PairRule(CLS, SEP, EOT, first, second)
    masking = MaskingRule(rate, 20, MASK, SPECIAL, 1300)
    return post_training.PostTrainingForm(pairs, turns, speakers, rule, masking, same_role)


def draw(sessions, form, seed=5):
    return batch_samples(sessions, lambda *given: post_training.draw_example(*given, form), seed)


def make_draw(features, form):
    """A function of a seed that draws from one session; a graph, for hundreds of draws."""
    return tf.function(lambda seed: post_training.draw_example(features, seed, form))


def make_rows(pairs, sessions=SESSIONS, turns=20):
    """(context, second segment, label, weight) of each row, and the dialogues' turns."""
    form = make_form(pairs, turns)
    dialogues, rows = post_training.make_pair_rows(draw(sessions, form), form, SEED)
    columns = (
        read(dialogues, rows.first),
        read(dialogues, rows.second),
        rows.targets["labels"].numpy().tolist(),
        rows.targets["weights"].numpy().tolist(),
    )
    windows = read(dialogues, tf.ragged.range(dialogues.starts, dialogues.ends))
    return list(zip(*columns, strict=True)), windows


def test_the_classes_of_relevance_are_equally_often_drawn():
    draw_one = make_draw(session(1, 6), make_form("relevance", 3))
    drawn = [draw_one(tf.constant([seed, 1], tf.int64)) for seed in range(600)]
    counts = collections.Counter(int(sample["relevance"]) for sample in drawn)
    assert set(counts) == {0, 1, 2}
    # Four standard deviations of 600 draws with probability 1/3.
    assert all(abs(count - 200) < 47 for count in counts.values())
    # The class does not tell the response, nor the other way round.
    pairs = collections.Counter(
        (int(sample["relevance"]), int(sample["utterances"][-1])) for sample in drawn
    )
    assert len(pairs) == 3 * 5
    assert min(pairs.values()) > 15  # of 40 on average


@pytest.mark.parametrize("same_role", [True, False])
def test_the_other_turn_is_any_of_the_session_but_the_response(same_role):
    draw_one = make_draw(session(1, 5), make_form("relevance", 2, same_role=same_role))
    found = collections.defaultdict(set)
    for seed in range(300):
        sample = draw_one(tf.constant([seed, 0], tf.int64))
        (other,) = sample["other_utterance"].numpy().tolist()
        assert sample["other_tokens"].to_list() == [[other]]
        found[int(sample["utterances"][-1])].add(other)
    # Said before the context and after the response too.
    said = range(100, 105)
    assert found == {
        response: {x for x in said if x != response and not (same_role and (x - response) % 2)}
        for response in said[1:]
    }


def test_a_role_that_speaks_once_has_another_turn_of_any_role():
    lonely = session(1, 3, speakers=[0, 1, 0], roles=(70, 71))
    draw_one = make_draw(lonely, make_form("relevance", 2))
    samples = [draw_one(tf.constant([seed, 0], tf.int64)) for seed in range(60)]
    others = {int(s["other_utterance"][0]) for s in samples if int(s["utterances"][-1]) == 101}
    assert others == {100, 102}


def test_a_session_that_repeats_itself_has_no_other_turn():
    alike = session(1, 4, same_as=[8, 8, 8, 8])
    sample = post_training.draw_example(alike, SEED, make_form("relevance", 3))
    assert sample["other_tokens"].to_list() == []
    assert sample["other_utterance"].shape == (0,)


def test_the_second_segment_is_the_next_turn_or_one_of_another_session():
    rows, windows = make_rows("utterance")
    assert {label for *_, label, _ in rows} == {0, 1}
    for (context, (second,), label, weight), window in zip(rows, windows, strict=True):
        assert context == window[:-1]
        assert weight == 1.0
        assert (second == window[-1]) == (label == 1)
        assert (second // 100 == window[0] // 100) == (label == 1)


def test_only_the_right_piece_is_another_sessions():
    rows, windows = make_rows("pieces")
    assert {label for *_, label, _ in rows} == {0, 1}
    for (left, right, label, weight), window in zip(rows, windows, strict=True):
        assert left == window[: len(left)]
        assert len(left) + len(right) == len(window)
        assert weight == 1.0 or label == 1  # no other dialogue has more turns
        assert (right == window[len(left) :]) == (label == 1)
        # A right piece ends with its dialogue's response.
        assert right[-1] in {other[-1] for other in windows}
        assert (right[0] // 100 == window[0] // 100) == (label == 1)


def test_relevance_has_three_classes_of_the_second_segment():
    rows, windows = make_rows("relevance", turns=3)
    assert {label for *_, label, _ in rows} == {0, 1, 2}
    for (context, (second,), label, _), window in zip(rows, windows, strict=True):
        assert context == window[:-1]
        assert len(context) <= 3
        own = second // 100 == window[0] // 100
        assert (own, second == window[-1]) == {0: (False, False), 1: (True, False),
                                               2: (True, True)}[label]  # fmt: skip


@pytest.mark.parametrize("pairs", ["utterance", "relevance"])
def test_a_strangers_turn_is_of_the_next_turns_role(pairs):
    rows, windows = make_rows(pairs)
    parities = [(s - w[-1]) % 2 for (_, (s,), label, _), w in zip(rows, windows) if not label]
    assert len(parities) > 2
    assert not any(parities)


@each_kind
def test_what_comes_from_nowhere_else_stays_the_true_one(pairs):
    # One session, which says one thing.
    rows, windows = make_rows(pairs, [session(1, 5, same_as=[8] * 5)] * 6)
    highest = post_training.PAIRS[pairs] - 1
    for (first, second, label, weight), window in zip(rows, windows, strict=True):
        assert (*first, *second) == tuple(window)
        assert (label, weight) == (highest, float(pairs != "pieces"))


@pytest.mark.parametrize("pairs", ["utterance", "relevance"])
def test_a_text_of_the_dialogue_is_no_strangers(pairs):
    # Two sessions that say the same six things in the same order.
    twins = [session(number, 6, same_as=[1, 2, 3, 4, 5, 6]) for number in (1, 2) * 6]
    form = make_form(pairs)
    samples = draw(twins, form)
    dialogues, rows = post_training.make_pair_rows(samples, form, SEED)
    texts = tf.gather(dialogues.utterances, rows.second.values).numpy()
    labels = rows.targets["labels"].numpy()
    heard = [text in said for text, said in zip(texts, samples["utterances"].to_list())]
    weights = rows.targets["weights"].numpy().tolist()
    assert weights == [float(label > 0 or not known) for label, known in zip(labels, heard)]
    assert {0.0, 1.0} == set(weights)


def make(pairs, layout="padded", replicas=1, rate=0.15, speakers=True, sizes=(64, 32)):
    form = make_form(pairs, rate=rate, first=sizes[0], second=sizes[1], speakers=speakers)
    samples = draw(SESSIONS, form)
    return post_training.make_post_training_batches(
        samples, form, SEED, replicas, Layout(layout, row_length=64)
    )


def cells(batch, column):
    return batch[column].numpy().reshape(-1)


@pytest.mark.parametrize("sizes", [(64, 32), (7, 4)])
def test_with_its_masked_tokens_put_back_a_sequence_is_the_references(sizes):
    (batch,) = make("relevance", sizes=sizes)
    tokens = batch["token_ids"].numpy().copy()
    tokens.reshape(-1)[batch["masked_lm_places"]] = batch["masked_lm_ids"]
    form = make_form("relevance")
    dialogues, rows = post_training.make_pair_rows(
        draw(SESSIONS, form), form, tf.unstack(tf.random.split(SEED, 2))[0]
    )
    speakers = tf.gather(dialogues.speakers, rows.first).to_list()
    contexts, seconds = read(dialogues, rows.first), read(dialogues, rows.second)
    for row, (context, (second,)) in enumerate(zip(contexts, seconds, strict=True)):
        expected = reference.pair_sequence(
            [[turn] for turn in context], speakers[row], [second], *sizes, CLS, SEP, EOT
        )
        length = len(expected[0])
        found = (tokens[row], batch["segment_ids"].numpy()[row], batch["speaker_ids"].numpy()[row])
        assert [column[:length].tolist() for column in found] == list(expected)
        assert not tokens[row, length:].any()
    np.testing.assert_array_equal(batch["pairs_labels"], rows.targets["labels"])


@each_kind
def test_every_token_of_a_text_can_be_predicted_and_no_mark(pairs):
    (batch,) = make(pairs, rate=1.0)
    tokens = cells(batch, "token_ids")
    places = batch["masked_lm_places"].numpy()
    marks = np.isin(tokens, (CLS, SEP, EOT, 0))
    assert sorted(places) == np.flatnonzero(~marks).tolist()
    assert batch["masked_lm_ids"].numpy().min() >= 100
    assert (tokens == EOT).sum() > 24
    assert 0.6 < (tokens[places] == MASK).mean() < 0.95  # four fifths


@each_kind
def test_the_weights_of_both_tasks_add_up_to_the_rows(pairs):
    for batches in (make(pairs, rate=0.5), make(pairs, replicas=2, rate=0.5)):
        for task in ("pairs", "masked_lm"):
            total = sum(float(tf.reduce_sum(batch[f"{task}_weights"])) for batch in batches)
            assert total == pytest.approx(12.0)
    (whole,) = make(pairs, rate=0.5)
    weights = whole["masked_lm_weights"].numpy()
    assert len(weights) > 20
    np.testing.assert_allclose(weights, 12.0 / len(weights))


@each_kind
def test_replicas_have_the_rows_of_the_whole(pairs):
    (whole,), parts = make(pairs), make(pairs, replicas=2)
    for name in ("pairs_labels", "pairs_weights", "masked_lm_ids", "masked_lm_weights"):
        together = np.concatenate([part[name] for part in parts])
        np.testing.assert_array_equal(together, whole[name])
    for name in ("token_ids", "segment_ids", "speaker_ids"):
        together = np.concatenate([part[name] for part in parts])
        np.testing.assert_array_equal(together, whole[name])


@each_kind
def test_packed_rows_have_the_tokens_of_padded_ones(pairs):
    (padded,), (packed,) = make(pairs), make(pairs, "packed")
    assert packed["token_ids"].shape[0] < padded["token_ids"].shape[0]
    for task in ("pairs", "masked_lm"):
        for column in ("token_ids", "segment_ids", "speaker_ids"):
            found = [
                cells(batch, column)[batch[f"{task}_places"].numpy()] for batch in (padded, packed)
            ]
            np.testing.assert_array_equal(*found)
    assert "places" not in packed
    (without,) = make(pairs, speakers=False)
    assert "speaker_ids" not in without


@pytest.mark.parametrize("pairs", post_training.PAIRS)
def test_speakers_are_told_unless_they_give_the_answer_away(pairs):
    (batch,) = make(pairs)
    assert batch["speaker_ids"].numpy().any() == (pairs != "pieces")


def test_the_step_draws_masks_and_strangers_anew():
    form = make_form("utterance")
    samples = draw(SESSIONS, form)
    first, second = (
        post_training.make_post_training_batches(
            samples, form, tf.constant([step, 0], tf.int64), 1, Layout("padded")
        )[0]
        for step in range(2)
    )
    np.testing.assert_array_equal(first["pairs_labels"], second["pairs_labels"])
    assert set(first["masked_lm_places"].numpy()) != set(second["masked_lm_places"].numpy())
