"""A baseline's own files, beside those of the encoder that it was fitted on."""

import json
import pathlib
from typing import Any

import keras
import numpy as np

from dcse_tf.baselines.flow import Flow
from dcse_tf.baselines.whitening import FittedWhitening, make_whitening
from dcse_tf.errors import InputError
from dcse_tf.input_files import parse_json, read_json_object
from dcse_tf.model.affine import AffineMaps
from dcse_tf.model.vectors import WordVectors
from dcse_tf.model.weights import read_tensor_file, write_tensor_file

KINDS = ("whitening", "flow", "word_vectors")

_DESCRIPTION_FILE = "baseline.json"
_TENSORS_FILE = "baseline.safetensors"
_WORDS_FILE = "baseline_words.json"


def is_baseline(folder: pathlib.Path) -> bool:
    return (folder / _DESCRIPTION_FILE).is_file()


def refuse_baseline(folder: pathlib.Path, flag: str) -> None:
    """Raises InputError if the folder is a baseline: what was fitted would be lost in training."""
    if is_baseline(folder):
        raise InputError(f"`{flag}`={folder}: is a fitted baseline; give the encoder it is made of")


def read_description(folder: pathlib.Path) -> dict[str, Any]:
    """What the folder's baseline is: "kind", its settings, and figures of the fit.

    Raises:
        InputError: the file is not of this form.
    """
    path = folder / _DESCRIPTION_FILE
    description = read_json_object(path, "a file of fit_baseline")
    if description.get("kind") in KINDS:
        return description
    raise InputError(
        f"{path}: not a file of fit_baseline: kind {description.get('kind')!r:.40}, expected one "
        f"of {', '.join(map(repr, KINDS))}"
    )


def write_whitening(
    folder: pathlib.Path, description: dict[str, Any], fitted: FittedWhitening
) -> None:
    tensors = {"mean": fitted.map.shift, "matrix": np.ascontiguousarray(fitted.map.matrix)}
    _write(folder, {**description, "kind": "whitening"}, tensors)


def write_flow(folder: pathlib.Path, description: dict[str, Any], flow: Flow) -> None:
    shape = {"dimensions": flow.dimensions, "depth": flow.depth, "hidden_dim": flow.hidden_dim}
    tensors = {name: variable.numpy() for name, variable in flow.named_variables()}
    _write(folder, {**description, **shape, "kind": "flow"}, tensors)


def write_word_vectors(
    folder: pathlib.Path, description: dict[str, Any], vectors: WordVectors
) -> None:
    words = sorted(vectors.rows, key=vectors.rows.__getitem__)
    rows = [vectors.rows[word] for word in words]
    text = json.dumps(words, ensure_ascii=False, indent=0)
    (folder / _WORDS_FILE).write_text(text + "\n", encoding="utf-8")
    _write(folder, {**description, "kind": "word_vectors"}, {"matrix": vectors.matrix[rows]})


def _write(
    folder: pathlib.Path, description: dict[str, Any], tensors: dict[str, np.ndarray]
) -> None:
    write_tensor_file(folder / _TENSORS_FILE, tensors)
    text = json.dumps(description, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / _DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")


def read_postprocessing(folder: pathlib.Path, dim: int) -> AffineMaps | keras.layers.Layer:
    """The whitening or the flow of a folder, from embeddings `[n, dim]` to `[n, k]`.

    Args:
        folder: for which `read_description` says "whitening" or "flow".
        dim: of the encoder's embeddings.

    Raises:
        InputError: a file is damaged, or of another dimension.
    """
    description = read_description(folder)
    path = folder / _TENSORS_FILE
    tensors = read_tensor_file(path)
    try:
        if description["kind"] == "flow":
            return _read_flow(description, tensors, path, dim)
        mean, matrix = (tensors[name].astype(np.float64) for name in ("mean", "matrix"))
        _check_shape(path, "mean", mean, (dim,), dim)
        _check_shape(path, "matrix", matrix, (dim, *matrix.shape[1:2]), dim)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: not a file of fit_baseline: {error!r}") from error
    return AffineMaps("whitening", (make_whitening(mean, matrix),))


def _read_flow(
    description: dict[str, Any], tensors: dict[str, np.ndarray], path: pathlib.Path, dim: int
) -> Flow:
    settings = {name: description[name] for name in ("dimensions", "depth", "hidden_dim")}
    flow = Flow(**settings, dtype="float32", name="flow")
    flow.build((None, dim))
    for name, variable in flow.named_variables():
        value = tensors[name]
        if name == "coordinates" and not np.all((value >= 0) & (value < dim)):
            raise InputError(f"{path}: expected coordinates of an encoder of {dim} dimensions")
        _check_shape(path, name, value, tuple(variable.shape), dim)
        variable.assign(value)
    return flow


def _check_shape(
    path: pathlib.Path, name: str, value: np.ndarray, expected: tuple[int, ...], dim: int
) -> None:
    if value.shape != expected:
        raise InputError(
            f"{path}: {name} is {list(value.shape)}, expected {list(expected)} for an encoder of "
            f"{dim} dimensions"
        )


def read_word_average(folder: pathlib.Path) -> tuple[WordVectors, str]:
    """The vectors of a folder whose kind is "word_vectors", and its word unit.

    Raises:
        InputError: a file is damaged.
    """
    path = folder / _WORDS_FILE
    matrix = read_tensor_file(folder / _TENSORS_FILE).get("matrix")
    try:
        words = parse_json(path.read_text(encoding="utf-8"))
        unit = read_description(folder)["word_unit"]
        rows = {word: row for row, word in enumerate(words)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a file of fit_baseline: {error!r}") from error
    if matrix is None or matrix.ndim != 2 or len(matrix) != len(rows):
        raise InputError(f"{folder / _TENSORS_FILE}: expected a vector for {len(rows)} words")
    return WordVectors(rows, matrix), unit
