"""sentence-transformers' folders: which modules stand behind a transformer, read and written.

Such a folder has modules.json, the transformer in the folder itself or in one below, and a folder
with a config.json for the pooling and for each further module.
"""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from dcse_tf.errors import InputError
from dcse_tf.models.affine_map import AffineMap
from dcse_tf.models.tensor_files import write_tensor_file

_MODULES_FILE = "modules.json"
_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "model.safetensors"
_IDENTITY = "torch.nn.modules.linear.Identity"
_POOLINGS = ("mean", "cls")
_OLD_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_PROMPTS_FILE = "config_sentence_transformers.json"


@dataclasses.dataclass(frozen=True)
class SentenceModules:
    """What a sentence-transformers model does with token embeddings.

    Attributes:
        pooling: "mean" or "cls".
        maps: then applied to the sentence embedding, in order.
        unit_norm: whether it is scaled to unit length in the end.
    """

    pooling: str
    maps: tuple[AffineMap, ...] = ()
    unit_norm: bool = False


def find_transformer(folder: pathlib.Path) -> pathlib.Path:
    """Where the transformer of a sentence-transformers folder lies; else the folder itself."""
    path = folder / _MODULES_FILE
    return folder / _list_modules(path)[0][1] if path.is_file() else folder


def read_modules(transformer: pathlib.Path) -> SentenceModules | None:
    """The modules behind a transformer; None if it is not part of a sentence-transformers folder.

    Args:
        transformer: see `find_transformer`.

    Raises:
        InputError: there is a module that cannot be computed here.
    """
    for root in (transformer, transformer.parent):
        path = root / _MODULES_FILE
        if path.is_file() and find_transformer(root) == transformer:
            return _read_chain(root, _list_modules(path)[1:], path)
    return None


def refuse_maps(transformer: pathlib.Path, flag: str) -> None:
    """Raises InputError if a map stands behind the pooling: training would lose it."""
    modules = read_modules(transformer)
    if modules and modules.maps:
        raise InputError(
            f"--{flag}={transformer}: has a Dense module behind the pooling, which would be lost; "
            "give an encoder without one"
        )


def _list_modules(path: pathlib.Path) -> list[tuple[str, str]]:
    """(class name, folder) of every module, the transformer first."""
    content = _read_json(path)
    try:
        found = [(str(entry["type"]).rsplit(".", 1)[-1], str(entry["path"])) for entry in content]
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: expected sentence-transformers' modules: {error!r}") from error
    for _, name in found:
        parts = pathlib.PurePath(name).parts
        if len(parts) > 1 or ".." in parts or name.startswith("/"):
            raise InputError(f"{path}: {name!r}: expected a folder beside this file")
    if not found or found[0][0] != "Transformer":
        raise InputError(f"{path}: expected a Transformer as the first module")
    return found


def _read_chain(
    root: pathlib.Path, modules: list[tuple[str, str]], source: pathlib.Path
) -> SentenceModules:
    _refuse_prompt(root / _PROMPTS_FILE)
    names = [name for name, _ in modules]
    unit_norm = names[-1:] == ["Normalize"]
    middle = modules[1 : len(modules) - unit_norm]
    if names[:1] != ["Pooling"] or any(name != "Dense" for name, _ in middle):
        raise InputError(
            f"{source}: modules {', '.join(names) or 'none'} behind the transformer; only Pooling, "
            "then Dense without an activation, then Normalize can be computed here"
        )
    return SentenceModules(
        _read_pooling(root / modules[0][1] / _CONFIG_FILE),
        tuple(_read_dense(root / folder) for _, folder in middle),
        unit_norm,
    )


def _refuse_prompt(path: pathlib.Path) -> None:
    """A prompt that the library puts before every text by itself is not put there by us."""
    config = _read_json(path) if path.is_file() else {}
    name = config.get("default_prompt_name") if isinstance(config, dict) else None
    if name is not None and config.get("prompts", {}).get(name):
        raise InputError(f"{path}: default_prompt_name {name!r}: prompts are not supported")


def _read_pooling(path: pathlib.Path) -> str:
    config = _read_json(path)
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected the configuration of a Pooling")
    mode = config.get("pooling_mode")
    if mode is None:
        given = [key for key, on in config.items() if key.startswith("pooling_mode_") and on]
        mode = [_OLD_POOLINGS.get(key, key) for key in given] or "mean"  # as the library does
    modes = [mode] if isinstance(mode, str) else list(mode)
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise InputError(
            f"{path}: pooling by {' and '.join(map(str, modes)) or 'nothing'}; only mean or cls "
            "can be computed here"
        )
    return modes[0]


def _read_dense(folder: pathlib.Path) -> AffineMap:
    path, weights = folder / _CONFIG_FILE, folder / _WEIGHTS_FILE
    config = _read_json(path)
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected the configuration of a Dense module")
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    places = [config.get(name) for name in ("module_input_name", "module_output_name")]
    elsewhere = any(place not in (None, "sentence_embedding") for place in places)
    if activation != _IDENTITY or config.get("use_residual") or elsewhere:
        raise InputError(
            f"{path}: activation {activation}; only a Dense of the sentence embedding without "
            f"activation ({_IDENTITY}) and without residual can be computed here"
        )
    try:
        tensors = safetensors.numpy.load_file(weights)
        matrix = tensors["linear.weight"].T.astype(np.float32)
        bias = tensors.get("linear.bias", np.zeros(matrix.shape[1])).astype(np.float32)
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        raise InputError(f"{weights}: cannot be read: {error}") from error
    if matrix.ndim != 2 or bias.shape != matrix.shape[1:]:
        raise InputError(f"{weights}: expected a matrix and a bias as long as its rows")
    return AffineMap(np.zeros(len(matrix), np.float32), matrix, bias)


def write_modules(folder: pathlib.Path, modules: SentenceModules, dim: int) -> None:
    """Writes modules.json and the modules' folders; the transformer lies in the folder itself.

    Args:
        folder: where to.
        modules: what stands behind the transformer.
        dim: of the token embeddings.
    """
    names = ["Transformer", "Pooling", *["Dense"] * len(modules.maps)]
    names += ["Normalize"] if modules.unit_norm else []
    entries: list[dict[str, Any]] = []
    for index, name in enumerate(names):
        path = f"{index}_{name}" if index else ""
        kind = f"sentence_transformers.models.{name}"
        entries.append({"idx": index, "name": str(index), "path": path, "type": kind})
        (folder / path).mkdir(exist_ok=True)
    _write_json(folder / _MODULES_FILE, entries)
    # The names that all versions of the library read.
    pooling = {key: name == modules.pooling for key, name in _OLD_POOLINGS.items()}
    _write_json(
        folder / "1_Pooling" / _CONFIG_FILE,
        {"word_embedding_dimension": dim, **pooling, "pooling_mode_max_tokens": False},
    )
    for index, step in enumerate(modules.maps, start=2):
        _write_dense(folder / f"{index}_Dense", step)


def _write_dense(folder: pathlib.Path, step: AffineMap) -> None:
    inputs, outputs = step.matrix.shape
    config = {
        "in_features": inputs,
        "out_features": outputs,
        "bias": True,
        "activation_function": _IDENTITY,
    }
    _write_json(folder / _CONFIG_FILE, config)
    matrix, bias = (np.float64(value) for value in (step.matrix, step.bias))
    tensors = {
        "linear.weight": np.ascontiguousarray(matrix.T, np.float32),
        "linear.bias": (bias - step.shift.astype(np.float64) @ matrix).astype(np.float32),
    }
    write_tensor_file(folder / _WEIGHTS_FILE, tensors, {"format": "pt"})


def _read_json(path: pathlib.Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _write_json(path: pathlib.Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
