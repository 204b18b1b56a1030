import pytest
import reference
import tensorflow as tf
from tiny_batch import TEMPERATURE, make_batch, reference_similarities
from tiny_bert import build_backbone, draw_utterances

from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.bert.layout import Layout
from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.tasks.dialogue_cse import compute_contrastive_loss

PADDED = Layout("padded")


def test_contrastive_sums_equal_the_reference():
    backbone = build_backbone()
    encoder = build_bert_encoder(backbone)
    model = build_dialogue_cse(backbone, PADDED, Objective(TEMPERATURE))
    batch = make_batch()
    sums = {name: float(value) for name, value in compute_contrastive_loss(model, batch).items()}
    rows = reference_similarities(encoder)
    assert sums["loss"] == pytest.approx(sum(reference.nt_xent(r, TEMPERATURE) for r in rows), 1e-4)
    assert sums["positive_similarity"] == pytest.approx(sum(r[0] for r in rows), abs=1e-4)
    negatives = sum(sum(r[1:]) / len(r[1:]) for r in rows)
    assert sums["negative_similarity"] == pytest.approx(negatives, abs=1e-4)
    assert sums["accuracy"] == sum(r[0] > max(r[1:]) for r in rows)
    assert (sums["weight"], sums["samples"]) == (3, 3)
    assert sums["tokens"] == sum(len(ids) for ids in draw_utterances(8))


def test_masked_candidates_do_not_count_and_equal_is_not_above():
    similarity = tf.constant(
        [
            [0.5, 0.4, 0.9],  # above its one negative: 0.9 is none
            [0.5, 0.5, 0.1],  # equal to a negative: not above
            [-0.9, -0.95, 0.7],  # above its one negative, though both are below zero
            [0.2, 0.8, 0.8],  # without any negative
        ]
    )
    mask = tf.sequence_mask([2, 3, 2, 1])
    outputs = {"similarity": similarity, "loss": tf.constant([1.0, 2.0, 3.0, 4.0])}
    batch = {"candidate_mask": mask, "padding_mask": tf.constant([[True, True], [True, False]])}
    batch["token_ids"] = tf.zeros([2, 2], tf.int32)
    sums = compute_contrastive_loss(lambda batch, training: outputs, batch)
    # The last row has nothing to be told apart from: it is counted, and that is all.
    assert (float(sums["samples"]), float(sums["without_negatives"])) == (4, 1)
    assert (float(sums["weight"]), float(sums["loss"])) == (3, 6)
    assert float(sums["accuracy"]) == 2  # rows 0 and 2
    # 0.4 + (0.5 + 0.1) / 2 - 0.95
    assert float(sums["negative_similarity"]) == pytest.approx(0.4 + 0.3 - 0.95)
    assert float(sums["positive_similarity"]) == pytest.approx(0.5 + 0.5 - 0.9)
    assert float(sums["tokens"]) == 3


def test_the_loss_is_that_of_training_mode():
    modes = []

    def model(batch, training):
        modes.append(training)
        return {"similarity": tf.zeros([1, 2]), "loss": tf.zeros([1])}

    masks = {"candidate_mask": tf.ones([1, 2], tf.bool), "padding_mask": tf.ones([1, 1], tf.bool)}
    masks["token_ids"] = tf.ones([1, 1], tf.int32)
    compute_contrastive_loss(model, masks)
    assert modes == [True]
