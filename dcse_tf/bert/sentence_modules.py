"""What sentence-transformers' format adds to a transformer's folder: the modules behind it, and a
prefix of every text.

modules.json lists the transformer, in the folder itself or in a subfolder, and one subfolder with a
config.json for the pooling and for each further module. The layer that applies the modules is
elsewhere: reading a folder must not import TensorFlow.
"""

import dataclasses
import pathlib

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
    relu: bool = False  # whether negative results become 0


MODULES_FILE = "modules.json"
_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "model.safetensors"
# The activations of a Dense module that can be computed here, and whether they are a ReLU.
_IDENTITY, _RELU = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.ReLU"
_ACTIVATIONS = {_IDENTITY: False, _RELU: True}
_POOLINGS = ("mean", "cls")
_OLD_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
PROMPTS_FILE = "config_sentence_transformers.json"


@dataclasses.dataclass(frozen=True)
class SentenceModules:
    """What a sentence-transformers model does with token embeddings."""

    pooling: str  # "mean" or "cls"
    maps: tuple[AffineMap, ...] = ()  # applied in order to the sentence embedding
    unit_norm: bool = False  # whether the result is scaled to unit length


def find_transformer(folder: pathlib.Path) -> pathlib.Path:
    """The transformer's folder in a sentence-transformers folder; else the folder itself."""
    path = folder / MODULES_FILE
    return folder / _list_modules(path)[0][1] if path.is_file() else folder


def read_modules(transformer: pathlib.Path) -> SentenceModules | None:
    """The modules after a transformer, by its folder, see `find_transformer`; None if that is not
    part of a sentence-transformers folder. Raises InputError if a module is not supported.
    """
    path = _find_with(transformer, MODULES_FILE)
    if path is None:
        return None
    modules = _list_modules(path)[1:]
    names = [name for name, _ in modules]
    unit_norm = names[-1:] == ["Normalize"]
    middle = modules[1 : len(modules) - unit_norm]
    if names[:1] != ["Pooling"] or any(name != "Dense" for name, _ in middle):
        raise InputError(
            f"{path}: modules {', '.join(names) or 'none'} behind the transformer; only Pooling, "
            "then Dense without an activation, then Normalize can be computed here"
        )

    pooling_path = path.parent / modules[0][1] / _CONFIG_FILE
    config = read_json_object(pooling_path)
    mode = config.get("pooling_mode")
    if mode is None:
        given = [key for key, on in config.items() if key.startswith("pooling_mode_") and on]
        mode = [_OLD_POOLINGS.get(key, key) for key in given] or "mean"  # as the library does
    modes = [mode] if isinstance(mode, str) else list(mode)
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        found = " and ".join(map(str, modes)) or "nothing"
        raise InputError(
            f"{pooling_path}: pooling by {found}; only mean or cls can be computed here"
        )
    maps = tuple(_read_dense(path.parent / folder) for _, folder in middle)
    return SentenceModules(modes[0], maps, unit_norm)


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
    if not found or found[0][0] != "Transformer":
        raise InputError(f"{path}: expected a Transformer as the first module")
    return found


def _read_dense(folder: pathlib.Path) -> AffineMap:
    path, weights = folder / _CONFIG_FILE, folder / _WEIGHTS_FILE
    config = read_json_object(path)
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    places = [config.get(name) for name in ("module_input_name", "module_output_name")]
    elsewhere = any(place not in (None, "sentence_embedding") for place in places)
    if activation not in _ACTIVATIONS or config.get("use_residual") or elsewhere:
        raise InputError(
            f"{path}: activation {activation}; only a Dense of the sentence embedding with "
            f"{' or '.join(_ACTIVATIONS)} and without residual can be computed here"
        )
    tensors = read_tensor_file(weights)
    matrix = tensors.get("linear.weight", np.zeros(0)).T.astype(np.float32)
    bias = tensors.get("linear.bias", np.zeros(matrix.shape[1:])).astype(np.float32)
    if matrix.ndim != 2 or bias.shape != matrix.shape[1:]:
        raise InputError(f"{weights}: expected a matrix and a bias as long as its rows")
    return AffineMap(np.zeros(len(matrix), np.float32), matrix, bias, _ACTIVATIONS[activation])


def write_modules(folder: pathlib.Path, modules: SentenceModules, dim: int) -> None:
    """Writes modules.json and the folders of the modules after a transformer, whose token
    embeddings are `dim` wide and which is in the folder itself.
    """
    names = ["Transformer", "Pooling", *["Dense"] * len(modules.maps)]
    names += ["Normalize"] if modules.unit_norm else []
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
    write_json(
        folder / "1_Pooling" / _CONFIG_FILE,
        {"word_embedding_dimension": dim, **pooling, "pooling_mode_max_tokens": False},
    )
    for index, step in enumerate(modules.maps, start=2):
        inputs, outputs = step.matrix.shape
        sizes = {"in_features": inputs, "out_features": outputs, "bias": True}
        activation = {"activation_function": _RELU if step.relu else _IDENTITY}
        write_json(folder / f"{index}_Dense" / _CONFIG_FILE, sizes | activation)
        matrix, bias = (np.float64(value) for value in (step.matrix, step.bias))
        tensors = {
            "linear.weight": np.ascontiguousarray(matrix.T, np.float32),
            "linear.bias": (bias - step.shift.astype(np.float64) @ matrix).astype(np.float32),
        }
        write_tensor_file(folder / f"{index}_Dense" / _WEIGHTS_FILE, tensors, {"format": "pt"})


def read_prefix(transformer: pathlib.Path) -> str:
    """The prefix that an encoder adds to every text: sentence-transformers' default prompt, by the
    transformer's folder, see `find_transformer`.
    """
    path = _find_with(transformer, PROMPTS_FILE)
    if path is None:
        return ""
    config = read_json_object(path)
    name, prompts = config.get("default_prompt_name"), config.get("prompts") or {}
    prefix = prompts.get(name, "") if isinstance(prompts, dict) else None
    if not isinstance(prefix, str):
        raise InputError(f"{path}: expected texts by name in prompts")
    return prefix


def write_prefix(folder: pathlib.Path, prefix: str, **further: str) -> None:
    """Writes a prefix for `read_prefix` and sentence-transformers, and further settings of that
    library; nothing if there are none.
    """
    prompts = {"prefix": prefix} if prefix else {}
    settings = {"prompts": prompts, "default_prompt_name": next(iter(prompts), None), **further}
    if prefix or further:
        write_json(folder / PROMPTS_FILE, settings)
