"""What sentence-transformers' format adds to a transformer's folder: the modules behind it, and a
prefix of every text.

modules.json lists the transformer, in the folder itself or in a subfolder, and one subfolder with a
config.json for the pooling and for each further module. The layer that applies the modules is
elsewhere: reading a folder must not import TensorFlow.
"""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from dcse_tf.bert.tensor_files import read_tensor_file, write_tensor_file
from dcse_tf.errors import InputError, name_input
from dcse_tf.files import write_json
from dcse_tf.input_files import parse_json, read_json_object


@dataclasses.dataclass(frozen=True)
class AffineMap:
    """Maps x to (x - shift) @ matrix + bias, computed in the dtype of the matrix."""

    shift: np.ndarray  # float [dim]
    matrix: np.ndarray  # float [dim, k]
    bias: np.ndarray  # float [k]
    activation: str = ""  # of the result: "relu" or "tanh"
    unit: bool = False  # whether x is first scaled to unit length


MODULES_FILE = "modules.json"
_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "model.safetensors"
# The activations of a Dense module that can be computed here.
_IDENTITY, _RELU = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.ReLU"
_TANH = "torch.nn.modules.activation.Tanh"  # the library's default
_ACTIVATIONS = {_IDENTITY: "", _RELU: "relu", _TANH: "tanh"}
_OLD_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
PROMPTS_FILE = "config_sentence_transformers.json"


@dataclasses.dataclass(frozen=True)
class SentenceModules:
    """What a sentence-transformers model does with token embeddings."""

    pooling: str = ""  # "mean" or "cls"; empty if nothing says it
    maps: tuple[AffineMap, ...] = ()  # applied in order to the sentence embedding
    unit_norm: bool = False  # whether the result is scaled to unit length


def find_transformer(folder: pathlib.Path) -> pathlib.Path:
    """The transformer's folder in a sentence-transformers folder; else the folder itself."""
    path = folder / MODULES_FILE
    return folder / _list_modules(path)[0][1] if path.is_file() else folder


def read_modules(transformer: pathlib.Path, dim: int) -> SentenceModules:
    """The modules after a transformer, by its folder, see `find_transformer`, and the width of its
    token embeddings; without a pooling if that is not part of a sentence-transformers folder.
    Raises InputError if a module is not supported.
    """
    path = _find_with(transformer, MODULES_FILE)
    if path is None:
        return SentenceModules()
    modules = _list_modules(path)[1:]
    names = [name for name, _ in modules]
    if names[:1] != ["Pooling"] or not {*names[1:]} <= {"Dense", "Normalize"}:
        raise InputError(
            f"{path}: modules {', '.join(names) or 'none'} behind the transformer; only Pooling, "
            "then Dense and Normalize can be computed here"
        )

    where = path.parent / modules[0][1] / _CONFIG_FILE
    config = read_json_object(where)
    mode = config.get("pooling_mode")
    if mode is None:
        given = [key for key, on in config.items() if key.startswith("pooling_mode_") and on]
        mode = [_OLD_POOLINGS.get(key, key) for key in given] or "mean"  # as the library does
    modes = mode if isinstance(mode, list) else [mode]
    if len(modes) != 1 or modes[0] not in _OLD_POOLINGS.values():
        found = " and ".join(map(str, modes)) or "nothing"
        raise InputError(f"{where}: pooling by {found}; only mean or cls can be computed here")
    if config.get("include_prompt") is False:
        raise InputError(f"{where}: include_prompt is false; here a prefix is pooled as texts are")
    maps, unit = list[AffineMap](), False
    for name, folder in ((name, path.parent / place) for name, place in modules[1:]):
        config = read_json_object(folder / _CONFIG_FILE, optional=name == "Normalize")
        places = (config.get(f"module_{side}_name") for side in ("input", "output"))
        if any(place not in (None, "sentence_embedding") for place in places):
            raise InputError(f"{folder / _CONFIG_FILE}: expected a module of sentence_embedding")
        if name == "Dense":
            maps.append(_read_dense(folder, config, dim, unit))
            dim = maps[-1].matrix.shape[1]
        unit = name == "Normalize"
    return SentenceModules(modes[0], tuple(maps), unit)


def _find_with(transformer: pathlib.Path, name: str) -> pathlib.Path | None:
    """The path of a file in the model's root, which is the transformer's folder or its parent."""
    for root in (transformer, transformer.parent):
        path = root / name
        if path.is_file() and find_transformer(root) == transformer:
            return path
    return None


def _list_modules(path: pathlib.Path) -> list[tuple[str, str]]:
    """The (class name, folder) of every module, the transformer first."""
    problem = f"{path}: expected sentence-transformers' modules"
    with name_input(problem, OSError, ValueError, KeyError, TypeError):
        content = parse_json(path.read_text(encoding="utf-8"))
        found = [(str(entry["type"]).rsplit(".", 1)[-1], str(entry["path"])) for entry in content]
    for _, name in found:
        parts = pathlib.PurePath(name).parts
        if len(parts) > 1 or ".." in parts or name.startswith("/"):
            raise InputError(f"{path}: {name!r}: expected a folder beside this file")
    if not found or found[0][0] not in ("Transformer", "StaticEmbedding"):  # model2vec's
        raise InputError(f"{path}: expected a Transformer as the first module")
    return found


def _read_dense(folder: pathlib.Path, config: dict[str, Any], dim: int, unit: bool) -> AffineMap:
    """The Dense module of a folder and its config.json, for embeddings `[n, dim]`."""
    activation, weights = str(config.get("activation_function", _TANH)), folder / _WEIGHTS_FILE
    if activation not in _ACTIVATIONS or config.get("use_residual"):
        raise InputError(
            f"{folder / _CONFIG_FILE}: activation {activation}; only a Dense with "
            f"{' or '.join(_ACTIVATIONS)} and without residual can be computed here"
        )
    if not weights.is_file():
        raise InputError(f"{weights}: no such file; expected the weights of this Dense module")
    tensors, outputs = read_tensor_file(weights), config.get("out_features")
    found = {name: value.shape for name, value in tensors.items()}
    bias = {"linear.bias": (outputs,)} if config.get("bias", True) else {}
    expected = {"linear.weight": (outputs, dim), **bias}
    if found != expected:
        why = f"by {_CONFIG_FILE}, for embeddings of {dim} dimensions"
        raise InputError(f"{weights}: tensors {found}, expected {expected} {why}")
    matrix = tensors["linear.weight"].T.astype(np.float32)
    added = tensors.get("linear.bias", np.zeros(matrix.shape[1])).astype(np.float32)
    return AffineMap(np.zeros(dim, np.float32), matrix, added, _ACTIVATIONS[activation], unit)


def write_modules(folder: pathlib.Path, modules: SentenceModules, dim: int) -> None:
    """Writes the modules after a transformer of `dim` dimensions, which is in the folder itself."""
    names = ["Transformer", "Pooling"]
    for step in modules.maps:
        names += ["Normalize"] * step.unit + ["Dense"]
    names += ["Normalize"] * modules.unit_norm
    paths = [f"{index}_{name}" if index else "" for index, name in enumerate(names)]
    for path in paths:
        (folder / path).mkdir(exist_ok=True)
    kind = "sentence_transformers.models"
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": f"{kind}.{name}"}
        for index, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    write_json(folder / MODULES_FILE, entries)
    # The names that all versions of the library read.
    pooling = {key: name == modules.pooling for key, name in _OLD_POOLINGS.items()}
    write_json(folder / "1_Pooling" / _CONFIG_FILE, {"word_embedding_dimension": dim, **pooling})
    places = [folder / path for path in paths if path.endswith("Dense")]
    for place, step in zip(places, modules.maps, strict=True):
        inputs, outputs = step.matrix.shape
        sizes = {"in_features": inputs, "out_features": outputs, "bias": True}
        name = next(name for name, short in _ACTIVATIONS.items() if short == step.activation)
        write_json(place / _CONFIG_FILE, {**sizes, "activation_function": name})
        matrix, bias = (np.float64(value) for value in (step.matrix, step.bias))
        tensors = {
            "linear.weight": np.ascontiguousarray(matrix.T, np.float32),
            "linear.bias": (bias - step.shift.astype(np.float64) @ matrix).astype(np.float32),
        }
        write_tensor_file(place / _WEIGHTS_FILE, tensors, {"format": "pt"})


def read_prefix(transformer: pathlib.Path) -> str:
    """The prefix that an encoder adds to every text: sentence-transformers' default prompt, by the
    transformer's folder, see `find_transformer`.
    """
    path = _find_with(transformer, PROMPTS_FILE)
    if path is None:
        return ""
    config = read_json_object(path)
    name, prompts = config.get("default_prompt_name"), config.get("prompts") or {}
    prefix = prompts.get(str(name), "") if isinstance(prompts, dict) else None
    if not isinstance(prefix, str):
        raise InputError(f"{path}: expected texts by name in prompts")
    return prefix


def write_prefix(folder: pathlib.Path, prefix: str, **further: str) -> None:
    """Writes a prefix for `read_prefix` and sentence-transformers, whose `encode_query` and
    `encode_document` take only prompts of their names; and further settings of it, if any.
    """
    prompts = dict.fromkeys(("prefix", "query", "document"), prefix) if prefix else {}
    settings = {"prompts": prompts, "default_prompt_name": next(iter(prompts), None), **further}
    if prefix or further:
        write_json(folder / PROMPTS_FILE, settings)
