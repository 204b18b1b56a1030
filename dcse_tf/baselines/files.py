"""A baseline's own files, beside those of the encoder that it was fitted on."""

import json
import pathlib
from typing import Any

import keras
import numpy as np
import safetensors
import safetensors.numpy

from dcse_tf.baselines.flow import Flow
from dcse_tf.baselines.whitening import Whitening, WhiteningMap
from dcse_tf.errors import InputError
from dcse_tf.input_files import parse_json, read_json_object
from dcse_tf.model.checkpoints import write_tensor_file
from dcse_tf.model.vectors import WordVectors

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
    folder: pathlib.Path, description: dict[str, Any], fitted: WhiteningMap
) -> None:
    tensors = {"mean": fitted.mean, "matrix": np.ascontiguousarray(fitted.matrix)}
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


def read_postprocessing(folder: pathlib.Path, dim: int) -> keras.layers.Layer:
    """The layer of a whitening or a flow, from embeddings `[n, dim]` to `[n, k]`.

    Args:
        folder: for which `read_description` says "whitening" or "flow".
        dim: of the encoder's embeddings.

    Raises:
        InputError: a file is damaged, or of another dimension.
    """
    description, tensors = read_description(folder), _read_tensors(folder)
    path = folder / _TENSORS_FILE
    try:
        if description["kind"] == "whitening":
            layer = Whitening(tensors["matrix"].shape[1], name="whitening")
            layer.build((None, dim))
            pairs = [(v.name, v) for v in layer.variables]
        else:
            settings = {name: description[name] for name in ("dimensions", "depth", "hidden_dim")}
            layer = Flow(**settings, dtype="float32", name="flow")
            layer.build((None, dim))
            pairs = list(layer.named_variables())
        for name, variable in pairs:
            value = tensors[name]
            if name == "coordinates" and not np.all((value >= 0) & (value < dim)):
                raise InputError(f"{path}: expected coordinates of an encoder of {dim} dimensions")
            if value.shape != tuple(variable.shape):
                raise InputError(
                    f"{path}: {name} is {list(value.shape)}, expected {list(variable.shape)} for "
                    f"an encoder of {dim} dimensions"
                )
            variable.assign(value)
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path}: not a file of fit_baseline: {error!r}") from error
    return layer


def read_word_average(folder: pathlib.Path) -> tuple[WordVectors, str]:
    """The vectors of a folder whose kind is "word_vectors", and its word unit.

    Raises:
        InputError: a file is damaged.
    """
    path = folder / _WORDS_FILE
    matrix = _read_tensors(folder).get("matrix")
    try:
        words = parse_json(path.read_text(encoding="utf-8"))
        unit = read_description(folder)["word_unit"]
        rows = {word: row for row, word in enumerate(words)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a file of fit_baseline: {error!r}") from error
    if matrix is None or matrix.ndim != 2 or len(matrix) != len(rows):
        raise InputError(f"{folder / _TENSORS_FILE}: expected a vector for {len(rows)} words")
    return WordVectors(rows, matrix), unit


def _read_tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
    path = folder / _TENSORS_FILE
    try:
        return safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
