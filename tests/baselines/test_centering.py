import types

import numpy as np
import pytest

from dcse_tf.baselines.centering import CENTERING
from dcse_tf.baselines.registry import Fitted
from dcse_tf.errors import InputError


def fit(rows):
    return CENTERING.fit(None, types.SimpleNamespace(embeddings=lambda: np.array(rows, np.float32)))


def test_the_mean_is_subtracted_by_hand():
    fitted = fit([[3, 4], [3, -4], [0, 3]])
    # The mean is (2, 1), of length sqrt(5); the lengths are 5, 5 and 3.
    np.testing.assert_array_equal(fitted.tensors["mean"], np.float32([2, 1]))
    assert fitted.facts["sentences"] == 3
    assert fitted.facts["mean_length"] == pytest.approx(5**0.5 / (13 / 3))
    assert "0.52 of theirs" in fitted.summary
    layer = CENTERING.make_layer(fitted, 2)
    np.testing.assert_array_equal(layer(np.float32([[3, 4], [0, 0]])), [[1, 3], [-2, -1]])


def test_the_embeddings_that_it_was_fitted_to_have_mean_zero():
    """A mean in float32 would be wrong by a thousandth here."""
    rows = np.random.default_rng(0).normal(1000.0, 1.0, size=(3000, 5)).astype(np.float32)
    centred = np.asarray(CENTERING.make_layer(fit(rows), 5)(rows), np.float64)
    np.testing.assert_allclose(centred.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(centred.std(axis=0), rows.std(axis=0, dtype=np.float64), rtol=1e-3)


def test_what_cannot_be_centred_is_one_error():
    with pytest.raises(InputError, match="not a finite number"):
        fit([[1, np.nan], [1, 2]])
    with pytest.raises(InputError, match=r"mean \[2\], expected \[3\]"):
        CENTERING.make_layer(Fitted({"mean": np.zeros(2, np.float32)}, {}), 3)
    assert fit([[0, 0], [0, 0]]).facts["mean_length"] == 0
