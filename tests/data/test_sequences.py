"""Sequences of dialogues in a table: marks, masked tokens, lists of tokens, and replicas."""

import types

import numpy as np
import pytest
import tensorflow as tf
from drawn_dialogues import collect, session

from dcse_tf.data import dialogue_step as tasks
from dcse_tf.data.responses import GARBLED_SHARE, MaskingRule, garble, mask_tokens
from dcse_tf.data.table import make_batches

MASK, END = 7, 4
VOCABULARY = types.SimpleNamespace(
    tokens=range(2000), special_ids=(0, 2, 3, 4), mask_id=MASK, count_prefix=lambda: 1,
    begins_word={70, 71}.__contains__,
)  # fmt: skip
MASKING = MaskingRule(0.3, 4, VOCABULARY)
LAYOUTS = pytest.mark.parametrize("layout", [0, 64])  # tokens in a row; 0: padded


def draw_all(step):
    return {
        "matching": tasks.draw_matching(step, 1),
        "next_session": tasks.draw_next_session(step),
        "restoration": tasks.draw_restoration(step, MASK),
        "incoherence": tasks.draw_incoherence(step),
        "consistency": tasks.draw_consistency(step),
    }


def make(layout=0, draw=draw_all, words=3, **settings):
    step = collect([session(n, 5 + n % 3, words=words) for n in range(1, 9)], **settings)
    batches = make_batches(step, draw(step), layout)
    return step, [{name: value.numpy() for name, value in batch.items()} for batch in batches]


def spell(batch, name):
    """The tokens of each row of a task, read from the table by their places."""
    flat, mask = batch["token_ids"].ravel(), batch["padding_mask"]
    rows = batch["places"][batch[f"{name}_text"]]
    return [flat[row[mask[text]]] for row, text in zip(rows, batch[f"{name}_text"])]


@LAYOUTS
def test_a_context_ends_its_turns_and_is_read_with_a_response(layout):
    step, (batch,) = make(layout)
    first = spell(batch, "matching")[0].tolist()
    turns = step.turns.to_list()[: int(step.ends[0])]
    context = [token for turn in turns[:-1] for token in (*turn, END)]
    assert first == [2, *context, 3, *turns[-1], 3]
    flat = batch["segment_ids"].ravel()[batch["places"][batch["matching_text"][0]]]
    assert flat[: len(first)].tolist() == [0] * (2 + len(context)) + [1] * (len(turns[-1]) + 1)


@LAYOUTS
def test_all_tokens_of_one_turn_are_masked_and_listed(layout):
    step, (batch,) = make(layout)
    assert (batch["token_ids"].ravel()[batch["restoration_places"]] == MASK).all()
    for row, tokens in enumerate(spell(batch, "restoration")):
        own = batch["restoration_rows"] == row
        place = int(step.starts[row]) + int(step.samples["hidden"][row])
        assert batch["restoration_ids"][own].tolist() == step.turns.to_list()[place]
        assert (tokens == MASK).sum() == own.sum()
        assert batch["restoration_weights"][own].sum() == pytest.approx(1.0)
    assert batch["restoration_weights_total"][0] == pytest.approx(8.0)


def test_a_turn_that_was_cut_off_does_not_count():
    """Twenty words a turn, and room for 38 tokens: only the last turns are left."""
    _, (batch,) = make(words=20)
    kept = np.bincount(batch["restoration_rows"], minlength=8) > 0
    assert 0 < kept.sum() < 8
    assert batch["restoration_weights_total"][0] == pytest.approx(kept.sum())


def test_speakers_are_marked_except_where_they_would_tell():
    _, (batch,) = make()
    flat = batch["speaker_ids"].ravel()
    marks = {
        name: flat[batch["places"][batch[f"{name}_text"]]].any()
        for name in ("matching", "next_session")
    }
    assert marks == {"matching": True, "next_session": False}


@pytest.mark.parametrize("replicas", [2, 4])
def test_more_replicas_have_the_same_rows(replicas):
    _, (whole,) = make()
    _, parts = make(replicas=replicas)
    for name in ("matching", "next_session", "restoration", "incoherence", "consistency"):
        rows = [row.tolist() for part in parts for row in spell(part, name)]
        assert rows == [row.tolist() for row in spell(whole, name)]
        for key in ("weights", "labels", "ids", "turns"):
            if (full := f"{name}_{key}") in whole:
                together = np.concatenate([part[full] for part in parts])
                np.testing.assert_array_equal(together, whole[full])
        total = f"{name}_weights_total"
        assert {float(part[total][0]) for part in parts} == {float(whole[total][0])}


@pytest.mark.parametrize("kind", ["utterance", "pieces"])
def test_pairs_are_masked_and_classified(kind):
    _, (batch,) = make(draw=lambda step: {"pairs": tasks.draw_pairs(step, kind, MASKING)})
    assert set(batch["pairs_labels"]) == {0, 1}
    read = batch["token_ids"].ravel()[batch["pairs_places"]]
    changed = read != batch["pairs_ids"]
    assert 0.6 < changed.mean() < 1.0  # 80% are masked, 10% another word
    assert (read[changed] == MASK).mean() > 0.7
    assert not {0, 2, 3, 4} & set(batch["pairs_ids"])
    counts = np.bincount(batch["pairs_rows"], minlength=8)
    assert ((counts >= 1) & (counts <= 4)).all()
    assert batch["pairs_token_weights_total"][0] == len(read)


def test_masks_are_drawn_by_the_seed_and_leave_special_tokens():
    ids = tf.constant([[2, 100, 101, 102, 103, 104, 3, 0], [2, 50, 3, 0, 0, 0, 0, 0]])
    draws = [mask_tokens(ids, MASKING, tf.constant([seed, 1])) for seed in (0, 0, 1, 2, 3)]
    np.testing.assert_array_equal(draws[0][0], draws[1][0])
    assert any((draws[0][1] != other[1]).numpy().any() for other in draws[2:])
    for masked, asked in draws:
        assert asked.numpy().sum(axis=1).tolist() == [2, 1]  # 0.3 x 5, and at least one
        assert not asked.numpy()[np.isin(ids, [0, 2, 3])].any()
        np.testing.assert_array_equal(masked.numpy()[~asked], ids.numpy()[~asked])


def test_half_of_the_words_of_a_garbled_text_are_others():
    ids = tf.concat([tf.fill([400, 1], 2), tf.fill([400, 8], 60), tf.fill([400, 1], 3)], axis=1)
    found = garble(ids, VOCABULARY, tf.constant([1, 2])).numpy()
    assert (found[:, [0, 1, 9]] == ids.numpy()[:, [0, 1, 9]]).all()  # [CLS], the prefix, [SEP]
    # 2,800 tokens: four standard deviations of the share are 0.038.
    assert abs(np.isin(found[:, 2:9], [70, 71]).mean() - GARBLED_SHARE) < 0.038


def test_a_replaced_turn_is_marked_with_the_speaker_of_its_place():
    step, (batch,) = make(draw=lambda step: {"rows": tasks.draw_incoherence(step)}, same_role=False)
    own = step.starts.numpy()[batch["rows_rows"]] + batch["rows_turns"]
    found = batch["speaker_ids"].ravel()[batch["rows_places"]]
    np.testing.assert_array_equal(found, step.speakers.numpy()[own])
    assert {*found[batch["rows_turns"] == batch["rows_labels"][batch["rows_rows"]]]} == {0, 1}


def test_of_the_predicted_tokens_a_tenth_stays_and_a_tenth_is_another():
    ids = tf.concat([tf.fill([400, 1], 2), tf.fill([400, 10], 60), tf.fill([400, 1], 3)], axis=1)
    found, asked = mask_tokens(ids, MaskingRule(1.0, 10, VOCABULARY), tf.constant([1, 2]))
    drawn = found.numpy()[asked.numpy()]
    assert len(drawn) == 4000
    # Four standard deviations of 4,000 draws: 0.025 and 0.019.
    assert abs(np.mean(drawn == MASK) - 0.8) < 0.025
    assert abs(np.mean(drawn == 60) - 0.1) < 0.019


def test_a_stranger_that_the_dialogue_says_too_is_no_negative_of_post_training():
    same = collect([session(n, 2, same_as=[1, 2]) for n in range(1, 13)])
    targets = tasks.draw_pairs(same, "utterance", MASKING).targets
    labels = targets["labels"].numpy().tolist()
    assert {*labels} == {0, 1}
    assert targets["weights"].numpy().tolist() == labels
