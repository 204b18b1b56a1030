"""Tables padded or packed: the encoded tokens are the same, and rows are filled first fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from encoded_tables import build_masked_lm, build_table_encoder
from tiny_bert import DIM, build_backbone, draw_utterances, make_table

from dcse_tf.bert.bert import build_bert_encoder, initialize_weights
from dcse_tf.bert.layout import first_fit_decreasing, lay_out

layouts = pytest.mark.parametrize("layout", [16, 7])  # rows with some room, and with none


@pytest.fixture(scope="module")
def backbone():
    return build_backbone()


def token_ids(count=8, extra=0):
    return make_table(draw_utterances(count), extra)["token_ids"]


@layouts
def test_encoded_tokens_equal_those_of_the_padded_table(backbone, layout):
    table = token_ids(20, extra=2)
    padded = lay_out(table, 0)
    of_padded = {name: padded[name] for name in ("token_ids", "padding_mask")}
    expected = build_bert_encoder(backbone)(of_padded).numpy()
    batch = lay_out(table, layout)
    assert sorted(batch) == ["padding_mask", "places", "positions", "segments", "token_ids"]
    found = build_table_encoder(backbone, layout)(batch).numpy()
    assert found.shape == (20, table.shape[1], DIM)
    mask = padded["padding_mask"].numpy()
    np.testing.assert_array_equal(batch["padding_mask"], mask)
    np.testing.assert_allclose(found[mask], expected[mask], atol=1e-5)
    assert np.isfinite(found).all()


@layouts
def test_every_dropout_acts_in_every_layout(layout):
    """One at a time, the others off: what is encoded in training is then changed by it alone."""
    backbone = build_backbone(dropout=0.5)
    encoder, batch = build_table_encoder(backbone, layout), lay_out(token_ids(), layout)
    dropouts = [x for x in backbone._flatten_layers() if isinstance(x, keras.layers.Dropout)]
    # The embeddings' one, and in each of two layers those of the attention's weights, of its
    # output and of the feed-forward network.
    assert len(dropouts) == 1 + 2 * 3
    for dropout in dropouts:
        dropout.rate = 0.0
    quiet = encoder(batch, training=True).numpy()
    np.testing.assert_array_equal(quiet, encoder(batch, training=False))
    for dropout in dropouts:
        dropout.rate = 0.5
        changed = encoder(batch, training=True).numpy()
        assert np.abs(changed - quiet).max() > 1e-3, dropout.path
        dropout.rate = 0.0


@layouts
def test_logits_of_masked_tokens_are_the_same(backbone, layout):
    table = token_ids()
    # The second token of the utterances 1, 4 and 7, row by row.
    positions = tf.constant([1, 4, 7]) * table.shape[1] + 1
    logits = []
    for each in (0, layout):
        model, head = build_masked_lm(backbone, each)
        initialize_weights(head.trainable_variables, seed=1)
        logits.append(model({**lay_out(table, each), "mask_positions": positions}))
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)


def test_a_packed_table_worked_out_by_hand():
    table = tf.constant([[7, 8, 0, 0], [4, 5, 6, 9], [3, 0, 0, 0]], tf.int32)
    batch = lay_out(table, 5)
    # The longest first, utterance 1; beside it the 1 token of utterance 2 fits, of 0 only below.
    assert batch["token_ids"].numpy().tolist() == [[4, 5, 6, 9, 3], [7, 8, 0, 0, 0]]
    assert batch["segments"].numpy().tolist() == [[2, 2, 2, 2, 3], [1, 1, 0, 0, 0]]
    assert batch["positions"].numpy().tolist() == [[0, 1, 2, 3, 0], [0, 1, 0, 0, 0]]
    assert batch["places"].numpy().tolist() == [[5, 6, 0, 0], [0, 1, 2, 3], [4, 0, 0, 0]]
    assert tf.size(batch["token_ids"]) == 10


def test_utterances_without_a_token_take_no_cell():
    table = tf.concat([token_ids(5), tf.zeros([3, 7], tf.int32)[:, : token_ids(5).shape[1]]], 0)
    without, filled = lay_out(token_ids(5), 16), lay_out(table, 16)
    np.testing.assert_array_equal(filled["token_ids"], without["token_ids"])
    assert not filled["padding_mask"][5:].numpy().any()


def test_no_utterance_sees_its_neighbours(backbone):
    """Another token beside it in the row changes nothing."""
    encoder, table = build_table_encoder(backbone, 16), token_ids()
    changed = table.numpy()
    changed[0, 1] = 5 + (changed[0, 1] + 1) % 50
    one, two = (encoder(lay_out(tf.constant(t), 16)).numpy() for t in (table, changed))
    np.testing.assert_allclose(one[1:], two[1:], atol=1e-6)
    assert np.abs(one[0, 0] - two[0, 0]).max() > 1e-3


def pack_one_by_one(lengths, row_length):
    """The algorithm as it is told, one item after another."""
    ends, row, start = [], [0] * len(lengths), [0] * len(lengths)
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = (r for r, end in enumerate(ends) if end + lengths[item] <= row_length)
        row[item] = next(fitting, len(ends))
        if row[item] == len(ends):
            ends.append(0)
        start[item] = ends[row[item]]
        ends[row[item]] += lengths[item]
    return row, start, len(ends)


@pytest.mark.parametrize("seed", range(5))
def test_any_lengths_are_placed_as_one_by_one(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 10, rng.integers(1, 60)).tolist()
    for row_length in (9, 16, 50):
        row, start, rows = first_fit_decreasing(tf.constant(lengths, tf.int32), row_length)
        expected = pack_one_by_one(lengths, row_length)
        assert (row.numpy().tolist(), start.numpy().tolist(), int(rows)) == expected


def test_items_of_no_length_take_no_room_and_real_lengths_fill_the_rows():
    row, start, rows = first_fit_decreasing(tf.constant([0, 3, 0, 2]), 4)
    assert (row.numpy().tolist(), start.numpy().tolist(), int(rows)) == ([0, 0, 0, 1], [0] * 4, 2)
    # Lengths as of short messages: at least 95% of the cells have a token.
    lengths = np.clip(np.random.default_rng(0).poisson(12, 400), 3, 50)
    rows = first_fit_decreasing(tf.constant(lengths, tf.int32), 128)[2]
    assert lengths.sum() / (int(rows) * 128) > 0.95
