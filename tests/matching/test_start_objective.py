"""What the encoder as it was adds to the objective, and the contrast in both directions."""

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from test_batches import candidates, gather, make_samples
from tiny_batch import CANDIDATES, CONTEXTS, TEMPERATURE, make_batch
from tiny_bert import build_backbone, draw_utterances, encode_alone
from train_options import make_options
from whole_gradients import assert_same, differentiate

from dcse_tf.bert import bert
from dcse_tf.bert.bert import TokenCentering, build_bert_encoder
from dcse_tf.bert.layout import Layout, lay_out
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.batch import Shapes, make_batches, turns_of_samples
from dcse_tf.data.stream import PADDED
from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.matching.start import (
    CandidateSimilarity,
    FalseNegativeMask,
    StartObjective,
    mask_neighbours,
)
from dcse_tf.options import OptionError
from dcse_tf.training.build import build_training

# Which row's response a candidate is: 4, 6 and 7 are those of rows 0, 1 and 2.
OWNERS = [[0, 1, 2], [1, 0], [2, 0, 2]]


def embed(backbone):
    encoder = build_bert_encoder(backbone)
    return [encode_alone(encoder, ids) for ids in draw_utterances(8)]


def compute(objective, layout=PADDED, batch=None, backbone=None):
    model = build_dialogue_cse(backbone or build_backbone(), layout, objective)
    return {name: value.numpy() for name, value in model(batch or make_batch()).items()}


def batch_with_contexts():
    owners = tf.ragged.constant(OWNERS, tf.int32).to_tensor()
    return {**make_batch(), "candidate_context": owners}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_both_directions_contrast_the_contexts_of_a_response_too(share):
    outputs = compute(
        Objective(TEMPERATURE, cosine_weight=share, both_directions=True),
        batch=batch_with_contexts(),
    )
    tokens = embed(build_backbone())

    def contrast(pairs, score):
        values = [score([tokens[i] for i in CONTEXTS[row]], tokens[j]) for row, j in pairs]
        return reference.nt_xent(values, TEMPERATURE)

    def loss_of(row, score):
        forward = [(row, j) for j in CANDIDATES[row]]
        backward = [(owner, CANDIDATES[row][0]) for owner in OWNERS[row]]
        return (contrast(forward, score) + contrast(backward, score)) / 2

    expected = [
        share * loss_of(row, reference.plain_cosine)
        + (1 - share) * loss_of(row, reference.similarity)
        for row in range(3)
    ]
    np.testing.assert_allclose(outputs["loss"], expected, rtol=1e-4)
    one_way = compute(Objective(TEMPERATURE, cosine_weight=share))
    np.testing.assert_allclose(outputs["similarity"], one_way["similarity"], atol=1e-6)
    assert np.abs(outputs["loss"] - one_way["loss"]).max() > 1e-3


def cosines_of(tokens):
    """Of each candidate with its row's response, by mean embeddings."""
    return [
        [reference.plain_cosine([tokens[row[0]]], tokens[j]) for j in row] for row in CANDIDATES
    ]


def test_candidates_are_compared_with_the_true_response():
    backbone, batch = build_backbone(), make_batch()
    table = build_bert_encoder(backbone)({k: batch[k] for k in ("token_ids", "padding_mask")})
    found = CandidateSimilarity()(table, batch["padding_mask"], batch["candidate_index"]).numpy()
    for values, expected in zip(found, cosines_of(embed(backbone)), strict=True):
        np.testing.assert_allclose(values[: len(expected)], expected, atol=1e-5)


def test_negatives_that_mean_the_same_are_left_out_by_hand():
    similarity = tf.constant([[1.0, 0.9, 0.7, 0.2], [1.0, 0.1, 0.95, 0.0]])
    mask = tf.constant([[True] * 4, [True, True, False, True]])
    kept = FalseNegativeMask(0.7)(similarity, mask).numpy().tolist()
    assert kept == [[True, False, True, True], [True, True, False, True]]
    # The response stays, however low the limit is; without a limit everything does.
    assert FalseNegativeMask(-1.0)(similarity, mask).numpy()[:, 0].all()
    over = similarity + 1e-3
    np.testing.assert_array_equal(FalseNegativeMask(1.0)(over, mask), mask)
    layer = FalseNegativeMask(0.4)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.most_similar == 0.4


@pytest.mark.parametrize("layout", [PADDED, Layout("packed", 16)])
def test_the_start_masks_negatives_and_holds_similarities(layout):
    start, trained = build_backbone(seed=5), build_backbone()
    before, after = (cosines_of(embed(each)) for each in (start, trained))
    # Between two of the values: at one of them rounding would decide.
    values = sorted(value for row in before for value in row[1:])
    limit = float(np.mean(values[len(values) // 2 - 1 : len(values) // 2 + 1]))
    batch = make_batch()
    padding = batch.pop("padding_mask")
    batch |= lay_out(tf.where(padding, batch.pop("token_ids"), 0), layout)
    outputs = compute(
        Objective(TEMPERATURE, cosine_weight=1.0, start=StartObjective(start, limit, 0.5)),
        layout,
        batch,
        trained,
    )
    tokens, counts = embed(trained), []
    for row, candidates_ in enumerate(CANDIDATES):
        context = [tokens[i] for i in CONTEXTS[row]]
        kept = [j == 0 or value <= limit for j, value in enumerate(before[row])]
        values = [
            reference.plain_cosine(context, tokens[j])
            for j, stays in zip(candidates_, kept, strict=True)
            if stays
        ]
        teacher = [value / TEMPERATURE for value in before[row][1:]]
        anchor = reference.distillation(after[row][1:], teacher, TEMPERATURE, 1.0)
        loss = reference.nt_xent(values, TEMPERATURE) + 0.5 * anchor
        assert outputs["loss"][row] == pytest.approx(loss, rel=1e-4)
        assert outputs["anchor_loss"][row] == pytest.approx(anchor, rel=1e-4)
        counts.append(1 - sum(kept[1:]) / len(kept[1:]))
    np.testing.assert_allclose(outputs["left_out"], counts, atol=1e-6)
    assert 0 < sum(counts) < 3


def test_texts_that_mean_the_same_are_no_negatives_of_neighbours():
    backbone, batch = build_backbone(), make_batch()
    table = build_bert_encoder(backbone)({k: batch[k] for k in ("token_ids", "padding_mask")})
    tokens, places, rows = embed(backbone), [6, 2, 5, 3], [[0, 1], [1, 0], [2, 3], [3, 2]]
    mask = [[False, False, True, True]] * 2 + [[True, True, False, False]] * 2
    cosines = [
        [reference.plain_cosine([tokens[places[own]]], tokens[place]) for place in places]
        for own, _ in rows
    ]
    limit = float(np.median([cosines[row][text] for row in range(4) for text in range(4)
                             if mask[row][text]]))  # fmt: skip
    pairs = {
        "neighbour_index": tf.constant(places)[:, None],
        "neighbour_pairs": tf.constant(rows),
        "neighbour_mask": tf.constant(mask),
    }
    kept = mask_neighbours(StartObjective(backbone, limit + 1e-5), table, batch, pairs).numpy()
    expected = np.array(mask) & (np.array(cosines) <= limit + 1e-5)
    np.testing.assert_array_equal(kept, expected)
    assert 0 < kept.sum() < 8


def test_the_start_is_not_trained_and_the_anchor_is_at_its_lowest_where_nothing_changed():
    start, trained, changed = build_backbone(), build_backbone(), build_backbone(seed=5)
    objective = Objective(TEMPERATURE, start=StartObjective(start, anchor_weight=1.0))
    model = build_dialogue_cse(trained, PADDED, objective)
    assert len(model.trainable_variables) == len(
        build_dialogue_cse(trained, PADDED, Objective(TEMPERATURE)).trainable_variables
    )
    same = model(make_batch())["anchor_loss"].numpy()
    other = compute(objective, backbone=changed)["anchor_loss"]
    assert same[0] < other[0]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(make_batch())["anchor_loss"])
    norms = [tf.norm(g) for g in tape.gradient(loss, model.trainable_variables) if g is not None]
    assert max(norms) < 1e-4


@pytest.mark.parametrize("layout", [PADDED, Layout("packed")])
def test_a_centred_encoder_that_has_not_changed_is_where_the_start_is(layout):
    """Centring moves all embeddings alike, so rehearsal must compare with a centred start."""
    start = StartObjective(build_backbone(), rehearsal_weight=1.0)
    objective = Objective(TEMPERATURE, cosine_weight=1.0, start=start)
    model = build_dialogue_cse(build_backbone(), layout, objective, TokenCentering(dtype="float32"))
    batch = make_batch()
    table = lay_out(batch.pop("token_ids"), layout)
    rehearsed = {"rehearsal_index": tf.constant([[1], [6]]), "rehearsal_weights": tf.ones([2])}
    loss = model({**batch, **table, **rehearsed}, training=True)["rehearsal_loss"]
    np.testing.assert_allclose(loss, 0.0, atol=1e-5)


# Batches


def test_every_candidate_has_the_context_that_it_is_the_response_to():
    turns = turns_of_samples(make_samples(), 2)
    draw = tf.constant([1, 0])
    plain = make_batches(turns, 3, draw, 2, PADDED)
    (whole,) = make_batches(turns_of_samples(make_samples(), 1), 3, draw, 1, PADDED)
    whole = {name: value.numpy() for name, value in whole.items()}
    responses = [row[0] for row in candidates(whole)]
    for batch, before in zip(
        make_batches(turns, 3, draw, 2, PADDED, negative_contexts=True), plain, strict=True
    ):
        batch, before = ({k: v.numpy() for k, v in b.items()} for b in (batch, before))
        assert len(batch["context_index"]) == 8  # of both replicas
        assert candidates(batch) == candidates(before)
        own = batch["candidate_context"][:, 0]
        contexts = gather(batch, batch["context_index"])
        assert [contexts[i] for i in own] == gather(before, before["context_index"])
        for row, mask, names in zip(
            batch["candidate_context"], batch["candidate_mask"], candidates(batch), strict=True
        ):
            assert [responses[i] for i in row[mask]] == list(names)


def test_fixed_shapes_have_room_for_the_contexts_of_all_replicas():
    shapes = Shapes(rows=5, candidates=4, utterances=60, tokens=9, contexts=10)
    turns = turns_of_samples(make_samples(), 2)
    for batch in make_batches(
        turns, 3, tf.constant([1, 0]), 2, PADDED, shapes=shapes, negative_contexts=True
    ):
        assert batch["candidate_context"].shape == batch["candidate_index"].shape == (5, 4)
        assert batch["context_index"].shape == batch["turn_mask"].shape == (10, 3)
        assert not batch["turn_mask"][8:].numpy().any()


@pytest.mark.parametrize("name", ["anchor_weight", "false_negative_cosine"])
def test_random_weights_cannot_say_what_is_no_negative(name):
    with pytest.raises(OptionError, match=f"`{name}`.*needs an `encoder`"):
        make_options(data_dir="d", run_dir="r", encoder_size="tiny", **{name: 0.5})


# The training


@pytest.fixture(scope="module")
def start(data_dir, tmp_path_factory):
    """A small BERT of the corpus' vocabulary."""
    folder = tmp_path_factory.mktemp("start")
    vocabulary = read_vocabulary(data_dir / "vocabulary")
    config = bert.make_bert_config(2, 64, len(vocabulary.tokens))
    backbone = bert.build_backbone(config, 0.0)
    bert.initialize_weights(backbone.trainable_variables, 0, stddev=0.05)
    bert.save_backbone(folder, backbone, config)
    vocabulary.write(folder)
    return folder


def make_training_options(data_dir, start, run_dir="run", **changes):
    settings = {
        "task": "dialogue_cse", "data_dir": str(data_dir), "run_dir": str(run_dir), "steps": 4,
        "encoder": str(start), "global_batch_size": 8, "dropout": 0.0, "negatives": 3,
        "dev_samples": 0, "freeze_layers": 0, "freeze_embeddings": False, "cosine_weight": 0.5,
        "save_every": 2, "projector_sentences": 0, "log_every": 1,
        "both_directions": True, "false_negative_cosine": 0.9, "anchor_weight": 0.3,
        "prediction_weight": 0.4, "rehearsal_weight": 0.7, "rehearsal_texts": 8,
        "projection_dim": 8, "projection_share": 0.5,
    }  # fmt: skip
    return make_options(**{**settings, **changes})


_SUMS = ("left_out", "anchor_loss", "prediction_loss")


@pytest.fixture(scope="module")
def unique(data_dir, start):
    """A training on packed batches of distinct utterances, and what `differentiate` says of it."""
    training = build_training(make_training_options(data_dir, start))
    return training, differentiate(training, _SUMS)


def test_checkpoints_do_not_hold_the_start(unique):
    training, _ = unique
    start = {id(variable) for variable in training.model.get_layer("start_encoder").variables}
    saved = {id(variable) for variable in training.list_state()}
    assert len(saved) + len(start) == len(training.model.variables)
    assert not saved & start


def test_two_devices_have_the_loss_and_gradients_of_one(unique):
    training, found = unique
    assert_same(found, differentiate(training, _SUMS, replicas=2))
    assert found[0][3] > 0  # some negatives are left out


def test_two_devices_have_those_of_one_where_every_turn_is_a_response(data_dir, start):
    training = build_training(make_training_options(data_dir, start, batch_form="dense"))
    found = differentiate(training, _SUMS)
    assert_same(found, differentiate(training, _SUMS, replicas=2))
    assert found[0][3] > 0


# The plain form is padded.
@pytest.mark.parametrize("changes", [{"layout": "padded"}, {"batch_form": "plain"}])
def test_layouts_and_forms_have_one_loss_and_gradient(unique, data_dir, start, changes):
    other = build_training(make_training_options(data_dir, start, **changes))
    assert_same(unique[1], differentiate(other, _SUMS))
