"""Encoder folders: finds the folder a user names and reads and writes the files in it.

A folder is in HuggingFace's BERT format or in sentence-transformers' format. The latter has
modules.json, the transformer in the folder itself or in a subfolder, and one subfolder with a
config.json for the pooling and for each further module.

The layer that applies the modules is elsewhere: reading a folder must not import TensorFlow.
"""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import ijson
import numpy as np
import safetensors
import safetensors.numpy

from dcse_tf.errors import InputError, OutputError
from dcse_tf.files import hash_file
from dcse_tf.input_files import find_package, parse_json, read_json_object
from dcse_tf.model.families import FAMILIES, RELATIVE_BUCKETS, make_bert_config
from dcse_tf.model.relative_positions import BUCKETS


def write_tensor_file(
    path: pathlib.Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """Writes contiguous arrays to a safetensors file with the permissions that the umask gives.

    Raises:
        OutputError: it cannot be written.
    """
    # The library writes a file that only its owner can read and renames it over `path`.
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors.numpy.save_file(tensors, path, metadata=metadata)
    except safetensors.SafetensorError as error:
        raise OutputError(f"{path}: cannot be written: {error}") from error
    path.chmod(mode)


def read_tensor_file(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


@dataclasses.dataclass(frozen=True)
class AffineMap:
    """Maps x to (x - shift) @ matrix + bias, computed in the dtype of the matrix.

    Attributes:
        shift: float `[dim]`.
        matrix: float `[dim, k]`.
        bias: float `[k]`.
        relu: whether negative results become 0.
    """

    shift: np.ndarray
    matrix: np.ndarray
    bias: np.ndarray
    relu: bool = False


_MODULES_FILE = "modules.json"
_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "model.safetensors"
# The activations of a Dense module that can be computed here, and whether they are a ReLU.
_IDENTITY, _RELU = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.ReLU"
_ACTIVATIONS = {_IDENTITY: False, _RELU: True}
_POOLINGS = ("mean", "cls")
_OLD_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_PROMPTS_FILE = "config_sentence_transformers.json"


@dataclasses.dataclass(frozen=True)
class SentenceModules:
    """What a sentence-transformers model does with token embeddings.

    Attributes:
        pooling: "mean" or "cls".
        maps: applied in order to the sentence embedding.
        unit_norm: whether the result is scaled to unit length.
    """

    pooling: str
    maps: tuple[AffineMap, ...] = ()
    unit_norm: bool = False


def find_transformer(folder: pathlib.Path) -> pathlib.Path:
    """The transformer's folder in a sentence-transformers folder; else the folder itself."""
    path = folder / _MODULES_FILE
    return folder / _list_modules(path)[0][1] if path.is_file() else folder


def read_modules(transformer: pathlib.Path) -> SentenceModules | None:
    """The modules after a transformer; None if it is not part of a sentence-transformers folder.

    Args:
        transformer: the transformer's folder, see `find_transformer`.

    Raises:
        InputError: a module is not supported.
    """
    path = _find_with(transformer, _MODULES_FILE)
    return _read_chain(path.parent, _list_modules(path)[1:], path) if path else None


def _find_with(transformer: pathlib.Path, name: str) -> pathlib.Path | None:
    """The path of a file in the model's root, which is the transformer's folder or its parent."""
    for root in (transformer, transformer.parent):
        path = root / name
        if path.is_file() and find_transformer(root) == transformer:
            return path
    return None


def refuse_maps(transformer: pathlib.Path, flag: str) -> None:
    """Raises InputError if a Dense module follows the pooling: training would lose it."""
    modules = read_modules(transformer)
    if modules and modules.maps:
        raise InputError(
            f"`{flag}`={transformer}: has a Dense module behind the pooling, which would be lost; "
            "give an encoder without one"
        )


def _list_modules(path: pathlib.Path) -> list[tuple[str, str]]:
    """The (class name, folder) of every module, the transformer first."""
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


def read_prefix(transformer: pathlib.Path) -> str:
    """The prefix that an encoder adds to every text: sentence-transformers' default prompt.

    Args:
        transformer: the transformer's folder, see `find_transformer`.

    Raises:
        InputError: the file with the prompts is not in the expected format.
    """
    path = _find_with(transformer, _PROMPTS_FILE)
    if path is None:
        return ""
    config = read_json_object(path)
    name, prompts = config.get("default_prompt_name"), config.get("prompts") or {}
    prefix = prompts.get(name, "") if isinstance(prompts, dict) else None
    if not isinstance(prefix, str):
        raise InputError(f"{path}: expected texts by name in prompts")
    return prefix


def write_prefix(folder: pathlib.Path, prefix: str) -> None:
    """Writes a prefix for `read_prefix` and sentence-transformers; an empty one writes nothing."""
    if prefix:
        _write_json(folder / _PROMPTS_FILE, describe_prefix(prefix))


def describe_prefix(prefix: str) -> dict[str, Any]:
    """A prefix as the entries of sentence-transformers' configuration."""
    if not prefix:
        return {"prompts": {}, "default_prompt_name": None}
    return {"prompts": {"prefix": prefix}, "default_prompt_name": "prefix"}


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
    """Writes modules.json and the modules' folders; the transformer is in the folder itself.

    Args:
        folder: the folder to write to.
        modules: the modules after the transformer.
        dim: width of the token embeddings.
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
        "activation_function": _RELU if step.relu else _IDENTITY,
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
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _write_json(path: pathlib.Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


ENCODER_FOLDER = "encoder"
# A re-ranker's settings, see `dcse_tf.model.reranker_files`.
RERANKER_FILE = "reranker.json"
# An encoder's form of matching, see `dcse_tf.model.matching_files`.
MATCHING_FILE = "matching.json"
ATTENTION_FILE = "turn_attention.safetensors"
# An encoder's projection heads, see `dcse_tf.model.head_files`.
HEADS_FILE = "heads.safetensors"
_SETTINGS_FILE = "sentence_bert_config.json"
_SENTENCEPIECE_FILE = "sentencepiece.bpe.model"
_TOKENIZER_JSON = "tokenizer.json"
_BYTE_PAIR_FILES = ("vocab.json", "merges.txt")
_TOKENIZER_FILES = (
    *("vocab.txt", "tokenizer_config.json", _TOKENIZER_JSON, _SENTENCEPIECE_FILE),
    *_BYTE_PAIR_FILES,
)
_LENGTH_FILE = "tokenizer_config.json"
_NO_LIMIT = 10**6  # transformers writes 10^30 where there is none
_WEIGHT_FILES = ("model*.safetensors", "model.safetensors.index.json")
_VOCABULARY_FILES = ("vocab.txt", _TOKENIZER_JSON, _SENTENCEPIECE_FILE, _BYTE_PAIR_FILES[0])
_PADDINGS = ("[PAD]", "<pad>")
_ALL_FILES = (
    *_TOKENIZER_FILES,
    "config.json",
    RERANKER_FILE,
    MATCHING_FILE,
    ATTENTION_FILE,
    HEADS_FILE,
    _SETTINGS_FILE,
    *_WEIGHT_FILES,
    _PROMPTS_FILE,
    "baseline*",
)
# A sentence-transformers model on the hub may have its transformer in one of these folders.
_MODULE_FILES = ("modules.json", _PROMPTS_FILE)
_MODULE_FOLDERS = "?_*"
# HuggingFace's names for GELU computed with erf and for its tanh approximation.
_EXACT_GELU, _TANH_GELU = ("gelu",), ("gelu_new", "gelu_pytorch_tanh")
_SHAPE_KEYS = (
    "vocab_size",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)


def resolve_checkpoint(name: str, flag: str, weights: bool = True) -> pathlib.Path:
    """The folder of the checkpoint that a flag names.

    Args:
        name: one of: a folder with config.json, a vocabulary (see `read_vocabulary` of
            `dcse_tf.model.tokenizer`) and safetensors; a sentence-transformers folder; a run
            directory; package:NAME, an installed Python package with such a folder inside; a
            name on the hub.
        flag: the flag's name, for error messages.
        weights: whether weights are needed, or only the vocabulary.

    Raises:
        InputError: there is no checkpoint, or the hub cannot be reached.
    """
    if name.startswith("package:"):
        package = find_package(name.removeprefix("package:"))
        marks = ("modules.json", "config.json") if weights else _VOCABULARY_FILES
        folders = sorted({path.parent for mark in marks for path in package.rglob(mark)})
    else:
        folders = [pathlib.Path(name) / ENCODER_FOLDER, pathlib.Path(name)]
    for folder in map(find_transformer, folders):
        if _fits(folder, weights):
            return folder
    if (
        pathlib.Path(name).exists()
        or name.startswith(("package:", ".", "/"))
        or name.count("/") > 1
    ):
        wanted = "config.json and *.safetensors" if weights else " or ".join(_VOCABULARY_FILES)
        raise InputError(
            f"`{flag}`={name}: expected a checkpoint folder with {wanted}, or a "
            f"run directory with a trained one in {ENCODER_FOLDER}/"
        )
    files = _ALL_FILES if weights else _TOKENIZER_FILES
    below = [f"{_MODULE_FOLDERS}/{file}" for file in files]
    return find_transformer(_download(name, flag, (*files, *_MODULE_FILES, *below)))


def _fits(folder: pathlib.Path, weights: bool) -> bool:
    if not weights:
        return any((folder / name).is_file() for name in _VOCABULARY_FILES)
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _download(name: str, flag: str, files: tuple[str, ...]) -> pathlib.Path:
    import huggingface_hub

    try:
        return pathlib.Path(huggingface_hub.snapshot_download(name, allow_patterns=list(files)))
    except Exception as error:  # The hub's client raises its own, httpx's and OSError.
        raise InputError(
            f"`{flag}`={name}: no such folder, and it cannot be loaded from the hub: "
            f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        ) from error


def copy_checkpoint(source: pathlib.Path, target: pathlib.Path, weights: bool = True) -> None:
    """Copies the files of a checkpoint folder that define an encoder.

    Args:
        source: the checkpoint folder.
        target: an existing folder.
        weights: whether to copy also the BERT's weights and the tokenizer, whose token ids they
            follow.
    """
    rest = (*_WEIGHT_FILES, *_TOKENIZER_FILES, _PROMPTS_FILE)
    patterns = [name for name in _ALL_FILES if weights or name not in rest]
    for path in sorted({path for pattern in patterns for path in source.glob(pattern)}):
        shutil.copyfile(path, target / path.name)


def list_weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that decide what the encoder computes from token ids."""
    return [folder / "config.json", *sorted(folder.glob("*.safetensors"))]


def hash_files(folder: pathlib.Path) -> dict[str, str]:
    """SHA-256 of the files that decide what the encoder computes from strings, by name."""
    names = (*_TOKENIZER_FILES, _PROMPTS_FILE, RERANKER_FILE, MATCHING_FILE)
    paths = [folder / name for name in names if (folder / name).is_file()]
    return {path.name: hash_file(path) for path in (*list_weight_files(folder), *paths)}


def approximates_gelu(config: Mapping[str, Any]) -> bool:
    """Whether a BERT computes GELU with tanh, as BERT's first code did, and not with erf.

    Args:
        config: the BERT's configuration, see `read_config`.
    """
    return config["hidden_act"] in _TANH_GELU


def find_padding(folder: pathlib.Path) -> int:
    """The padding's id in a checkpoint's own numbering; 0 if there is no tokenizer.

    Raises:
        InputError: the tokenizer's file cannot be read.
    """
    path = folder / "vocab.txt"
    if path.is_file():
        with path.open("rb") as file:
            return int([file.readline().rstrip() for _ in range(2)][1] == b"<pad>")
    path = folder / _TOKENIZER_JSON
    if not path.is_file():
        # The vocabularies of XLM-R and RoBERTa begin with <s>, <pad>.
        return int(any((folder / name).is_file() for name in _VOCABULARY_FILES))
    try:
        with path.open("rb") as file:  # the vocabulary's many entries come after these
            for token in ijson.items(file, "added_tokens.item"):
                if token["content"] in _PADDINGS:
                    return int(token["id"])
    except (OSError, ijson.JSONError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: expected a tokenizer: {error!r}") from error
    return 0


def read_config(folder: pathlib.Path) -> dict[str, Any]:
    """Reads config.json as a BERT's configuration, see `dcse_tf.model.families`.

    Missing `hidden_act` and `layer_norm_eps` get their defaults.

    Raises:
        InputError: the architecture or a setting is not supported.
    """
    path = folder / "config.json"
    config = read_json_object(path)
    name = config.get("model_type", "bert")
    if name not in FAMILIES:
        raise InputError(
            f"{path}: model_type {name!r:.40}, expected one of {', '.join(FAMILIES)}: no other "
            "architecture can be computed here"
        )
    config = make_bert_config(config)
    for key in _SHAPE_KEYS:
        size = config.get(key)
        if type(size) is not int or not 1 <= size < 2**31:
            raise InputError(
                f"{path}: expected the configuration of a BERT, with {key} of 1 or more"
                + (f", found {size!r:.40}" if key in config else "")
            )
    if config.get(RELATIVE_BUCKETS, BUCKETS) != BUCKETS:
        raise InputError(
            f"{path}: {RELATIVE_BUCKETS} {config[RELATIVE_BUCKETS]!r:.40}, expected {BUCKETS}"
        )
    if config["hidden_size"] % config["num_attention_heads"]:
        raise InputError(f"{path}: hidden_size is not divisible by num_attention_heads")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(f"{path}: only absolute position embeddings are supported")
    if config.setdefault("hidden_act", _EXACT_GELU[0]) not in _EXACT_GELU + _TANH_GELU:
        raise InputError(
            f"{path}: hidden_act {config['hidden_act']!r:.40}, expected one of "
            f"{', '.join(_EXACT_GELU + _TANH_GELU)}"
        )
    epsilon = config.setdefault("layer_norm_eps", 1e-12)
    if type(epsilon) not in (int, float) or not 0 < epsilon < 1:
        raise InputError(f"{path}: layer_norm_eps {epsilon!r:.40}, expected a number in (0, 1)")
    return config


def is_mpnet(folder: pathlib.Path) -> bool:
    """Whether a folder's config.json is an MPNet's; False if there is none."""
    path = folder / "config.json"
    return path.is_file() and read_json_object(path).get("model_type") == "mpnet"


def read_max_sequence_length(folder: pathlib.Path, default: int = 128) -> int:
    """The sequence length in tokens from sentence-transformers' settings; `default` without them.

    Since version 6 the library keeps the length in the tokenizer's settings.

    Raises:
        InputError: neither file gives a length.
    """
    path = folder / _SETTINGS_FILE
    if not path.is_file():
        return default
    for source, name in ((path, "max_seq_length"), (folder / _LENGTH_FILE, "model_max_length")):
        length = read_json_object(source).get(name) if source.is_file() else None
        if type(length) is int and 2 < length < _NO_LIMIT:
            return length
    raise InputError(
        f"{path}: expected max_seq_length, 3 tokens or more, or model_max_length in {_LENGTH_FILE}"
    )


def write_max_sequence_length(folder: pathlib.Path, length: int, pooler: bool = False) -> None:
    """Writes sentence-transformers' settings.

    Args:
        folder: the encoder's folder.
        length: maximum length in tokens, including [CLS] and [SEP].
        pooler: whether the weights include BERT's pooler. If not, the settings say so; otherwise
            the library would warn that it initialises one at random.
    """
    settings: dict[str, Any] = {"max_seq_length": length, "do_lower_case": False}
    if not pooler:
        settings["model_args"] = {"add_pooling_layer": False}
    (folder / _SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n")
