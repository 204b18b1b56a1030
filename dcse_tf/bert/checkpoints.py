"""Encoder folders in HuggingFace's format: finds the folder a user names and reads and writes the
files in it. What sentence-transformers' format adds is in `dcse_tf.bert.sentence_modules`.

Reading a folder must not import TensorFlow.
"""

import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from dcse_tf.bert.families import BUCKETS, FAMILIES, RELATIVE_BUCKETS, convert_config
from dcse_tf.bert.sentence_modules import MODULES_FILE, PROMPTS_FILE, find_transformer
from dcse_tf.errors import InputError, first_line, name_input
from dcse_tf.files import hash_file, write_json
from dcse_tf.input_files import find_package, read_json_object

ENCODER_FOLDER = "encoder"
# A re-ranker's settings, and those of one without a BERT, see `dcse_tf.reading.reranker_files`.
RERANKER_FILE, MATCHER_FILE = "reranker.json", "matcher.json"
# An encoder's form of matching, see `dcse_tf.matching.equations`.
MATCHING_FILE, ATTENTION_FILE = "matching.json", "turn_attention.safetensors"
# An encoder's projection heads, see `dcse_tf.matching.head_files`.
HEADS_FILE = "heads.safetensors"
LENGTH_FILE, LENGTH_FILES = "sentence_bert_config.json", "sentence_*_config.json"  # early ones
_TOKENIZER_SETTINGS = "tokenizer_config.json"
# The first that exists has the vocabulary, see `read_vocabulary` of `dcse_tf.bert.tokenizer`.
VOCABULARY_FILES = ("vocab.txt", "tokenizer.json", "sentencepiece.bpe.model", "vocab.json")
_TOKENIZER_FILES = (*VOCABULARY_FILES, _TOKENIZER_SETTINGS, "merges.txt")
# Besides the tokenizer and the weights, what an encoder consists of.
_OWN_FILES = (RERANKER_FILE, MATCHER_FILE, MATCHING_FILE)
_FURTHER_FILES = ("config.json", *_OWN_FILES, ATTENTION_FILE, HEADS_FILE, LENGTH_FILES, "baseline*")
ONNX_FILE, SAVED_MODEL_FILE = "model.onnx", "saved_model.pb"  # of exports
_WEIGHT_FILE = "model*.safetensors"
_NO_LIMIT = 10**6  # transformers writes 10^30 where there is none
# HuggingFace's names for GELU computed with erf and for its tanh approximation.
_EXACT_GELU, _TANH_GELU = ("gelu",), ("gelu_new", "gelu_pytorch_tanh")
SIZES = (
    *("vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size"),
    *("intermediate_size", "max_position_embeddings", "type_vocab_size"),
)


def resolve_checkpoint(name: str, flag: str, weights: bool = True) -> pathlib.Path:
    """The folder of the checkpoint that a flag, named by errors, names; if it needs `weights`, or
    else only a vocabulary.

    A name is one of: a folder with config.json, a vocabulary (see `read_vocabulary` of
    `dcse_tf.bert.tokenizer`) and safetensors; a sentence-transformers folder; a run directory;
    package:NAME, an installed Python package with such a folder inside; a name on the hub. Raises
    InputError if there is no checkpoint, or the hub cannot be reached.
    """
    marks = ("config.json",) if weights else VOCABULARY_FILES
    if name.startswith("package:"):
        package = find_package(name.removeprefix("package:"))
        found = [path for mark in (*marks, MODULES_FILE) for path in package.rglob(mark)]
        folders = sorted({path.parent for path in found})
    else:
        folders = [pathlib.Path(name) / ENCODER_FOLDER, pathlib.Path(name)]
    for folder in map(find_transformer, folders):
        marked = any((folder / mark).is_file() for mark in marks)
        if marked and (not weights or any(folder.glob("*.safetensors"))):
            return folder

    is_path = name.startswith(("package:", ".", "/")) or name.count("/") > 1
    if is_path or pathlib.Path(name).exists():
        wanted = "config.json and *.safetensors" if weights else " or ".join(VOCABULARY_FILES)
        told = f"or a run directory with a trained one in {ENCODER_FOLDER}/"
        for mark, export in ((ONNX_FILE, "an ONNX export"), (SAVED_MODEL_FILE, "a SavedModel")):
            if (pathlib.Path(name) / mark).is_file():
                told += f"; this is {export}: give the run or checkpoint that it was made of"
        raise InputError(f"`{flag}`={name}: expected a checkpoint folder with {wanted}, {told}")
    files = [*_TOKENIZER_FILES, *((*_FURTHER_FILES, _WEIGHT_FILE) if weights else ())]
    # A sentence-transformers model on the hub may have its transformer in a folder such as 0_BERT.
    files += [MODULES_FILE, PROMPTS_FILE, *(f"?_*/{file}" for file in files)]
    import huggingface_hub

    try:
        snapshot = huggingface_hub.snapshot_download(name, allow_patterns=files)
    except Exception as error:  # The hub's client raises its own, httpx's and OSError.
        raise InputError(
            f"`{flag}`={name}: no such folder, and it cannot be loaded from the hub: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    return find_transformer(pathlib.Path(snapshot))


def copy_checkpoint(source: pathlib.Path, target: pathlib.Path, weights: bool = True) -> None:
    """Copies the files of a checkpoint folder that define an encoder to an existing folder; if
    asked for, also the BERT's weights and the tokenizer, whose token ids they follow.
    """
    rest = (_WEIGHT_FILE, *_TOKENIZER_FILES, PROMPTS_FILE) if weights else ()
    for path in {path for each in (*_FURTHER_FILES, *rest) for path in source.glob(each)}:
        shutil.copyfile(path, target / path.name)


def list_weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that decide what the encoder computes from token ids."""
    return [folder / "config.json", *sorted(folder.glob("*.safetensors"))]


def hash_files(folder: pathlib.Path) -> dict[str, str]:
    """SHA-256 of the files that decide what the encoder computes from strings, by name."""
    paths = [folder / name for name in (*_TOKENIZER_FILES, PROMPTS_FILE, *_OWN_FILES)]
    paths = [*list_weight_files(folder), *(path for path in paths if path.is_file())]
    return {path.name: hash_file(path) for path in paths}


def approximates_gelu(config: Mapping[str, Any]) -> bool:
    """Whether a BERT computes GELU with tanh, as BERT's first code did, and not with erf."""
    return config["hidden_act"] in _TANH_GELU


def find_padding(folder: pathlib.Path) -> int:
    """The padding's id in a checkpoint's own numbering; 0 if there is no tokenizer."""
    path = folder / "vocab.txt"
    if path.is_file():
        with path.open("rb") as file:
            return int([file.readline().rstrip() for _ in range(2)][1] == b"<pad>")
    path = folder / "tokenizer.json"
    if not path.is_file():
        # The vocabularies of XLM-R and, mostly, RoBERTa begin with <s>, <pad>.
        first = int(any((folder / name).is_file() for name in VOCABULARY_FILES))
        found = read_json_object(folder / "vocab.json", optional=True).get("<pad>")
        return found if type(found) is int else first
    content = read_json_object(path, "a tokenizer")
    with name_input(f"{path}: expected a tokenizer", LookupError, TypeError, ValueError):
        ids = {x["content"]: int(x["id"]) for x in content.get("added_tokens", [])}
        if not ids.keys() & {"<pad>", "[PAD]"}:  # then it is an entry like any other
            ids = content["model"]["vocab"]
            if not isinstance(ids, dict):  # pairs of an entry and its score
                ids = {entry: place for place, (entry, _) in enumerate(ids)}
        return int(ids.get("<pad>", ids.get("[PAD]", 0)))


def read_config(folder: pathlib.Path) -> dict[str, Any]:
    """Reads config.json as a BERT's configuration, see `dcse_tf.bert.families`. Raises InputError
    if the architecture or a setting is not supported.
    """
    path = folder / "config.json"
    config = read_json_object(path)
    name = config.get("model_type", "bert")
    if str(name) not in FAMILIES:
        raise InputError(
            f"{path}: model_type {name!r:.40}, expected one of {', '.join(FAMILIES)}: no other "
            "architecture can be computed here"
        )
    config = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, **convert_config(config)}
    for key in SIZES:
        size = config.get(key)
        if type(size) is not int or not 1 <= size < 2**31:
            found = f", found {size!r:.40}" if key in config else ""
            raise InputError(f"{path}: expected a BERT's settings, {key} of 1 or more{found}")
    if config["hidden_size"] % config["num_attention_heads"]:
        raise InputError(f"{path}: hidden_size is not divisible by num_attention_heads")
    epsilon = config["layer_norm_eps"]
    if type(epsilon) not in (int, float) or not 0 < epsilon < 1:
        raise InputError(f"{path}: layer_norm_eps {epsilon!r:.40}, expected a number in (0, 1)")
    for key, known in {
        RELATIVE_BUCKETS: (BUCKETS,),
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),  # which would not see the tokens that follow
        "hidden_act": (*_EXACT_GELU, *_TANH_GELU),
    }.items():
        if config.get(key, known[0]) not in known:
            expected = " or ".join(map(str, known))
            raise InputError(f"{path}: {key} {config[key]!r:.40}, expected {expected}")
    return config


def read_max_sequence_length(folder: pathlib.Path) -> int:
    """The sequence length in tokens from sentence-transformers' settings; 128 without them.

    Since version 6 the library keeps the length in the tokenizer's settings. Raises InputError if
    neither file gives one.
    """
    path = min(folder.glob(LENGTH_FILES), default=folder / LENGTH_FILE)
    if not path.is_file():
        return 128
    names = ((path, "max_seq_length"), (folder / _TOKENIZER_SETTINGS, "model_max_length"))
    for source, name in names:
        length = read_json_object(source, optional=True).get(name)
        if type(length) is int and 2 < length < _NO_LIMIT:
            return length
    other = f"or model_max_length in {_TOKENIZER_SETTINGS}"
    raise InputError(f"{path}: expected max_seq_length, 3 tokens or more, {other}")


def write_max_sequence_length(folder: pathlib.Path, length: int, pooler: bool = False) -> None:
    """Writes sentence-transformers' settings: the longest length in tokens, including [CLS] and
    [SEP], and that there is no pooler, or the library would warn that it initialises one at random.
    """
    settings = {"max_seq_length": length, "do_lower_case": False}
    without = {} if pooler else {"model_args": {"add_pooling_layer": False}}
    write_json(folder / LENGTH_FILE, settings | without)
