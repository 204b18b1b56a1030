"""Losses and metrics of terms by hand, and the settings of its author's later code."""

import types

import numpy as np
import pytest
import reference
import safetensors.numpy
import tensorflow as tf
from train_options import SMALL, read_scalars

import dcse_tf
from dcse_tf.bert.vocabulary import BytePair
from dcse_tf.reading.cross_encoder import TurnScores
from dcse_tf.tasks.terms import selection
from dcse_tf.tasks.terms.contrast import Contrast
from dcse_tf.tasks.terms.start import Rehearse

LOGITS = np.array([1.5, -0.5, 0.25, 2.0], np.float32)  # of two pairs of rows
LABELS = np.array([1.0, 0.0, 1.0, 0.0], np.float32)


def make_term(kind, **options):
    """A term whose head gives the numbers that its rows are."""
    term = kind(types.SimpleNamespace(options=types.SimpleNamespace(**options)), 1.0)
    term.head = tf.identity
    return term


def compute(term, **rows):
    """The values of rows whose vectors are the logits."""
    encoded = types.SimpleNamespace(take_vectors=lambda text: tf.gather(LOGITS, text))
    found = term.compute(encoded, {"text": np.arange(4), "labels": LABELS, **rows})
    return {name: value.numpy().tolist() for name, value in found.items()}


def test_consistency_by_a_margin_and_as_classes():
    found = compute(make_term(selection.Consistency, consistency="margin"))
    pairs = [LOGITS[:2].tolist(), LOGITS[2:].tolist()]
    losses = [reference.consistency_loss(*pair, 0.6) for pair in pairs for _ in pair]
    assert found["loss"] == pytest.approx(losses, abs=1e-6)
    assert found["accuracy"] == [1.0, 1.0, 0.0, 0.0]
    classes = compute(make_term(selection.Consistency, consistency="speaker"))
    expected = list(map(reference.binary_cross_entropy, LOGITS.tolist(), LABELS.tolist()))
    assert classes["loss"] == pytest.approx(expected, abs=1e-6)
    assert classes["accuracy"] == found["accuracy"]


def test_the_metrics_of_the_contrast():
    """A masked candidate counts for nothing, and a tie is no hit."""
    term = make_term(Contrast, temperature=0.5)
    values = tf.constant([[0.5, 0.2, 0.9], [0.3, 0.3, 0.1], [0.4, 0.7, 0.8]])
    mask = tf.constant([[True, True, False], [True, True, True], [True, False, False]])
    found = term._contrast(values, {"candidate_mask": mask}, "similarity")
    assert found["accuracy"].numpy().tolist() == [1.0, 0.0, 1.0]
    np.testing.assert_allclose(found["negative_similarity"], [0.2, 0.2, 0.0])


def test_a_turn_is_scored_by_the_mean_and_the_maximum_of_its_tokens():
    """The second of two dialogues has three turns of the four that there may be, the first none."""
    rng = np.random.default_rng(0)
    turns, kernel = [rng.normal(size=(count, 3)) for count in (2, 1, 3)], rng.normal(size=(6, 1))
    layer = TurnScores(4)
    tokens, places = np.concatenate(turns).astype(np.float32), np.array([4, 4, 5, 6, 6, 6])
    layer.build(tokens.shape, places.shape, (2,))
    layer.set_weights([kernel, np.array([0.5])])
    expected = [[-1e9] * 4, [*reference.turn_scores(turns, kernel[:, 0], 0.5), -1e9]]
    np.testing.assert_allclose(layer(tokens, places, np.zeros(2)), expected, rtol=1e-5)


def test_any_entries_garble_a_text_where_none_begins_a_word():
    vocabulary = BytePair((*BytePair.special, *"abc"), False, merges=())
    setup = {"options": types.SimpleNamespace(rehearsal_texts=50), "vocabulary": vocabulary}
    term = Rehearse(types.SimpleNamespace(**setup), 1.0)
    ids, seed = tf.constant([[2, 5, 5, 5, 3]]), tf.constant([1, 2])
    step = {"token_ids": ids, "responses": tf.constant([0]), "seed": lambda _: seed}
    found = term.draw(types.SimpleNamespace(**step, add=np.array)).texts["text"]
    assert {*found[:, 1:4].ravel()} == {5, 6, 7}


SETTINGS = {
    **SMALL, "context_turns": 3, "auxiliary": ("next_session", "consistency"),
    "consistency": "any",
}  # fmt: skip


@pytest.mark.slow
def test_the_authors_form_shares_the_head_and_fades(data_dir, tmp_path):
    def train(name, **changes):
        folder = tmp_path / name
        values = {**SETTINGS, "data_dir": str(data_dir), "run_dir": str(folder), **changes}
        dcse_tf.train(task="response_selection", auxiliary_fade=0.5, **values)
        return safetensors.numpy.load_file(folder / "encoder/model.safetensors")

    # With a head of its own, the task does not teach the matching's.
    apart, shared = train("apart"), train("shared", share_head=True)
    assert (apart["classifier.weight"] != shared["classifier.weight"]).any()
    scalars = read_scalars(tmp_path / "shared")
    logged = {name: np.array(values) for name, values in scalars.items() if "loss" in name}
    # Of four steps the last two fade: of two halves there are 4/4 and 2/4 left.
    auxiliary = logged["next_session_loss"] + logged["consistency_loss"]
    expected = logged["matching_loss"] + [1.0, 1.0, 1.0, 0.5] * auxiliary
    np.testing.assert_allclose(logged["loss"], expected, rtol=1e-5)
    with pytest.raises(dcse_tf.InputError, match=r"`steps`: 8 \(was 4\).*`auxiliary_fade`"):
        train("shared", steps=8, share_head=True)
