"""A checkpoint's weight files that are damaged, or lie."""

import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcse_tf.bert.weights import read_tensors
from dcse_tf.errors import InputError

_SETTINGS = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def weights(tmp_path):
    """A weight file, and its content."""
    path = tmp_path / "model.safetensors"
    tensors = {f"layer.{i}": np.arange(6.0, dtype=np.float32).reshape(2, 3) for i in range(4)}
    safetensors.numpy.save_file(tensors, path)
    return path, path.read_bytes()


def test_one_cut_short_anywhere_is_named(weights):
    path, content = weights
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"model\.safetensors: cannot be read"):
            read_tensors(path.parent)


def test_a_flipped_bit_is_named_or_in_the_numbers(weights):
    path, content = weights

    @_SETTINGS
    @given(st.integers(0, 8 * len(content) - 1))
    def check(bit):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        said = ""
        try:
            read_tensors(path.parent)
        except InputError as error:
            said = str(error)
        assert not said or str(path) in said

    check()


@pytest.mark.parametrize(
    "index",
    [
        "{",
        "[]",
        '{"weight_map": 3}',
        json.dumps({"weight_map": {"a": "../model.safetensors"}}),
        json.dumps({"weight_map": {"a": "/etc/passwd"}}),
        json.dumps({"weight_map": {"a": "gone.safetensors"}}),
    ],
)
def test_an_index_that_lies_is_named(index, weights):
    path, _ = weights
    path.unlink()
    (path.parent / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InputError, match=str(path.parent)):
        read_tensors(path.parent)
