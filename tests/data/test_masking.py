import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from dcse_tf.data.masking import MaskingRule, list_predictions, mask_tokens

PAD, UNK, CLS, SEP, MASK = range(5)
SIZE = 45  # entries of the vocabulary: 40 that are not special
RULE = MaskingRule(
    mask_rate=0.15,
    max_predictions=10,
    mask_id=MASK,
    special_ids=(PAD, UNK, CLS, SEP, MASK),
    vocabulary_size=SIZE,
)


def make_rows(maskable, rows=1, padding=0, seed=0):
    """[CLS], random ordinary tokens, an [UNK] in their midst, [SEP], padding."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(5, SIZE, (rows, maskable))
    half = maskable // 2
    constant = [np.full((rows, n), i) for i, n in ((CLS, 1), (UNK, 1), (SEP, 1), (PAD, padding))]
    parts = [constant[0], ids[:, :half], constant[1], ids[:, half:], constant[2], constant[3]]
    return np.concatenate(parts, axis=1).astype(np.int32)


def mask(ids, rule=RULE, seed=0):
    masked = mask_tokens(tf.constant(ids), rule, tf.constant([9, seed]))
    return {name: value.numpy() for name, value in masked.items()}


def told_predictions(masked):
    """(row, place, true id, id that is seen instead) of every prediction."""
    return [
        (row, int(place), int(true), int(masked["token_ids"][row, place]))
        for row in range(len(masked["token_ids"]))
        for place, true, weight in zip(
            masked["mask_positions"][row], masked["mask_ids"][row], masked["mask_weights"][row]
        )
        if weight
    ]


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("seed", range(3))
def test_predictions_tell_the_true_tokens_and_nothing_else_changes(padding, seed):
    ids = make_rows(17, rows=20, padding=padding)
    masked = mask(ids, seed=seed)
    restored = masked["token_ids"].copy()
    for row, place, true, _ in told_predictions(masked):
        assert true == ids[row, place]
        restored[row, place] = true
    np.testing.assert_array_equal(restored, ids)
    np.testing.assert_array_equal(masked["padding_mask"], ids != PAD)


def test_no_place_is_predicted_twice():
    predictions = told_predictions(mask(make_rows(30, rows=100)))
    assert len({(row, place) for row, place, _, _ in predictions}) == len(predictions)


def test_special_and_padded_tokens_are_never_predicted():
    for seed in range(5):
        ids = make_rows(6, rows=50, padding=4)
        masked = mask(ids, dataclasses.replace(RULE, mask_rate=1.0), seed)
        assert all(ids[row, place] >= 5 for row, place, _, _ in told_predictions(masked))
        # At this rate every ordinary token is predicted: 6 a row.
        assert masked["mask_weights"].sum(axis=1).tolist() == [6.0] * 50


def test_a_prefix_is_never_predicted():
    rule = dataclasses.replace(RULE, mask_rate=1.0, prefix_tokens=2)
    masked = mask(make_rows(6, rows=50), rule)
    assert min(place for _, place, _, _ in told_predictions(masked)) == 3
    assert masked["mask_weights"].sum(axis=1).tolist() == [4.0] * 50


@pytest.mark.parametrize(
    ("maskable", "rate", "most", "expected"),
    [
        (20, 0.15, 10, 3),  # 20 x 0.15 = 3
        (12, 0.15, 10, 2),  # 1.8 is nearer to 2
        (9, 0.15, 10, 1),  # 1.35 is nearer to 1
        (1, 0.15, 10, 1),  # at least one
        (2, 0.0, 10, 1),
        (40, 0.5, 10, 10),  # at most so many
        (40, 0.15, 1, 1),
        (3, 1.0, 10, 3),  # a row shorter than the most predictions
    ],
)
def test_so_many_tokens_are_predicted(maskable, rate, most, expected):
    rule = dataclasses.replace(RULE, mask_rate=rate, max_predictions=most)
    masked = mask(make_rows(maskable, rows=30, padding=3), rule)
    assert masked["mask_weights"].sum(axis=1).tolist() == [expected] * 30
    for name in ("mask_positions", "mask_ids", "mask_weights"):
        assert masked[name].shape == (30, most)


def test_rows_of_other_lengths_have_predictions_of_their_own_number():
    rows = [make_rows(20)[0], np.pad(make_rows(5)[0], (0, 15)), np.pad([CLS, SEP], (0, 21))]
    masked = mask(np.stack(rows).astype(np.int32))
    # 20 x 0.15 = 3; 5 x 0.15 = 0.75, so 1; nothing that could be predicted.
    assert masked["mask_weights"].sum(axis=1).tolist() == [3.0, 1.0, 0.0]
    assert masked["token_ids"][2].tolist() == rows[2].tolist()


def test_what_is_no_prediction_weighs_and_names_nothing():
    masked = mask(make_rows(20, rows=30))
    none = masked["mask_weights"] == 0.0
    assert none.any()
    assert set(masked["mask_weights"].ravel()) == {0.0, 1.0}
    assert not masked["mask_ids"][none].any()
    assert not masked["mask_positions"][none].any()


def test_padding_changes_no_count_and_stays():
    bare, padded = make_rows(20, rows=10), make_rows(20, rows=10, padding=7)
    one, two = mask(bare), mask(padded)
    assert one["mask_weights"].tolist() == two["mask_weights"].tolist()
    assert not two["token_ids"][:, -7:].any()


@pytest.fixture(scope="module")
def many():
    """24,000 predictions: 1,000 rows of 20 tokens, 3 each, eight times."""
    ids = make_rows(20, rows=1000)
    return np.array([p for seed in range(8) for p in told_predictions(mask(ids, seed=seed))])


def test_most_are_hidden_by_mask_some_by_another_token_and_some_stay(many):
    assert len(many) == 24_000
    true, seen = many[:, 2], many[:, 3]
    # 80% [MASK], 10% a random token, which is the true one in a case of 40, 10% as they were.
    # Four standard deviations: 4 x sqrt(0.8 x 0.2 / 24,000) = 0.0103, 4 x sqrt(0.1 x 0.9 / 24,000)
    # = 0.0078.
    assert abs((seen == MASK).mean() - 0.8) < 0.0103
    assert abs((seen == true).mean() - (0.1 + 0.1 / 40)) < 0.0078
    assert abs(((seen != MASK) & (seen != true)).mean() - 0.1 * 39 / 40) < 0.0078


def test_random_tokens_are_all_the_ordinary_ones_alike(many):
    true, seen = many[:, 2], many[:, 3]
    counts = np.bincount(seen[(seen != MASK) & (seen != true)], minlength=SIZE)
    assert not counts[:5].any()
    # 24,000 x 0.1 x 39 / 40 = 2,340 over 40 tokens: 58.5 each, five standard deviations 38.
    assert (np.abs(counts[5:] - 58.5) < 38).all()


def test_all_places_are_predicted_alike(many):
    counts = np.bincount(many[:, 1], minlength=23)
    # Places 0, 11 and 22 hold [CLS], [UNK] and [SEP].
    assert not counts[[0, 11, 22]].any()
    # 24,000 over 20 places: 1,200 each, five standard deviations 5 x sqrt(8,000 x .15 x .85) = 160.
    assert (np.abs(np.delete(counts, [0, 11, 22]) - 1200) < 160).all()


def test_the_seed_alone_decides():
    ids = make_rows(20, rows=10)
    one, again, other = mask(ids, seed=1), mask(ids, seed=1), mask(ids, seed=2)
    assert all((one[name] == again[name]).all() for name in one)
    assert (one["mask_positions"] != other["mask_positions"]).any()


def test_predictions_are_listed_row_by_row_without_empty_places():
    batch = {
        "mask_positions": tf.constant([[2, 1, 0], [3, 0, 0]]),
        "mask_ids": tf.constant([[12, 11, 0], [23, 0, 0]]),
        "mask_weights": tf.constant([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
        "padding_mask": tf.ones([2, 5], tf.bool),
    }
    listed = list_predictions(batch)
    assert listed["mask_positions"].numpy().tolist() == [2, 1, 8]  # 1 x 5 + 3
    assert listed["mask_ids"].numpy().tolist() == [12, 11, 23]
    assert listed["mask_weights"].numpy().tolist() == [1.0, 1.0, 1.0]
