"""The projection heads of an encoder as affine maps, and their file in the encoder's folder.

heads.safetensors contains, for each side of a dialogue, the two dense layers of its
`ProjectionHead`. An encoder whose training had no heads has no such file.
"""

import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dcse_tf.bert.checkpoints import HEADS_FILE
from dcse_tf.bert.options import SIDES
from dcse_tf.bert.sentence_modules import AffineMap
from dcse_tf.bert.tensor_files import read_tensor_file, write_tensor_file
from dcse_tf.errors import InputError

if TYPE_CHECKING:
    from dcse_tf.matching.heads import ProjectionHead

# The maps of each side, in order.
HeadMaps = Mapping[str, tuple[AffineMap, ...]]
NO_HEADS: HeadMaps = types.MappingProxyType({})
_LAYERS = ("hidden", "output")


def list_head_maps(heads: Sequence["ProjectionHead"]) -> HeadMaps:
    """What the heads of contexts and of responses compute, as affine maps."""
    return dict(zip(SIDES, map(_make_maps, heads), strict=True)) if heads else {}


def _make_maps(head: "ProjectionHead") -> tuple[AffineMap, ...]:
    hidden, bias, output = (
        np.float32(head.rate) * variable.numpy()
        for variable in (head.hidden_kernel, head.hidden_bias, head.output_kernel)
    )
    nothing = np.zeros(head.units, np.float32)
    return (
        AffineMap(np.zeros(len(hidden), np.float32), hidden, bias, relu=True),
        AffineMap(np.zeros(len(output), np.float32), output, nothing),
    )


def project(embeddings: np.ndarray, maps: Sequence[AffineMap]) -> np.ndarray:
    """Embeddings, float `[n, dim]`, behind a head: float32 `[n, k]`, not normalised."""
    for step in maps:
        embeddings = (
            np.asarray(embeddings, step.matrix.dtype) - step.shift
        ) @ step.matrix + step.bias
        embeddings = np.maximum(embeddings, 0) if step.relu else embeddings
    return np.asarray(embeddings, np.float32)


def write_heads(folder: pathlib.Path, heads: HeadMaps) -> None:
    """Writes heads into an encoder's folder."""
    tensors = {
        f"{side}.{layer}.{name}": value
        for side, maps in heads.items()
        for layer, step in zip(_LAYERS, maps, strict=True)
        for name, value in (("kernel", step.matrix), ("bias", step.bias))
    }
    write_tensor_file(folder / HEADS_FILE, tensors, {})


def read_heads(folder: pathlib.Path) -> HeadMaps:
    """Reads the heads from an encoder's folder; empty if there are none.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / HEADS_FILE
    if not path.is_file():
        return {}
    tensors = read_tensor_file(path)
    try:
        return {
            side: tuple(
                AffineMap(
                    np.zeros(len(tensors[f"{side}.{layer}.kernel"]), np.float32),
                    tensors[f"{side}.{layer}.kernel"],
                    tensors[f"{side}.{layer}.bias"],
                    relu=layer == "hidden",
                )
                for layer in _LAYERS
            )
            for side in SIDES
        }
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: expected the weights of projection heads: {error}") from error
