"""Sequences of two segments against sequences written out by hand."""

import tensorflow as tf

from dcse_tf.bert.pairs import end_turns, place_segments, strip_ends
from dcse_tf.bert.token_rows import PairRule

CLS, SEP, EOT = 2, 3, 9


def join(contexts, responses, first=448, second=64):
    rule = PairRule(CLS, SEP, EOT, first, second)
    turns = tf.ragged.constant(contexts, tf.int32, ragged_rank=2)
    whole = turns.with_values(end_turns(turns.values, EOT)).merge_dims(1, 2)
    paired = responses is not None
    others = tf.ragged.constant(responses if paired else [[]] * len(contexts), tf.int32, 1)
    places = place_segments(whole, others, first, second, paired)
    token_ids = places.fill(whole.values, others.values, rule.marks)
    return [
        tf.RaggedTensor.from_tensor(table, lengths=places.lengths).to_list()
        for table in (token_ids, places.segment_ids())
    ]


def test_every_turn_ends_with_its_token():
    tokens, segments = join([[[11, 12], [13]], [[14]]], [[21], [22, 23]])
    assert tokens == [[CLS, 11, 12, EOT, 13, EOT, SEP, 21, SEP], [CLS, 14, EOT, SEP, 22, 23, SEP]]
    assert segments == [[0] * 7 + [1] * 2, [0] * 4 + [1] * 3]
    tokens, segments = join([[[11], [12]], [[13]]], None)  # one segment
    assert tokens == [[CLS, 11, EOT, 12, EOT, SEP], [CLS, 13, EOT, SEP]]
    assert segments == [[0] * 6, [0] * 4]
    tokens, segments = join([[[11]], []], [[], [21]])  # empty ones keep their marks
    assert tokens == [[CLS, 11, EOT, SEP, SEP], [CLS, SEP, 21, SEP]]
    assert segments == [[0] * 4 + [1], [0, 0, 1, 1]]


def test_context_is_cut_in_front_and_response_at_its_end():
    tokens, segments = join([[[11, 12], [13, 14]]], [[21, 22, 23]], first=6, second=3)
    assert tokens == [[CLS, EOT, 13, 14, EOT, SEP, 21, 22, SEP]]
    assert segments == [[0] * 6 + [1] * 3]


def test_texts_lose_their_marks():
    texts = tf.ragged.constant([[CLS, 11, 12, SEP], [CLS, 13, SEP]], tf.int32)
    assert strip_ends(texts).to_list() == [[11, 12], [13]]
