"""Learning pairs of neighbours beside dialogues: the loss, its batches, and the training run."""

import functools
import json
import shutil

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from train_options import make_options
from whole_gradients import assert_same, differentiate

from dcse_tf.bert import bert
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.data.dialogue import Context
from dcse_tf.data.manifest import Corpus, read_manifest
from dcse_tf.data.neighbours import NeighbourForm, append_pairs
from dcse_tf.data.stream import BatchForm, Stream, make_contrastive_dataset
from dcse_tf.errors import InputError
from dcse_tf.matching.neighbours import NeighbourContrast
from dcse_tf.options import OptionError
from dcse_tf.search.neighbours import mine_neighbours
from dcse_tf.search.options import MineNeighboursOptions
from dcse_tf.tasks.dialogue_cse import compute_contrastive_loss
from dcse_tf.training import job
from dcse_tf.training.build import build_training

PAIRS = 12  # a step


# Pairs become rows


def append(*pairs):
    """Pairs of texts, each a token id for its only token, after a table of two turns."""
    turns = {"token_ids": tf.constant([[2, 9, 3]] * 2), "utterances": tf.constant([9, 9], tf.int64)}
    texts = {
        "token_ids": tf.ragged.constant([[[2, *[a] * a, 3] for a in both] for both in pairs]),
        "utterances": tf.ragged.constant(pairs, tf.int64),
    }
    return {name: value.numpy().tolist() for name, value in append_pairs(turns, texts).items()}


def test_each_text_of_a_pair_is_told_from_all_but_its_partners():
    found = append([4, 5], [6, 1], [5, 6])
    assert found["neighbours"] == [[2], [3], [4], [5]]  # 4, 5, 6, 1
    assert found["neighbour_pairs"] == [[0, 1], [1, 0], [2, 3], [3, 2], [1, 2], [2, 1]]
    of_4, of_5 = [False, False, True, True], [False, False, False, True]
    of_6, of_1 = [True, False, False, False], [True, True, False, False]
    assert found["neighbour_mask"] == [of_4, of_5, of_6, of_1, of_5, of_6]


def test_the_texts_of_pairs_follow_the_turns():
    found = append([4, 5], [4, 1])
    assert found["utterances"] == [9, 9, 4, 5, 4, 1]
    widest = [2, 5, 5, 5, 5, 5, 3]
    assert [row for row in found["token_ids"] if row == widest] == [widest]
    assert found["token_ids"][0] == [2, 9, 3, 0, 0, 0, 0]
    assert found["neighbours"] == [[2], [3], [5]]


# The loss


def contrast(pairs, embeddings, temperature=0.2, weights=None):
    """By the layer, of texts of one token each."""
    names = list(embeddings)
    numbers = {name: place for place, name in enumerate(names)}
    found = append(*([10 + numbers[name] for name in both] for both in pairs))
    order = [row - 10 for row in np.array(found["utterances"])[2:]]
    table = np.array([embeddings[names[place]] for place in order], np.float32)[:, None]
    rows = len(found["neighbour_pairs"])
    result = NeighbourContrast(temperature)(
        tf.constant(table),
        tf.ones(table.shape[:2], tf.bool),
        tf.constant(found["neighbours"]) - 2,
        tf.constant(found["neighbour_pairs"]),
        tf.constant(found["neighbour_mask"]),
        tf.constant([1.0] * rows if weights is None else weights),
    )
    return [values.numpy() for values in result]


def test_the_loss_by_hand():
    # Two pairs at right angles: -log(e^(1/T) / (e^(1/T) + 2)) for T = 1 / ln 2 is log 2.
    embeddings = {"a": [1, 0], "b": [2, 0], "c": [0, 1], "d": [0, 3]}
    loss, hits = contrast([("a", "b"), ("c", "d")], embeddings, 1 / np.log(2.0), [1, 1, 0.5, 0])
    np.testing.assert_allclose(loss, np.log(2.0) * np.array([1, 1, 0.5, 0]), rtol=1e-5)
    assert hits.tolist() == [1.0, 1.0, 0.5, 0.0]
    embeddings["d"] = [1, 0]
    _, hits = contrast([("a", "b"), ("c", "d")], embeddings)
    assert hits.tolist() == [0.0] * 4  # equal is not above


def test_the_loss_equals_the_reference():
    rng = np.random.default_rng(0)
    embeddings = {name: rng.normal(size=4).astype(np.float32) for name in "abcdef"}
    pairs = [("a", "b"), ("c", "d"), ("b", "c"), ("e", "f")]
    expected = reference.neighbour_contrast(pairs, embeddings, 0.2)
    loss, hits = contrast(pairs, embeddings)
    np.testing.assert_allclose(loss, [value for value, _ in expected], rtol=1e-4)
    assert hits.tolist() == [hit for _, hit in expected]


def test_the_layer_is_the_same_after_saving_and_loading():
    layer = NeighbourContrast(0.3)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.contrast.temperature == 0.3


# Batches


@pytest.fixture(scope="module")
def pairs_dir(data_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("neighbours")
    (folder / "encoder").mkdir()
    vocabulary = read_vocabulary(data_dir / "vocabulary")
    config = bert.make_bert_config(1, 64, len(vocabulary.tokens))
    backbone = bert.build_backbone(config, 0.0)
    bert.initialize_weights(backbone.trainable_variables, 3, 0.3)
    bert.save_backbone(folder / "encoder", backbone, config)
    vocabulary.write(folder / "encoder")
    mine_neighbours(
        MineNeighboursOptions(
            data_dir=str(data_dir), encoder=str(folder / "encoder"), keep_share=0.2,
            output_dir=str(folder / "pairs"),
        )
    )  # fmt: skip
    return folder / "pairs"


@pytest.fixture(scope="module")
def make(data_dir, pairs_dir):
    corpus = Corpus(data_dir, read_manifest(data_dir))
    form = NeighbourForm(Corpus(pairs_dir, read_manifest(pairs_dir)), PAIRS)

    @functools.cache  # a pipeline takes seconds to build
    def run(name="unique", replicas=1, first_step=0, steps=1, fixed=False, neighbours=form):
        stream = Stream(8, 3, first_step, replicas, fixed_shapes=fixed)
        batch_form = BatchForm(name, 3, session_turns=4)
        dataset = make_contrastive_dataset(
            corpus, batch_form, Context(2, "both"), stream, neighbours
        )
        return [
            {key: value.numpy() for key, value in batch.items()}
            for batch in dataset.take(steps * replicas)
        ]

    return run


def read_texts(batch, index):
    return [tuple(x for x in batch["token_ids"][place].tolist() if x) for place in index]


def read_rows(batch):
    """Of each row the text, its partner, and the set of its negatives."""
    texts = read_texts(batch, batch["neighbour_index"][:, 0])
    return [
        (texts[own], texts[partner], {t for t, real in zip(texts, mask) if real})
        for (own, partner), mask in zip(batch["neighbour_pairs"], batch["neighbour_mask"])
    ]


forms = pytest.mark.parametrize("name", ["unique", "dense", "plain"])


@forms
def test_a_step_has_pairs_beside_what_it_had(make, name):
    batch, plain = make(name)[0], make(name, neighbours=None)[0]
    assert len(batch["neighbour_pairs"]) == 2 * PAIRS
    for index in ("context_index", "candidate_index"):
        mask = "turn_mask" if index == "context_index" else "candidate_mask"
        np.testing.assert_array_equal(batch[mask], plain[mask])
        texts = [read_texts(b, b[index].reshape(-1)) for b in (batch, plain)]
        assert texts[0] == texts[1]
    for own, partner, negatives in read_rows(batch):
        assert own != partner
        assert not negatives & {own, partner}


@forms
def test_replicas_share_the_pairs_and_have_the_negatives_of_all(make, name):
    (whole,), parts = make(name), make(name, replicas=2)
    assert [len(part["neighbour_pairs"]) for part in parts] == [PAIRS, PAIRS]
    assert [row for part in parts for row in read_rows(part)] == read_rows(whole)
    weights = np.concatenate([part["neighbour_weights"] for part in parts])
    np.testing.assert_array_equal(weights, whole["neighbour_weights"])
    rows = whole["candidate_mask"][:, 1:].any(axis=1).sum()
    assert weights.sum() == pytest.approx(rows)
    assert len(set(weights.tolist())) == 1


def test_unique_tables_have_every_text_once(make):
    for batch in (*make("unique"), *make("dense"), *make("unique", replicas=2)):
        table = [tuple(row) for row in batch["token_ids"].tolist()]
        assert len(set(table)) == len(table)


@forms
def test_batches_after_a_step_are_those_of_a_run_that_took_it(make, name, pairs_dir):
    """Over the end of the pairs' epoch, which is another than the dialogues'."""
    epoch = read_manifest(pairs_dir).splits["train"].sessions // PAIRS
    first, steps = epoch - 1, epoch + 2
    whole, rest = make(name, steps=steps), make(name, first_step=first, steps=steps - first)
    for one, two in zip(whole[first:], rest, strict=True):
        assert one.keys() == two.keys()
        for key, value in one.items():
            np.testing.assert_array_equal(value, two[key])


def test_an_epoch_visits_no_pair_twice(make, pairs_dir):
    steps = read_manifest(pairs_dir).splits["train"].sessions // PAIRS
    rows = [row[:2] for batch in make(steps=steps) for row in read_rows(batch)[::2]]
    assert len({frozenset(row) for row in rows}) == len(rows) == steps * PAIRS


@forms
def test_fixed_shapes_are_filled_up_and_are_always_the_same(make, name):
    free, fixed = (make(name, 2, steps=4, fixed=x) for x in (False, True))
    shapes = [{key: value.shape for key, value in batch.items()} for batch in fixed]
    assert all(each == shapes[0] for each in shapes)
    for one, two in zip(free, fixed, strict=True):
        assert read_rows(one) == read_rows(two)
        np.testing.assert_array_equal(one["neighbour_weights"], two["neighbour_weights"])


# The training


@pytest.fixture(scope="module")
def make_config(data_dir, pairs_dir):
    def run(**changes):
        settings = {
            "task": "dialogue_cse", "data_dir": str(data_dir), "run_dir": "unused",
            "encoder_size": "tiny", "global_batch_size": 8, "dropout": 0.0, "negatives": 3,
            "temperature": 0.2, "steps": 2, "dev_samples": 0, "freeze_layers": 0,
            "freeze_embeddings": False, "log_every": 1, "save_every": 1, "projector_sentences": 0,
            "neighbours_dir": str(pairs_dir), "neighbour_pairs": PAIRS, "neighbour_weight": 0.3,
        }  # fmt: skip
        return make_options(**{**settings, **changes})

    return run


@pytest.mark.parametrize("form", ["unique", "dense"])
def test_the_loss_is_the_share_of_both(make_config, form):
    training = build_training(make_config(layout="padded", batch_form=form))
    batch = next(iter(training.dataset()))
    sums = compute_contrastive_loss(training.model, batch)
    found = {name: float(value / sums["weight"]) for name, value in sums.items()}

    alone = build_training(
        make_config(
            layout="padded", batch_form=form, neighbours_dir="", neighbour_pairs=64,
            neighbour_weight=0.5,
        )
    )  # fmt: skip
    before = compute_contrastive_loss(alone.model, next(iter(alone.dataset())))
    dialogues = float(before["loss"] / before["weight"])

    tokens = training.setup.encoder({k: batch[k] for k in ("token_ids", "padding_mask")}).numpy()
    numpy = {key: value.numpy() for key, value in batch.items()}
    names = read_texts(numpy, range(len(tokens)))
    means = {
        name: reference.mean_of_rows(rows[mask])
        for name, rows, mask in zip(names, tokens, numpy["padding_mask"], strict=True)
    }
    pairs = [row[:2] for row in read_rows(numpy)[::2]]
    losses, hits = zip(*reference.neighbour_contrast(pairs, means, 0.2))
    assert found["neighbour_loss"] == pytest.approx(np.mean(losses), rel=2e-4)
    assert found["neighbour_accuracy"] == pytest.approx(np.mean(hits))
    assert found["loss"] == pytest.approx(0.7 * dialogues + 0.3 * np.mean(losses), rel=2e-4)


_SUMS = ("neighbour_loss", "neighbour_accuracy")


@pytest.fixture(scope="module")
def packed(make_config):
    """A training, and what `differentiate` says of it."""
    training = build_training(make_config())
    return training, differentiate(training, _SUMS)


def test_two_devices_have_the_loss_and_gradients_of_one(packed):
    training, found = packed
    assert_same(found, differentiate(training, _SUMS, replicas=2))


def test_two_devices_have_those_of_one_where_every_turn_is_a_response(make_config):
    training = build_training(make_config(batch_form="dense"))
    assert_same(differentiate(training, _SUMS), differentiate(training, _SUMS, replicas=2))


# The plain form is padded.
@pytest.mark.parametrize("changes", [{"layout": "bucketed"}, {"batch_form": "plain"}])
def test_layouts_and_forms_have_one_loss_and_gradient(packed, make_config, changes):
    other = build_training(make_config(**changes))
    assert_same(packed[1], differentiate(other, _SUMS))


def test_without_pairs_nothing_is_said_of_them(make_config):
    for changes in (
        {"neighbours_dir": "", "neighbour_pairs": 64, "neighbour_weight": 0.5},
        {"neighbour_weight": 0.0},
    ):
        training = build_training(make_config(**changes))
        assert not any("neighbour" in name for name in training.model.output)
        assert not any("neighbour" in name for name in training.dataset().element_spec)
        assert not training.spec.more_metrics(training.options)


@pytest.mark.slow
def test_pairs_are_learnt(make_config):
    training = build_training(
        make_config(neighbour_weight=0.9, learning_rate=2e-3, warmup_steps=0, steps=40)
    )
    batches = training.batches()
    before = training.trainer.train(batches, 1)
    training.trainer.train(batches, 38)
    after = training.trainer.train(batches, 1)
    assert after["neighbour_loss"] < 0.5 * before["neighbour_loss"]


@pytest.mark.slow
def test_a_run_is_resumed_with_the_same_pairs_alone(make_config, pairs_dir, tmp_path):
    run_dir = str(tmp_path / "run")
    job.train(make_config(run_dir=run_dir))
    events = (tmp_path / "run/tensorboard").rglob("events*")
    assert any(b"neighbour_accuracy" in path.read_bytes() for path in events)
    copy = tmp_path / "copy"
    shutil.copytree(pairs_dir, copy)
    job.train(make_config(run_dir=run_dir, neighbours_dir=str(copy), steps=3))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["settings"]["`keep_share`"] = 0.5
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"begun with other data or files: `neighbours_dir`: SHA"):
        job.train(make_config(run_dir=run_dir, neighbours_dir=str(copy), steps=4))


@pytest.mark.slow
def test_pairs_that_are_damaged_are_named(make_config, pairs_dir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pairs_dir, copy)
    for path in copy.glob("*.tfrecord"):
        content = bytearray(path.read_bytes())
        content[20] ^= 255
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"copy/train-00000-of-00008\.tfrecord: record 1 cannot"):
        job.train(make_config(run_dir=str(tmp_path / "run"), neighbours_dir=str(copy)))


def test_pairs_that_do_not_fit_are_refused(make_config, data_dir, pairs_dir, tmp_path):
    manifest = read_manifest(data_dir)
    with pytest.raises(OptionError, match=r"`neighbours_dir`=none: has no manifest; expected what"):
        make_config(neighbours_dir="none").resolve(manifest)
    with pytest.raises(OptionError, match="holds dialogues; expected what mine_neighbours wrote"):
        make_config(neighbours_dir=str(data_dir)).resolve(manifest)
    with pytest.raises(OptionError, match=r"`neighbour_pairs`=9999: .* has only \d+; give fewer"):
        make_config(neighbour_pairs=9999).resolve(manifest)
    for name, value, message in (
        ("tokenizer_fingerprint", "0" * 64, "mined with another vocabulary or casing than that of"),
        ("max_sequence_length", 17, "utterances of up to 17 tokens, .*data only of up to 16; run"),
    ):
        copy = tmp_path / name
        shutil.copytree(pairs_dir, copy)
        content = json.loads((copy / "manifest.json").read_text())
        (copy / "manifest.json").write_text(json.dumps({**content, name: value}))
        with pytest.raises(OptionError, match=message):
            make_config(neighbours_dir=str(copy)).resolve(manifest)


def test_pairs_from_another_division_of_the_dialogues_are_refused(
    make_config, data_dir, pairs_dir, tmp_path
):
    """They may hold what is now dev or test. Pairs from other dialogues are no such danger."""
    manifest, copy = read_manifest(data_dir), tmp_path / "pairs"
    shutil.copytree(pairs_dir, copy)
    content = json.loads((copy / "manifest.json").read_text())

    def mined_from(**changes):
        content["settings"] = {**content["settings"], **manifest.source, **changes}
        (copy / "manifest.json").write_text(json.dumps(content))
        return make_config(neighbours_dir=str(copy))

    mined_from().resolve(manifest)
    other = {"the train split": "9 sessions, 99 tokens"}
    with pytest.raises(OptionError, match="another division of these dialogues into train, dev a"):
        mined_from(**other).resolve(manifest)
    mined_from(**other, **{"the corpus": "0" * 64}).resolve(manifest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"neighbours_dir": ""}, r"`neighbour_weight`=0\.3: has no meaning without `neighbours_d"),
        ({"logical_cpus": 8}, "`neighbour_pairs`=12: not divisible by `logical_cpus`=8"),
        ({"neighbour_weight": 1.5}, "expected at most 1"),
        ({"neighbour_pairs": 1}, "expected at least 2"),
        ({"task": "simcse", "negatives": 9}, "has no meaning with `task`=simcse, only with dia"),
    ],
)
def test_what_does_not_go_together_is_refused(make_config, changes, message):
    with pytest.raises(OptionError, match=message):
        make_config(**changes)
