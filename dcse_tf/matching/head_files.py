"""The projection heads of an encoder as affine maps, and their file in the encoder's folder.

heads.safetensors contains, for each side of a dialogue, the two dense layers of its
`ProjectionHead`. An encoder whose training had no heads has no such file. No TensorFlow here.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dcse_tf.bert.checkpoints import HEADS_FILE
from dcse_tf.bert.encoder_options import SIDES
from dcse_tf.bert.sentence_modules import AffineMap
from dcse_tf.bert.tensor_files import read_tensor_file, write_tensor_file
from dcse_tf.errors import name_input

if TYPE_CHECKING:
    from dcse_tf.matching.heads import ProjectionHead

# The maps of each side, in order; empty without heads.
HeadMaps = Mapping[str, tuple[AffineMap, ...]]
_PARTS = ("hidden.kernel", "hidden.bias", "output.kernel", "output.bias")


def list_head_maps(heads: Sequence["ProjectionHead"]) -> HeadMaps:
    """What the heads of contexts and of responses compute, as affine maps."""
    found = {}
    for side, head in zip(SIDES, heads, strict=False):
        variables = (head.hidden_kernel, head.hidden_bias, head.output_kernel)
        weights = [np.float32(head.rate) * variable.numpy() for variable in variables]
        found[side] = _make_maps([*weights, np.zeros(head.units, np.float32)])
    return found


def _make_maps(weights: Sequence[np.ndarray]) -> tuple[AffineMap, ...]:
    hidden, bias, output, output_bias = weights
    first, second = (np.zeros(len(kernel), np.float32) for kernel in (hidden, output))
    return AffineMap(first, hidden, bias, "relu"), AffineMap(second, output, output_bias)


def project(embeddings: np.ndarray, maps: Sequence[AffineMap]) -> np.ndarray:
    """Embeddings, float `[n, dim]`, behind a head: float32 `[n, k]`, not normalised."""
    for step in maps:
        shifted = np.asarray(embeddings, step.matrix.dtype) - step.shift
        embeddings = shifted @ step.matrix + step.bias
        assert step.activation in ("", "relu")  # a head has no other
        embeddings = np.maximum(embeddings, 0) if step.activation else embeddings
    return np.asarray(embeddings, np.float32)


def write_heads(folder: pathlib.Path, heads: HeadMaps) -> None:
    """Writes heads into an encoder's folder."""
    tensors: dict[str, np.ndarray] = {}
    for side, maps in heads.items():
        values = (value for step in maps for value in (step.matrix, step.bias))
        tensors |= zip((f"{side}.{part}" for part in _PARTS), values, strict=True)
    write_tensor_file(folder / HEADS_FILE, tensors, {})


def read_heads(folder: pathlib.Path) -> HeadMaps:
    """Reads the heads from an encoder's folder, empty if there are none; raises InputError if the
    file is damaged.
    """
    path = folder / HEADS_FILE
    if not path.is_file():
        return {}
    tensors = read_tensor_file(path)
    with name_input(f"{path}: expected the weights of projection heads", KeyError, TypeError):
        return {side: _make_maps([tensors[f"{side}.{x}"] for x in _PARTS]) for side in SIDES}
