"""The examples of response selection and its auxiliary tasks, read back turn by turn.

A turn's only token says what it is: 100 x session + turn.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
from drawn_dialogues import collect, read, session

from dcse_tf.data import dialogue_tasks as tasks

SEED = tf.constant([7, 11], tf.int64)


def windows(dialogues):
    return read(dialogues, tf.ragged.range(dialogues.starts, dialogues.ends))


def test_a_dialogue_is_a_run_of_turns_that_ends_with_its_response():
    lengths = collections.Counter()
    for seed in range(60):
        drawn = tasks.draw_dialogue(session(1, 6), tf.constant([seed, 0], tf.int64), 3)
        texts = drawn["token_ids"].values.numpy().tolist()
        assert texts == list(range(texts[0], texts[0] + len(texts)))
        assert 2 <= len(texts) <= 4  # a context of 1 to 3 turns
        assert texts[0] == 100 or len(texts) == 4  # cut only where there are more
        # Turns alternate: the responder's are those at an even distance from the response.
        expected = [(len(texts) - 1 - place) % 2 for place in range(len(texts))]
        assert drawn["speakers"].numpy().tolist() == expected
        assert 1 <= int(drawn["split"]) < len(texts)
        assert 0 <= int(drawn["hidden"]) < len(texts)
        assert 0 <= int(drawn["odd"]) < len(texts)
        lengths[len(texts)] += 1
    assert set(lengths) == {2, 3, 4}


def test_half_of_the_dialogues_keep_both_pieces_and_a_quarter_loses_each():
    fates = [
        int(tasks.draw_dialogue(session(1, 6), tf.constant([seed, 1], tf.int64), 3)["replaced"])
        for seed in range(400)
    ]
    counts = collections.Counter(fates)
    # Four standard deviations of 400 draws with probability 1/2 and 1/4: 40 and 35.
    assert abs(counts[0] - 200) < 40
    assert abs(counts[1] - 100) < 35
    assert abs(counts[2] - 100) < 35


def test_a_pair_is_of_one_speaker_and_two_texts():
    found = set()
    for seed in range(300):
        speakers = [0, 1, 1, 0, 1]
        drawn = tasks.draw_dialogue(session(1, 5, speakers), tf.constant([seed, 0], tf.int64), 9)
        first, second = drawn["pair"].numpy().tolist()
        if len(drawn["utterances"]) == 5:
            found.add((first, second))
        if first < 0:
            assert second < 0
            assert len(drawn["utterances"]) == 2
            continue
        assert first != second
        assert speakers[first] == speakers[second]
    assert found == {(0, 3), (3, 0), (1, 2), (2, 1), (1, 4), (4, 1), (2, 4), (4, 2)}


def test_equal_texts_and_lonely_speakers_make_no_pair():
    for seed in range(10):
        draw = tf.constant([seed, 0], tf.int64)
        repeated = tasks.draw_dialogue(session(1, 3, [0, 1, 0], [9, 8, 9]), draw, 9)
        assert repeated["pair"].numpy().tolist() == [-1, -1]


@pytest.fixture(scope="module")
def dialogues():
    return collect([session(number, 4 + number % 3) for number in range(1, 9)])


def test_matching_rows_are_a_context_with_its_response_and_one_of_another(dialogues):
    rows = tasks.make_matching_rows(dialogues, 2, SEED)
    contexts, responses = read(dialogues, rows.first), read(dialogues, rows.second)
    true = windows(dialogues)
    assert rows.targets["labels"].numpy().tolist() == [1, 0, 0] * 8
    assert rows.targets["weights"].numpy().tolist() == [1.0] * 24
    all_responses = {window[-1] for window in true}
    for row, (context, (response,)) in enumerate(zip(contexts, responses, strict=True)):
        window = true[row // 3]
        assert context == window[:-1]
        if row % 3 == 0:
            assert response == window[-1]
        else:
            assert response in all_responses - {window[-1]}
            assert response != responses[row - 1][0]


def test_pieces_are_consecutive_or_one_is_the_same_kind_of_another_dialogue(dialogues):
    rows = tasks.make_next_session_rows(dialogues, SEED)
    left, right = read(dialogues, rows.first), read(dialogues, rows.second)
    splits, fates = (dialogues.samples[name].numpy() for name in ("split", "replaced"))
    assert set(fates.tolist()) == {0, 1, 2}
    others = windows(dialogues)
    lefts = [window[:split] for window, split in zip(others, splits, strict=True)]
    rights = [window[split:] for window, split in zip(others, splits, strict=True)]
    for row, fate in enumerate(fates):
        assert rows.targets["labels"][row] == (fate == 0)
        assert (left[row] == lefts[row]) == (fate != 1)
        assert (right[row] == rights[row]) == (fate != 2)
        assert left[row] in lefts
        assert right[row] in rights
    assert rows.ends


def test_the_odd_turn_is_another_sessions_and_its_voice_the_dialogues(dialogues):
    rows = tasks.make_incoherence_rows(dialogues, SEED)
    odd = dialogues.samples["odd"].numpy()
    for row, (said, window) in enumerate(
        zip(read(dialogues, rows.first), windows(dialogues), strict=True)
    ):
        different = [place for place, (a, b) in enumerate(zip(said, window, strict=True)) if a != b]
        assert different == [odd[row]]
        assert said[odd[row]] // 100 != window[0] // 100
    assert read(dialogues, rows.speaker_turns) == windows(dialogues)


def test_consistency_pairs_a_turn_with_its_speakers_and_with_a_strangers(dialogues):
    rows = tasks.make_consistency_rows(dialogues, SEED)
    first, second = read(dialogues, rows.first), read(dialogues, rows.second)
    pairs = dialogues.samples["pair"].numpy()
    for number, (window, (a, b)) in enumerate(zip(windows(dialogues), pairs, strict=True)):
        rows_of_it = slice(2 * number, 2 * number + 2)
        weights = rows.targets["weights"].numpy()[rows_of_it].tolist()
        if a < 0:
            assert weights == [0.0, 0.0]
            continue
        assert weights == [1.0, 1.0]
        assert first[rows_of_it] == [[window[a]], [window[a]]]
        assert second[2 * number] == [window[b]]
        assert second[2 * number + 1][0] // 100 != window[0] // 100


def test_without_another_session_nothing_is_taken_from_one():
    alone = collect([session(1, 5), session(1, 5)])
    assert tasks.make_next_session_rows(alone, SEED).targets["labels"].numpy().tolist() == [1, 1]
    assert tasks.make_incoherence_rows(alone, SEED).targets["weights"].numpy().tolist() == [0, 0]
    assert not tasks.make_consistency_rows(alone, SEED).targets["weights"].numpy().any()
    labels = tasks.make_matching_rows(alone, 1, SEED).targets
    assert labels["weights"].numpy().tolist() == [1, 0, 1, 0]


def test_a_turn_or_piece_that_repeats_what_it_replaces_does_not_count():
    same = collect([session(n, 2, same_as=[1, 2]) for n in range(1, 7)])
    replaced = same.samples["replaced"].numpy() > 0
    assert 0 < replaced.sum() < len(replaced)
    weights = tasks.make_next_session_rows(same, SEED).targets["weights"].numpy()
    assert weights.tolist() == (~replaced).tolist()
    odd = tasks.make_incoherence_rows(same, SEED)
    taken = [said[place] for said, place in
             zip(read(same, odd.first), same.samples["odd"].numpy(), strict=True)]  # fmt: skip
    differs = [text % 100 != place for text, place in
               zip(taken, same.samples["odd"].numpy(), strict=True)]  # fmt: skip
    assert odd.targets["weights"].numpy().tolist() == differs


def test_a_stranger_that_says_what_one_of_the_pair_says_makes_no_pair():
    """Each session has two turns of one speaker; they say 1 and 2, or 1 and 3."""
    both = collect([session(n, 2, [0, 0], same_as=[1, 2 + n % 2]) for n in range(1, 9)])
    rows = tasks.make_consistency_rows(both, SEED)
    first, second = (
        tf.gather(both.utterances, tf.squeeze(part.to_tensor(), 1)).numpy()
        for part in (rows.first, rows.second)
    )
    own, stranger = second[::2], second[1::2]
    differs = (stranger != own) & (stranger != first[::2])
    assert 0 < differs.sum() < 8
    assert rows.targets["weights"].numpy().tolist() == np.repeat(differs, 2).tolist()
