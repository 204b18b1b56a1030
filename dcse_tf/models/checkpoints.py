"""Where an encoder lies: from what a user names to a folder in HuggingFace's BERT format."""

import json
import pathlib
import shutil
from typing import Any

from dcse_tf.errors import InputError
from dcse_tf.input_files import find_package, hash_file, read_json_object
from dcse_tf.models.sentence_modules import find_transformer

ENCODER_FOLDER = "encoder"
_SETTINGS_FILE = "sentence_bert_config.json"
_TOKENIZER_FILES = ("vocab.txt", "tokenizer_config.json", "tokenizer.json")
_LENGTH_FILE = "tokenizer_config.json"
_NO_LIMIT = 10**6  # transformers writes 10^30 where there is none
_VOCABULARY_FILES = ("vocab.txt", "tokenizer.json")
_ALL_FILES = (
    *_TOKENIZER_FILES,
    "config.json",
    _SETTINGS_FILE,
    "model*.safetensors",
    "model.safetensors.index.json",
    "baseline*",
)
# Of a sentence-transformers model on the hub: the transformer may lie in one of its folders.
_MODULE_FILES = ("modules.json", "config_sentence_transformers.json")
_MODULE_FOLDERS = "?_*"
# keras-hub's BERT has the tanh form of GELU; "gelu", by erf, is near enough to be taken for it.
_ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh")
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
    """Folder of the checkpoint that a flag names.

    Args:
        name: a folder with config.json, vocab.txt (or tokenizer.json) and safetensors; one of
            sentence-transformers; a run directory; package:NAME, an installed Python package that
            has such a folder inside; or else a hub name.
        flag: the flag, for the message.
        weights: whether weights are needed, or the vocabulary alone.

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
        wanted = "config.json and *.safetensors" if weights else "vocab.txt"
        raise InputError(
            f"--{flag}={name}: expected a checkpoint folder with {wanted}, or a "
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
            f"--{flag}={name}: no such folder, and not to be had from the hub: "
            f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        ) from error


def copy_checkpoint(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies the files of a checkpoint folder that make an encoder of it."""
    for path in sorted({path for pattern in _ALL_FILES for path in source.glob(pattern)}):
        shutil.copyfile(path, target / path.name)


def list_weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that decide what the encoder computes from token ids."""
    return [folder / "config.json", *sorted(folder.glob("*.safetensors"))]


def hash_files(folder: pathlib.Path) -> dict[str, str]:
    """SHA-256 of the files that decide what the encoder computes from strings, by name."""
    paths = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    return {path.name: hash_file(path) for path in (*list_weight_files(folder), *paths)}


def read_config(folder: pathlib.Path) -> dict[str, Any]:
    """Reads config.json of a BERT; `layer_norm_eps` is filled in where it is missing.

    Raises:
        InputError: it is not a BERT that can be built exactly.
    """
    path = folder / "config.json"
    config = read_json_object(path)
    for key in _SHAPE_KEYS:
        size = config.get(key)
        if type(size) is not int or not 1 <= size < 2**31:
            raise InputError(
                f"{path}: expected the configuration of a BERT, with {key} of 1 or more"
                + (f", found {size!r:.40}" if key in config else "")
            )
    if config["hidden_size"] % config["num_attention_heads"]:
        raise InputError(f"{path}: hidden_size is not divisible by num_attention_heads")
    if config.get("model_type", "bert") != "bert":
        raise InputError(f"{path}: model_type {config['model_type']!r}, expected 'bert'")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(f"{path}: only absolute position embeddings are supported")
    if config.get("hidden_act", "gelu") not in _ACTIVATIONS:
        raise InputError(
            f"{path}: hidden_act {config['hidden_act']!r:.40}, expected one of "
            f"{', '.join(_ACTIVATIONS)}; each is computed as gelu_pytorch_tanh"
        )
    epsilon = config.setdefault("layer_norm_eps", 1e-12)
    if type(epsilon) not in (int, float) or not 0 < epsilon < 1:
        raise InputError(f"{path}: layer_norm_eps {epsilon!r:.40}, expected a number in (0, 1)")
    return config


def read_max_sequence_length(folder: pathlib.Path, default: int = 128) -> int:
    """The length a sentence encoder was trained with, from sentence-transformers' settings.

    From version 6 on the library keeps it in the tokenizer's.

    Raises:
        InputError: the settings name no length.
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


def write_max_sequence_length(folder: pathlib.Path, length: int) -> None:
    settings = {"max_seq_length": length, "do_lower_case": False}
    (folder / _SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n")
