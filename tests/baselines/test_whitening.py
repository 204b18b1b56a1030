import numpy as np
import pytest
from tiny_bert import VOCABULARY, build_backbone

from dcse_tf.baselines.registry import Fitted
from dcse_tf.baselines.whitening import WHITENING, fit_whitening, measure_directions
from dcse_tf.bert.bert import build_bert_encoder
from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.errors import InputError

WORDS = [token for token in VOCABULARY.tokens[5:] if not token.startswith("[")]


def correlated(count=200, dim=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, dim)) @ rng.normal(size=(dim, dim)) + 5 * rng.normal(size=dim)


def apply(fitted, rows):
    return (np.asarray(rows, np.float64) - fitted.mean) @ fitted.matrix


@pytest.fixture(scope="module")
def bert_embeddings():
    rng = np.random.default_rng(0)
    sentences = sorted({" ".join(rng.choice(WORDS, 1 + n % 9)) for n in range(400)})
    graph = EncoderGraph(build_bert_encoder(build_backbone()), VOCABULARY, 32, "mean")
    return SentenceEncoder(GraphBackend(graph)).encode(sentences)


@pytest.mark.parametrize("seed", range(3))
def test_whitened_embeddings_have_mean_0_and_identity_covariance(seed):
    rows = correlated(seed=seed)
    white = apply(fit_whitening(rows), rows)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(np.cov(white.T), np.eye(7), atol=1e-6)


def test_whitened_embeddings_of_a_bert_have_identity_covariance(bert_embeddings):
    fitted = fit_whitening(bert_embeddings)
    white = apply(fitted, bert_embeddings)
    assert white.shape[1] == fitted.rank
    np.testing.assert_allclose(np.cov(white.T), np.eye(fitted.rank), atol=1e-6)


def test_the_direction_that_a_layer_norm_fixes_is_left_out(bert_embeddings):
    """(x - beta) / gamma adds up to 0 over the coordinates: 63 of 64 directions vary."""
    fitted = fit_whitening(bert_embeddings)
    assert fitted.rank == 63
    backbone = build_backbone()
    gamma = np.array(backbone.transformer_layers[-1]._feedforward_layer_norm.gamma, np.float64)
    kept = fitted.matrix / np.linalg.norm(fitted.matrix, axis=0)
    np.testing.assert_allclose(kept.T @ (1 / gamma / np.linalg.norm(1 / gamma)), 0, atol=1e-5)


@pytest.mark.parametrize("dimensions", [0, 3])
def test_whitening_is_an_eigendecomposition_up_to_sign(dimensions):
    rows = correlated()
    values, vectors = np.linalg.eigh((rows - rows.mean(0)).T @ (rows - rows.mean(0)) / 199)
    order = np.argsort(-values)[: dimensions or 7]
    expected = (rows - rows.mean(0)) @ vectors[:, order] / np.sqrt(values[order])
    fitted = fit_whitening(rows, dimensions)
    found = apply(fitted, rows)
    signs = np.sign(np.sum(found * expected, axis=0))
    np.testing.assert_allclose(found, expected * signs, atol=1e-8)
    assert fitted.explained == pytest.approx(values[order].sum() / values.sum())


def test_blocks_of_rows_change_nothing():
    whole = measure_directions(correlated())
    parts = measure_directions(correlated(), block_rows=13)
    np.testing.assert_allclose(parts.mean, whole.mean)
    np.testing.assert_allclose(parts.variances, whole.variances, rtol=1e-8)
    np.testing.assert_allclose(np.abs(parts.vectors), np.abs(whole.vectors), rtol=1e-8)


def test_fewer_sentences_than_dimensions_give_one_direction_less_than_sentences():
    rows = correlated(count=4).astype(np.float32)
    fitted = fit_whitening(rows)
    assert (fitted.rank, fitted.matrix.shape) == (3, (7, 3))
    np.testing.assert_allclose(np.cov(apply(fitted, rows).T), np.eye(3), atol=1e-6)


def test_what_cannot_be_whitened_is_one_error():
    with pytest.raises(InputError, match=r"`dimensions`=8: the embeddings of 200 sentences vary"):
        fit_whitening(correlated(), 8)
    with pytest.raises(InputError, match="two distinct sentences or more, found 1"):
        fit_whitening(correlated(count=1))
    with pytest.raises(InputError, match="are the same"):
        fit_whitening(np.full((50, 4), 0.1, np.float32))
    with pytest.raises(InputError, match="not a finite number"):
        fit_whitening(np.array([[1.0, np.nan], [2.0, 3.0]]))


def test_the_layer_is_the_map_in_float64():
    rows = correlated()
    fitted = fit_whitening(rows)
    layer = WHITENING.make_layer(Fitted({"mean": fitted.mean, "matrix": fitted.matrix}, {}), 7)
    found = np.asarray(layer(rows))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, apply(fitted, rows), atol=1e-10)
    assert not layer.trainable_variables


def test_the_other_coordinates_follow_from_the_independent_ones():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(60, 6))
    rows[:, 2] = 4.0  # constant
    rows[:, 4] = 3 * rows[:, 0] - rows[:, 5] + 1
    kept = measure_directions(rows).independent_coordinates()
    assert len(kept) == 4
    assert 2 not in kept
    assert np.all(np.diff(kept) > 0)
    # Least squares with a constant finds the others exactly.
    known = np.concatenate([rows[:, kept], np.ones([60, 1])], axis=1)
    solved, *_ = np.linalg.lstsq(known, rows, rcond=None)
    np.testing.assert_allclose(known @ solved, rows, atol=1e-9)


def test_all_coordinates_are_kept_where_all_directions_vary():
    assert measure_directions(correlated()).independent_coordinates().tolist() == list(range(7))
