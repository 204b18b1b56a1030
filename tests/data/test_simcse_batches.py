"""Utterances against themselves: what is in a batch."""

import numpy as np
import pytest
import tensorflow as tf

from dcse_tf.bert.layout import Layout
from dcse_tf.data.batch import make_simcse_batches

PADDED = Layout("padded")
# The second and the fifth are one text, and so are the fourth and the sixth.
TEXTS = [(2, 10, 3), (2, 20, 21, 3), (2, 30, 3), (2, 40, 3), (2, 20, 21, 3), (2, 40, 3)]
FIRST = [True, True, True, True, False, False]


def make(texts=TEXTS, replicas=1):
    token_ids = tf.ragged.constant(texts, tf.int32, inner_shape=()).to_tensor()
    batches = make_simcse_batches(token_ids, replicas, PADDED)
    return [{name: value.numpy() for name, value in batch.items()} for batch in batches]


def texts_at(batch, index):
    return [tuple(i for i in batch["token_ids"][place].tolist() if i) for place in index]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_positive_is_the_same_text_in_another_entry(replicas):
    batches = make(replicas=replicas)
    own = 6 // replicas
    assert [len(batch["context_index"]) for batch in batches] == [own] * replicas
    for number, batch in enumerate(batches):
        mine = TEXTS[number * own : (number + 1) * own]
        positives = batch["candidate_index"][:, 0]
        assert texts_at(batch, batch["context_index"][:, 0]) == mine
        assert texts_at(batch, positives) == mine
        assert (batch["context_index"][:, 0] != positives).all()
        assert batch["turn_mask"].all()


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_negatives_are_the_second_views_of_all_other_texts_of_the_step(replicas):
    batches = make(replicas=replicas)
    firsts = {int(i) for batch in batches[:1] for i in batch["context_index"][:, 0]}
    for number, batch in enumerate(batches):
        for row, (index, mask) in enumerate(
            zip(batch["candidate_index"], batch["candidate_mask"], strict=True)
        ):
            place = number * (6 // replicas) + row
            assert mask[0] == FIRST[place]
            if not FIRST[place]:
                assert not mask.any()
                continue
            negatives = texts_at(batch, index[1:][mask[1:]])
            assert sorted(negatives) == sorted(set(TEXTS) - {TEXTS[place]})
    # A first view is nobody's candidate.
    (whole,) = make()
    assert not firsts & set(whole["candidate_index"][whole["candidate_mask"]].tolist())


def test_every_text_is_in_the_table_twice():
    (batch,) = make()
    table = texts_at(batch, range(len(batch["token_ids"])))
    assert sorted(table) == sorted([*set(TEXTS), *set(TEXTS)])


def test_a_batch_of_one_text_counts_once_and_has_no_negative():
    (batch,) = make([(2, 10, 3)] * 4)
    assert batch["candidate_mask"].sum() == 1
    np.testing.assert_array_equal(batch["candidate_mask"][0], [True] + [False] * 4)
