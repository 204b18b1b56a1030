"""The examples of response selection and its auxiliary tasks, read back turn by turn.

A turn's only token says what it is: 100 x session + turn.
"""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
from drawn_dialogues import RULE, batch_samples, change, collect, read, session

from dcse_tf.data import dialogue_step as tasks
from dcse_tf.data.dialogue import Session, Utterance
from dcse_tf.data.dialogue_step import DialogueSource, DialogueStep, draw_dialogue
from dcse_tf.data.records import serialize_session
from dcse_tf.tasks.objective import score_best_rule


def windows(dialogues):
    return read(dialogues, tf.ragged.range(dialogues.starts, dialogues.ends))


def draw_often(features, context_turns, times):
    """The dialogues that a session gives under so many seeds."""
    source = DialogueSource(context_turns, RULE)
    draw = tf.function(lambda seed: draw_dialogue(features, seed, source))
    return (draw(tf.constant([seed, 0], tf.int64)) for seed in range(times))


def test_a_dialogue_is_a_run_of_turns_that_ends_with_its_response():
    lengths, last, differ = collections.Counter(), collections.Counter(), 0
    for drawn in draw_often(session(1, 6), 3, times=60):
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
        assert drawn["roles"].numpy().tolist() == [70 + text % 2 for text in texts]
        lengths[len(texts)] += 1
        last.update(name for name in ("hidden", "odd") if int(drawn[name]) == len(texts) - 1)
        differ += int(drawn["hidden"]) != int(drawn["odd"])
    assert set(lengths) == {2, 3, 4}
    # The response too is hidden and replaced, and the two choices have nothing to do with another.
    assert last["hidden"] > 10
    assert last["odd"] > 10
    assert differ > 20


def test_half_of_the_dialogues_lose_a_piece_and_either_is_as_often_the_one():
    counts = collections.Counter()
    for drawn in draw_often(session(1, 6), 3, times=400):
        counts[bool(drawn["right"]), bool(drawn["replaced"])] += 1
    # Four standard deviations of 400 draws with probability 1/4.
    assert len(counts) == 4
    assert all(abs(count - 100) < 35 for count in counts.values())


def test_a_pair_is_of_one_speaker_and_two_texts():
    found, speakers = set(), [0, 1, 1, 0, 1]
    for drawn in draw_often(session(1, 5, speakers), 9, times=300):
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
    for repeated in draw_often(session(1, 3, [0, 1, 0], [9, 8, 9]), 9, times=10):
        assert repeated["pair"].numpy().tolist() == [-1, -1]


@pytest.fixture(scope="module")
def dialogues():
    return collect([session(number, 4 + number % 3) for number in range(1, 9)])


def test_matching_rows_are_a_context_with_its_response_and_one_of_another(dialogues):
    dialogues = change(dialogues, same_role=False)
    rows = tasks.draw_matching(dialogues, 2)
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


def test_a_replaced_piece_is_as_long_and_at_the_same_end_of_another_dialogue(dialogues):
    rows = tasks.draw_next_session(dialogues)
    left, right = read(dialogues, rows.first), read(dialogues, rows.second)
    samples = {k: dialogues.samples[k].numpy() for k in ("split", "right", "replaced")}
    every = windows(dialogues)
    kinds = collections.Counter()
    for row, (window, split) in enumerate(zip(every, samples["split"], strict=True)):
        own, place = [window[:split], window[split:]], int(samples["right"][row])
        found, turns = [left[row], right[row]], len(own[place])
        longer = [w for w in every if w is not window and len(w) > turns]
        pieces = [w[-turns:] if place else w[:turns] for w in longer]
        # A turn's number is even where its role is 70.
        seam = 0 if place else -1
        alike = [piece for piece in pieces if (piece[seam] - own[place][seam]) % 2 == 0]
        assert rows.targets["weights"][row] == (len(longer) > 0)
        kind = ("replaced" if alike else "any role") if samples["replaced"][row] else "kept"
        if not longer or kind == "kept":
            assert found == own
            assert rows.targets["labels"][row] == 1
            continue
        kinds[kind, place] += 1
        assert rows.targets["labels"][row] == 0
        assert found[1 - place] == own[1 - place]
        assert found[place] in (alike or pieces)
    assert kinds["replaced", 0]
    assert kinds["replaced", 1]
    assert rows.pieces


def replace_pieces(dialogues, replaced):
    """The rows of next session prediction, were it decided for all dialogues alike."""
    samples = {**dialogues.samples, "replaced": tf.fill([dialogues.count], replaced)}
    return tasks.draw_next_session(change(dialogues, samples=samples))


def test_neither_turns_nor_roles_nor_weights_tell_a_replaced_piece():
    mixed = collect([session(number, 2 + number % 9) for number in range(1, 40)])
    kept, replaced = replace_pieces(mixed, False), replace_pieces(mixed, True)
    np.testing.assert_array_equal(kept.first.row_lengths(), replaced.first.row_lengths())
    for name in ("weights", "hints"):
        np.testing.assert_array_equal(kept.targets[name], replaced.targets[name])
    assert float(tf.reduce_sum(kept.targets["weights"])) > 30
    assert float(tf.reduce_sum(replaced.targets["labels"] * replaced.targets["weights"])) == 0


def score_rule(make, steps, same_role=True):
    """What the best rule that reads nothing gets right, in percent."""
    drawn = [make(change(step, same_role=same_role)).targets for step in steps]
    names = ("labels", "weights", "hints")
    return 100.0 * score_best_rule({x: np.concatenate([d[x] for d in drawn]) for x in names})


def test_what_a_rule_gets_right_that_does_not_read():
    """400 examples: four standard deviations of the share of right guesses are 10 points."""
    # Windows of up to 21 turns from long sessions.
    sessions, source = [session(number, 60) for number in range(1, 17)], DialogueSource(20, RULE)
    draw = tf.function(lambda features, seed: draw_dialogue(features, seed, source))
    drawn = [batch_samples(sessions, draw, seed) for seed in range(25)]
    splits, number = tf.constant([0, 16]), tf.constant(0, tf.int64)
    steps = [DialogueStep(x, splits, seed, number, source) for seed, x in enumerate(drawn)]

    pieces, pairs = tasks.draw_next_session, tasks.draw_consistency
    assert score_rule(pieces, steps) == pytest.approx(50.0, abs=10)
    # Roles give pieces away where speakers alternate.
    assert score_rule(pieces, steps, same_role=False) == pytest.approx(75.0, abs=10)
    assert score_rule(pairs, steps) == 50.0
    assert score_rule(pairs, steps, False) == pytest.approx(75.0, abs=6)

    def match(dialogues):
        return tasks.draw_matching(dialogues, 1)

    assert score_rule(match, steps) == 50.0
    assert score_rule(match, steps, False) == pytest.approx(75.0, abs=6)
    post_training = functools.partial(tasks.draw_pairs, kind="utterance", masking=None)
    assert score_rule(post_training, steps) == pytest.approx(50.0, abs=10)


def test_the_best_rule_of_each_half_answers_the_other():
    """By the first half 0 means 1, and 3 is not known; by the second the same, and 2 is not."""
    labels, weights, hints = [1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 3.0], [0, 2, 0, 3]
    arrays = {"labels": labels, "weights": weights, "hints": hints}
    assert score_best_rule({k: np.array(v) for k, v in arrays.items()}) == 3 / 6


ROLES = [(70, 71)] * 4 + [(70, 75), (76, 71)]


def role_of(text):
    return ROLES[text // 100 - 1][text % 100 % 2]


def taken_from_others(dialogues):
    """(what is drawn, what it takes the place of) of every task."""
    every, odd = windows(dialogues), dialogues.samples["odd"].numpy()
    responses = [window[-1] for window in every]
    matching = tasks.draw_matching(dialogues, 3)
    found = read(dialogues, matching.second)
    for row, weight in enumerate(matching.targets["weights"].numpy()):
        own = responses[row // 4]
        shared = [text for text in responses if role_of(text) == role_of(own)]
        if row % 4 and weight and (len(shared) > 1 or role_of(own) > 71):
            yield found[row][0], own
    incoherence = tasks.draw_incoherence(dialogues)
    for row, said in enumerate(read(dialogues, incoherence.first)):
        yield said[odd[row]], every[row][odd[row]]
    seconds = read(dialogues, tasks.draw_consistency(dialogues).second)
    yield from ((taken, own) for (own,), (taken,) in zip(seconds[::2], seconds[1::2]))


def test_turns_of_others_are_of_the_same_role_where_any_other_session_has_it():
    """Of the last two sessions each has a party whose role no other session has."""
    sessions = [session(number, 8, roles=own) for number, own in enumerate(ROLES, start=1)]
    by_role = collections.defaultdict(set)
    for seed in range(8):
        for taken, own in taken_from_others(collect(sessions, seed=seed)):
            assert taken // 100 != own // 100
            by_role[role_of(own)].add(role_of(taken))
    assert (by_role[70], by_role[71]) == ({70}, {71})
    assert by_role[75] == {70, 71, 76}
    assert by_role[76] == {70, 71, 75}
    # A name that no other session has is no hint, whatever it is compared with.
    named = collect([session(n, 8, roles=(2 * n, 2 * n + 1)) for n in range(1, 9)])
    for rows in (tasks.draw_matching(named, 1), tasks.draw_consistency(named)):
        assert rows.targets["hints"].numpy().all()
    anyones = taken_from_others(collect(sessions, same_role=False))
    assert any(role_of(taken) != role_of(own) for taken, own in anyones)


def test_the_odd_turn_is_another_sessions_and_its_voice_the_dialogues(dialogues):
    rows = tasks.draw_incoherence(dialogues)
    odd = dialogues.samples["odd"].numpy()
    pairs = zip(read(dialogues, rows.first), windows(dialogues), strict=True)
    for row, (said, window) in enumerate(pairs):
        different = [place for place, (a, b) in enumerate(zip(said, window, strict=True)) if a != b]
        assert different == [odd[row]]
        assert said[odd[row]] // 100 != window[0] // 100
    assert read(dialogues, rows.speaker_turns) == windows(dialogues)


def test_consistency_pairs_a_turn_with_its_speakers_and_with_a_strangers(dialogues):
    rows = tasks.draw_consistency(dialogues)
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
    assert tasks.draw_next_session(alone).targets["labels"].numpy().tolist() == [1, 1]
    assert tasks.draw_incoherence(alone).targets["weights"].numpy().tolist() == [0, 0]
    assert not tasks.draw_consistency(alone).targets["weights"].numpy().any()
    labels = tasks.draw_matching(alone, 1).targets
    assert labels["weights"].numpy().tolist() == [1, 0, 1, 0]


def test_a_turn_or_piece_that_repeats_what_it_replaces_does_not_count():
    same = collect([session(n, 2, same_as=[1, 2]) for n in range(1, 7)])
    assert not tasks.draw_next_session(same).targets["weights"].numpy().any()
    same = change(same, same_role=False)
    odd = tasks.draw_incoherence(same)
    rows = zip(read(same, odd.first), same.samples["odd"].numpy(), strict=True)
    differs = [said[place] % 100 != place for said, place in rows]
    assert odd.targets["weights"].numpy().tolist() == differs


def test_another_turn_of_the_session_says_something_else():
    texts = [np.array([2, 50 + turn % 2, 3]) for turn in range(4)]
    turns = tuple(Utterance("ab"[turn % 2], "x") for turn in range(4))
    record = serialize_session(Session("9", turns), texts)
    source = DialogueSource(3, RULE, other_turns=True)
    for seed in range(12):
        drawn = source.draw(record, tf.constant([seed, 0], tf.int64))
        assert drawn["more_utterances"][0] != drawn["utterances"][-1]


def test_a_stranger_that_says_what_one_of_the_pair_says_makes_no_pair():
    """Each session has two turns of one speaker; they say 1 and 2, or 1 and 3."""
    both = collect([session(n, 2, [0, 0], same_as=[1, 2 + n % 2]) for n in range(1, 9)])
    rows = tasks.draw_consistency(both)
    first, second = (
        tf.gather(both.utterances, tf.squeeze(part.to_tensor(), 1)).numpy()
        for part in (rows.first, rows.second)
    )
    own, stranger = second[::2], second[1::2]
    differs = (stranger != own) & (stranger != first[::2])
    assert 0 < differs.sum() < 8
    assert rows.targets["weights"].numpy().tolist() == np.repeat(differs, 2).tolist()


def test_tasks_that_read_the_context_alone_see_no_response():
    """Of two or more turns before it; a context of one turn is read with its response."""
    sessions = [session(number, 2 + number % 5) for number in range(1, 17)]
    step = collect(sessions, without_response=True)
    every = windows(step)
    shown = [window[:-1] if len(window) > 2 else window for window in every]
    assert any(len(window) > 2 for window in every)
    assert any(len(window) == 2 for window in every)
    assert read(step, tasks.draw_restoration(step, 4).first) == shown
    replaced = step.samples["replaced"].numpy()
    pieces = tasks.draw_next_session(step)
    both = zip(read(step, pieces.first), read(step, pieces.second), strict=True)
    for row, (left, right) in enumerate(both):
        assert len(left + right) == len(shown[row])
        assert left
        assert right
        if not replaced[row]:
            assert left + right == shown[row]
    odd = step.samples["odd"].numpy()
    for row, said in enumerate(read(step, tasks.draw_incoherence(step).first)):
        assert len(said) == len(shown[row]) > odd[row]
    places = tf.reduce_max(step.samples["pair"], axis=1).numpy()
    assert (places < [len(window) for window in shown]).all()
    # Matching has the response still.
    seconds = read(step, tasks.draw_matching(step, 1).second)[::2]
    assert seconds == [[window[-1]] for window in every]


def test_any_two_turns_make_a_pair_where_speakers_do_not_matter():
    sessions = [session(number, 2) for number in range(1, 9)]
    assert (collect(sessions).samples["pair"].numpy() == -1).all()
    pairs = collect(sessions, any_pair=True).samples["pair"].numpy()
    assert {tuple(pair) for pair in pairs.tolist()} == {(0, 1), (1, 0)}
