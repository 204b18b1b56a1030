"""Weights of a BERT between keras-hub's variables and HuggingFace's tensors.

One table says which variable is which tensor, so that what is loaded and what is saved cannot
differ. keras-hub can load such files but not write them.
"""

import dataclasses
import pathlib
from collections.abc import Iterator

import keras
import keras_hub
import numpy as np
import safetensors
import safetensors.numpy

from dcse_tf.errors import InputError
from dcse_tf.input_files import plain_name, read_json_object
from dcse_tf.model.checkpoints import write_tensor_file
from dcse_tf.model.tokenizer import SPECIAL_TOKENS, Vocabulary
from dcse_tf.model.vectors import WordVectors

_WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class WeightPair:
    """A Keras variable and its HuggingFace name.

    Attributes:
        variable: the Keras variable.
        name: the tensor's name in the file.
        kind: "table" (the same on both sides), "vector" (flat in the file; attention has its
            heads apart in Keras) or "kernel" (also transposed in the file).
        input_axes: leading axes of a kernel that are its inputs.
    """

    variable: keras.Variable
    name: str
    kind: str = "table"
    input_axes: int = 1

    def to_keras(self, value: np.ndarray) -> np.ndarray:
        return (value.T if self.kind == "kernel" else value).reshape(self.variable.shape)

    def to_huggingface(self) -> np.ndarray:
        value = keras.ops.convert_to_numpy(self.variable)
        if self.kind == "kernel":
            inputs = int(np.prod(value.shape[: self.input_axes]))
            return value.reshape(inputs, -1).T
        return value.reshape(-1) if self.kind == "vector" else value


def backbone_weights(backbone: keras_hub.models.BertBackbone) -> Iterator[WeightPair]:
    """All weights of a BERT but the pooler's, which a sentence encoder does not use."""
    layer = backbone.get_layer
    yield WeightPair(layer("token_embedding").embeddings, "embeddings.word_embeddings.weight")
    yield WeightPair(
        layer("position_embedding").position_embeddings, "embeddings.position_embeddings.weight"
    )
    yield WeightPair(
        layer("segment_embedding").embeddings, "embeddings.token_type_embeddings.weight"
    )
    yield from _norm(layer("embeddings_layer_norm"), "embeddings.LayerNorm")
    for i in range(backbone.num_layers):
        block, prefix = layer(f"transformer_layer_{i}"), f"encoder.layer.{i}"
        attention = block._self_attention_layer
        yield from _dense(attention.query_dense, f"{prefix}.attention.self.query")
        yield from _dense(attention.key_dense, f"{prefix}.attention.self.key")
        yield from _dense(attention.value_dense, f"{prefix}.attention.self.value")
        yield from _dense(attention.output_dense, f"{prefix}.attention.output.dense", 2)
        yield from _norm(block._self_attention_layer_norm, f"{prefix}.attention.output.LayerNorm")
        yield from _dense(block._feedforward_intermediate_dense, f"{prefix}.intermediate.dense")
        yield from _dense(block._feedforward_output_dense, f"{prefix}.output.dense")
        yield from _norm(block._feedforward_layer_norm, f"{prefix}.output.LayerNorm")


def masked_lm_head_weights(head: keras_hub.layers.MaskedLMHead) -> Iterator[WeightPair]:
    """The weights of the prediction head; its output matrix is the token embedding."""
    yield from _dense(head._intermediate_dense, "cls.predictions.transform.dense")
    yield from _norm(head._intermediate_layer_norm, "cls.predictions.transform.LayerNorm")
    yield WeightPair(head._bias, "cls.predictions.bias", "vector")


def _dense(layer: keras.layers.Layer, name: str, input_axes: int = 1) -> Iterator[WeightPair]:
    yield WeightPair(layer.kernel, f"{name}.weight", "kernel", input_axes)
    yield WeightPair(layer.bias, f"{name}.bias", "vector")


def _norm(layer: keras.layers.Layer, name: str) -> Iterator[WeightPair]:
    yield WeightPair(layer.gamma, f"{name}.weight", "vector")
    yield WeightPair(layer.beta, f"{name}.bias", "vector")


def read_tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """All tensors of a checkpoint, under names without "bert." and with LayerNorm's new names.

    Raises:
        InputError: a file is missing or cannot be read.
    """
    names = [_WEIGHTS_FILE]
    if not (folder / _WEIGHTS_FILE).is_file() and (folder / _INDEX_FILE).is_file():
        names = _read_index(folder / _INDEX_FILE)
    tensors: dict[str, np.ndarray] = {}
    for name in names:
        try:
            tensors.update(safetensors.numpy.load_file(folder / name))
        except (OSError, safetensors.SafetensorError) as error:
            raise InputError(f"{folder / name}: cannot be read: {error}") from error
    return {
        key.removeprefix("bert.")
        .replace("LayerNorm.gamma", "LayerNorm.weight")
        .replace("LayerNorm.beta", "LayerNorm.bias"): value
        for key, value in tensors.items()
    }


def _read_index(path: pathlib.Path) -> list[str]:
    """The weight files of a checkpoint that has several."""
    content = read_json_object(path, "the index of a checkpoint")
    try:
        names = set(content["weight_map"].values())
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: expected the index of a checkpoint: {error!r}") from error
    return sorted(plain_name(name, path) for name in names)


def assign(pairs: Iterator[WeightPair], tensors: dict[str, np.ndarray], source: str) -> None:
    """Gives Keras variables the values of a checkpoint.

    Raises:
        InputError: a tensor is missing or of another size.
    """
    for pair in pairs:
        value = tensors.get(pair.name)
        if value is None:
            raise InputError(f"{source}: lacks the tensor {pair.name}")
        expected = pair.to_huggingface().shape
        if value.shape != expected:
            raise InputError(f"{source}: {pair.name} is {value.shape}, expected {expected}")
        pair.variable.assign(pair.to_keras(value.astype(np.float32)))


def to_tensors(pairs: Iterator[WeightPair]) -> dict[str, np.ndarray]:
    """The values of Keras variables under HuggingFace's names."""
    return {pair.name: np.ascontiguousarray(pair.to_huggingface()) for pair in pairs}


def write_tensors(folder: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes `model.safetensors`.

    Raises:
        OutputError: it cannot be written.
    """
    write_tensor_file(folder / _WEIGHTS_FILE, tensors, {"format": "pt"})


_PIECE = "##"


def compute_token_embeddings(
    vectors: WordVectors, vocabulary: Vocabulary, random: np.ndarray
) -> tuple[np.ndarray, int]:
    """Token embeddings in which the tokens that have a vector begin with it.

    The vectors of these tokens are centred, turned onto their principal axes (all of them, or as
    many as fit) and scaled by one factor to the standard deviation of the random start; what of
    the width they do not fill, and other tokens, stay random. A piece "##x" has the vector of "x".

    Args:
        vectors: of words or characters.
        vocabulary: of the encoder.
        random: float32 `[vocabulary, dim]`, as initialised; not changed.

    Returns:
        float32 `[vocabulary, dim]`, and the number of tokens that have a vector.

    Raises:
        InputError: fewer than two different tokens have a vector, or one is not finite.
    """
    words = {
        row: token.removeprefix(_PIECE)
        for row, token in enumerate(vocabulary.tokens)
        if token not in SPECIAL_TOKENS and token.removeprefix(_PIECE) in vectors.rows
    }
    # Once each, so that a word that is also a piece does not count twice.
    known = {word: place for place, word in enumerate(dict.fromkeys(words.values()))}
    matrix = np.array([vectors.matrix[vectors.rows[word]] for word in known], np.float64)
    if not np.isfinite(matrix).all():
        raise InputError("a vector is not of finite numbers")
    if len(known) < 2 or not np.ptp(matrix, axis=0).any():
        raise InputError(
            f"{len(known)} entries of the vocabulary have a vector in it; expected two different "
            "ones at least: vectors of the language's words or characters"
        )
    projected = _project(matrix, random.shape[1])
    projected *= random.std() / projected.std()
    embeddings = random.copy()
    rows, places = list(words), [known[word] for word in words.values()]
    embeddings[rows, : projected.shape[1]] = projected[places]
    return embeddings, len(rows)


def _project(matrix: np.ndarray, width: int) -> np.ndarray:
    """The principal components of rows, `[rows, min(width, rows, dim)]`, largest first."""
    centred = matrix - matrix.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:width]
    # SVD leaves the sign open; libraries differ in it.
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    return centred @ (axes * np.sign(largest)).T
