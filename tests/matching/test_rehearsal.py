"""Garbled texts, on which an encoder rehearses what it said at the start."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from test_batches import make_samples
from tiny_batch import TEMPERATURE, make_batch
from tiny_bert import build_backbone, draw_utterances, encode_alone
from train_options import make_options
from whole_gradients import assert_same, differentiate

from dcse_tf.bert import bert
from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.wordpiece import WordPiece
from dcse_tf.data.batch import turns_of_samples
from dcse_tf.data.dialogue import Context
from dcse_tf.data.manifest import Corpus, read_manifest
from dcse_tf.data.rehearsal import RehearsalForm, append_garbled, garble
from dcse_tf.data.stream import PADDED, BatchForm, Stream, make_contrastive_dataset
from dcse_tf.matching.dialogue_cse import Objective, build_dialogue_cse
from dcse_tf.matching.rehearsal import RehearsalLoss
from dcse_tf.matching.start import StartObjective
from dcse_tf.options import OptionError
from dcse_tf.tasks.shared import make_rehearsal_form
from dcse_tf.training.build import build_training

SEED = tf.constant([3, 4])
# Neither is an id of a text below.
WORDS = (900, 901, 902)
FORM = RehearsalForm(4, (0, 2, 3), WORDS)


def test_half_of_the_ordinary_tokens_become_words():
    texts = tf.constant([[2, *range(10, 28), 3, 0, 0]] * 400)
    garbled = garble(texts, FORM, SEED).numpy()
    ordinary = (texts.numpy() >= 10) & (texts.numpy() < 28)
    np.testing.assert_array_equal(garbled[~ordinary], texts.numpy()[~ordinary])
    changed = garbled != texts.numpy()
    assert set(garbled[changed].tolist()) == set(WORDS)
    # 7,200 draws: four standard deviations are 2.4 hundredths.
    assert changed[ordinary].mean() == pytest.approx(0.5, abs=0.024)
    assert len({tuple(row) for row in changed.tolist()}) > 390
    np.testing.assert_array_equal(garbled, garble(texts, FORM, SEED).numpy())
    assert (garbled != garble(texts, FORM, SEED + 1).numpy()).any()


def test_the_prefix_stays_as_it_is():
    texts = tf.constant([[2, *range(10, 28), 3, 0, 0]] * 20)
    form = dataclasses.replace(FORM, prefix_tokens=2)
    changed = (garble(texts, form, SEED) != texts).numpy().any(axis=0)
    assert changed[:4].tolist() == [False, False, False, True]
    tokens = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", ":", "go")
    assert make_rehearsal_form(WordPiece(tokens, True, prefix="query: "), 8).prefix_tokens == 2


def test_garbled_responses_follow_the_turns():
    turns = turns_of_samples(make_samples(), 1)
    more = append_garbled(turns, FORM, SEED)
    count = len(turns["utterances"])
    assert more["rehearsed"].numpy().tolist() == [[count + i] for i in range(4)]
    for name in ("token_ids", "utterances"):
        np.testing.assert_array_equal(more[name][:count], turns[name])
        assert len(more[name]) == count + 4
    responses = tf.gather(turns["token_ids"], turns["response"]).numpy().tolist()
    for text in more["token_ids"].numpy()[count:].tolist():
        assert any(
            all(
                a == b or (a in WORDS and b not in FORM.special_ids) for a, b in zip(text, response)
            )
            for response in responses
        )


def test_what_is_drawn_are_words():
    tokens = ("[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "!", "go", "##ing", "好")
    form = make_rehearsal_form(WordPiece((*tokens, "[EOT]"), lowercase=True), 8)
    assert form == RehearsalForm(8, (0, 2, 3, 4, 5, 10), (6, 7, 9))


# The loss


def mean_embeddings(backbone):
    encoder = build_bert_encoder(backbone)
    return [
        reference.mean_of_rows(encode_alone(encoder, ids).astype(float))
        for ids in draw_utterances(8)
    ]


def test_the_loss_is_the_distance_from_what_was_said_before():
    start, trained = build_backbone(seed=5), build_backbone()
    texts, weights = [1, 6, 1], [0.5, 0.25, 2.0]
    batch = {
        **make_batch(),
        "rehearsal_index": tf.constant(texts)[:, None],
        "rehearsal_weights": tf.constant(weights),
    }
    objective = Objective(TEMPERATURE, start=StartObjective(start, rehearsal_weight=3.0))
    outputs = build_dialogue_cse(trained, PADDED, objective)(batch)
    alone = build_dialogue_cse(trained, PADDED, Objective(TEMPERATURE))(make_batch())

    before, after = mean_embeddings(start), mean_embeddings(trained)
    expected = [w * (1.0 - reference.cosine(after[i], before[i])) for i, w in zip(texts, weights)]
    assert min(expected) > 1e-3
    np.testing.assert_allclose(outputs["rehearsal_loss"], expected, rtol=1e-4)
    np.testing.assert_allclose(outputs["rehearsal_share"], 3.0 * np.array(expected), rtol=1e-4)
    np.testing.assert_allclose(outputs["loss"], alone["loss"], rtol=1e-5)


def test_the_layer_is_the_same_after_saving_and_loading():
    layer = RehearsalLoss(name="rehearsal")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.get_config() == layer.get_config()


# Batches


@pytest.fixture(scope="module")
def make(data_dir):
    corpus = Corpus(data_dir, read_manifest(data_dir))
    rehearsal = make_rehearsal_form(read_vocabulary(data_dir / "vocabulary"), 6)

    @functools.cache  # a pipeline takes seconds to build
    def run(name="unique", replicas=1, first_step=0, steps=1, fixed=False, form=rehearsal):
        stream = Stream(8, 3, first_step, replicas, fixed_shapes=fixed)
        batch_form = BatchForm(name, 3, session_turns=4)
        dataset = make_contrastive_dataset(
            corpus, batch_form, Context(2, "both"), stream, rehearsal=form
        )
        return [
            {key: value.numpy() for key, value in batch.items()}
            for batch in dataset.take(steps * replicas)
        ]

    return run


def read_texts(batch, index):
    return [tuple(x for x in batch["token_ids"][place].tolist() if x) for place in index]


def read_rehearsed(batch):
    return read_texts(batch, batch["rehearsal_index"][:, 0])


forms = pytest.mark.parametrize("name", ["unique", "dense", "plain"])


@forms
def test_a_step_has_texts_beside_what_it_had(make, name):
    batch, plain = make(name)[0], make(name, form=None)[0]
    assert len(set(read_rehearsed(batch))) == 6
    for index in ("context_index", "candidate_index"):
        texts = [read_texts(b, b[index].reshape(-1)) for b in (batch, plain)]
        assert texts[0] == texts[1]
    rows = batch["candidate_mask"][:, 1:].any(axis=1).sum()
    np.testing.assert_allclose(batch["rehearsal_weights"], [rows / 6] * 6)


@forms
def test_replicas_share_the_texts(make, name):
    (whole,), parts = make(name), make(name, replicas=2)
    assert [len(read_rehearsed(part)) for part in parts] == [3, 3]
    assert [text for part in parts for text in read_rehearsed(part)] == read_rehearsed(whole)
    weights = np.concatenate([part["rehearsal_weights"] for part in parts])
    np.testing.assert_array_equal(weights, whole["rehearsal_weights"])


@forms
def test_batches_after_a_step_are_those_of_a_run_that_took_it(make, name):
    whole, rest = make(name, steps=4), make(name, first_step=2, steps=2)
    assert read_rehearsed(whole[1]) != read_rehearsed(whole[2])
    for one, two in zip(whole[2:], rest, strict=True):
        assert one.keys() == two.keys()
        for key, value in one.items():
            np.testing.assert_array_equal(value, two[key])


@forms
def test_fixed_shapes_are_filled_up_and_are_always_the_same(make, name):
    free, fixed = (make(name, 2, steps=3, fixed=x) for x in (False, True))
    shapes = [{key: value.shape for key, value in batch.items()} for batch in fixed]
    assert all(each == shapes[0] for each in shapes)
    for one, two in zip(free, fixed, strict=True):
        assert read_rehearsed(one) == read_rehearsed(two)
        np.testing.assert_array_equal(one["rehearsal_weights"], two["rehearsal_weights"])


# The training


@pytest.fixture(scope="module")
def build(data_dir, tmp_path_factory):
    """Trainings whose encoder is no longer what it was at the start."""
    folder = tmp_path_factory.mktemp("start")
    vocabulary = read_vocabulary(data_dir / "vocabulary")
    config = bert.make_bert_config(1, 64, len(vocabulary.tokens))
    backbone = bert.build_backbone(config, 0.0)
    bert.initialize_weights(backbone.trainable_variables, 0, stddev=0.3)
    bert.save_backbone(folder, backbone, config)
    vocabulary.write(folder)

    def run(**changes):
        settings = {
            "task": "dialogue_cse", "data_dir": str(data_dir), "run_dir": "unused",
            "encoder": str(folder), "global_batch_size": 8, "dropout": 0.0, "negatives": 3,
            "temperature": 0.2, "steps": 2, "dev_samples": 0, "freeze_layers": 0,
            "freeze_embeddings": False, "projector_sentences": 0,
            "rehearsal_weight": 2.0, "rehearsal_texts": 6,
        }  # fmt: skip
        training = build_training(make_options(**{**settings, **changes}))
        for i, variable in enumerate(training.model.trainable_variables):
            noise = tf.random.stateless_normal(variable.shape, [i, 9], 0.0, 0.05)
            variable.assign_add(noise)
        return training

    return run


_SUMS = ("rehearsal_loss",)


@pytest.fixture(scope="module")
def packed(build):
    """A training, and what `differentiate` says of it."""
    training = build()
    return training, differentiate(training, _SUMS)


def test_the_loss_has_the_mean_over_the_texts(build, packed):
    training, (sums, _) = packed
    loss, weight, _, rehearsed = sums
    alone, _ = differentiate(build(rehearsal_weight=0.0, rehearsal_texts=64), ())
    assert rehearsed / weight > 1e-3
    assert loss / weight == pytest.approx(alone[0] / weight + 2.0 * rehearsed / weight, rel=1e-4)
    outputs = training.model(next(iter(training.dataset())))
    assert rehearsed == pytest.approx(float(tf.reduce_sum(outputs["rehearsal_loss"])), rel=1e-5)


def test_two_devices_have_the_loss_and_gradients_of_one(packed):
    training, found = packed
    assert_same(found, differentiate(training, _SUMS, replicas=2))


def test_two_devices_have_those_of_one_where_every_turn_is_a_response(build):
    training = build(batch_form="dense")
    assert_same(differentiate(training, _SUMS), differentiate(training, _SUMS, replicas=2))


# The plain form is padded.
@pytest.mark.parametrize("changes", [{"layout": "padded"}, {"batch_form": "plain"}])
def test_layouts_and_forms_have_one_loss_and_gradient(packed, build, changes):
    assert_same(packed[1], differentiate(build(**changes), _SUMS))


def test_without_it_nothing_is_rehearsed(build):
    training = build(rehearsal_weight=0.0, rehearsal_texts=64, prediction_weight=0.5)
    assert not any("rehears" in name for name in training.model.output)
    assert not any("rehears" in name for name in training.dataset().element_spec)
    assert "rehearsal_loss" not in training.spec.more_metrics(training.options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoder": "e", "rehearsal_texts": 8}, "has no meaning without `rehearsal_weight`"),
        ({"encoder_size": "tiny", "rehearsal_weight": 1.0}, "needs an `encoder`"),
        (
            {"encoder": "e", "rehearsal_weight": 1.0, "rehearsal_texts": 7, "logical_cpus": 2},
            "not divisible by `logical_cpus`=2",
        ),
    ],
)
def test_what_it_needs(values, message):
    with pytest.raises(OptionError, match=message):
        make_options(data_dir="d", run_dir="r", **values)
