"""Converts a BERT's weights between keras-hub's variables and HuggingFace's tensors.

One table maps variables to tensors, for loading and for saving, so that the two cannot differ.
keras-hub can load such files but not write them.
"""

from __future__ import annotations

import functools
import math
import operator
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import logging

from dcse_tf.bert import families
from dcse_tf.bert.checkpoints import find_padding
from dcse_tf.bert.families import RELATIVE_BIAS, RELATIVE_BUCKETS, is_relative
from dcse_tf.bert.tensor_files import read_tensor_file, require_finite, write_tensor_file
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.errors import InputError
from dcse_tf.files import write_json
from dcse_tf.input_files import read_json_object

if TYPE_CHECKING:  # reading tensors needs neither
    import keras
    import keras_hub

# Tensors of a re-ranker besides its BERT's: the head's and the speaker embeddings (Gu et al. 2020).
POOLER, CLASSIFIER = "pooler.dense", "classifier"
SPEAKER_TABLE = "embeddings.speaker_embeddings.weight"
SPEAKERS = 2  # the response's speaker, and everyone else
_WEIGHTS_FILE = "model.safetensors"
_BY_TOKEN = ("embeddings.word_embeddings.weight", "cls.predictions.bias")
# A model is read several times, such as for its fingerprint.
_warn_once = functools.cache(logging.warning)
_IN_LAYER = re.compile(r"encoder\.layer\.(\d+)\.")
# What encoders are stored with and do not need: the pooler, heads that predict tokens or the next
# sentence, and tables of the numbers 0, 1, 2, ... and of zeros.
_NOT_NEEDED = re.compile(
    r"pooler\.|cls\.|lm_head\.|vocab_projector\.|embeddings\.(position_ids|token_type_ids)$"
)


class _Weight(NamedTuple):
    """A row of the table of weights."""

    name: str  # the tensor's in HuggingFace's files; in a transformer layer, without its prefix
    sizes: tuple[str, ...]  # the tensor's shape, as names of entries in config.json
    path: str  # the variable's, of attributes from keras-hub's backbone or one of its layers


_HIDDEN, _WIDE, _VOCABULARY = "hidden_size", "intermediate_size", "vocab_size"


def _dense(name: str, path: str, inputs: str = _HIDDEN, outputs: str = _HIDDEN) -> list[_Weight]:
    kernel = _Weight(f"{name}.weight", (outputs, inputs), f"{path}.kernel")
    return [kernel, _Weight(f"{name}.bias", (outputs,), f"{path}.bias")]


def _norm(name: str, path: str) -> list[_Weight]:
    parts = (("weight", "gamma"), ("bias", "beta"))
    return [_Weight(f"{name}.{ours}", (_HIDDEN,), f"{path}.{keras}") for ours, keras in parts]


_EMBEDDINGS = [
    _Weight(f"embeddings.{name}_embeddings.weight", (rows, _HIDDEN), path)
    for name, rows, path in (
        ("word", _VOCABULARY, "token_embedding.embeddings"),
        ("position", "max_position_embeddings", "position_embedding.position_embeddings"),
        ("token_type", "type_vocab_size", "segment_embedding.embeddings"),
    )
]
_EMBEDDINGS += _norm("embeddings.LayerNorm", "embeddings_layer_norm")
_RELATIVE = [
    _Weight(RELATIVE_BIAS, (RELATIVE_BUCKETS, "num_attention_heads"), "relative_bias.table")
]
_LAYER = [
    *_dense("attention.self.query", "_self_attention_layer.query_dense"),
    *_dense("attention.self.key", "_self_attention_layer.key_dense"),
    *_dense("attention.self.value", "_self_attention_layer.value_dense"),
    *_dense("attention.output.dense", "_self_attention_layer.output_dense"),
    *_norm("attention.output.LayerNorm", "_self_attention_layer_norm"),
    *_dense("intermediate.dense", "_feedforward_intermediate_dense", outputs=_WIDE),
    *_dense("output.dense", "_feedforward_output_dense", inputs=_WIDE),
    *_norm("output.LayerNorm", "_feedforward_layer_norm"),
]
_MASKED_LM_HEAD = [
    *_dense("cls.predictions.transform.dense", "_intermediate_dense"),
    *_norm("cls.predictions.transform.LayerNorm", "_intermediate_layer_norm"),
    _Weight("cls.predictions.bias", (_VOCABULARY,), "_bias"),
]


class WeightPair(NamedTuple):
    """A Keras variable and its HuggingFace name; `kind` is "table" (the same shape on both sides),
    "vector" or "kernel". The latter are flat in the file, where a kernel is also transposed; in
    Keras, attention has an axis for the heads.
    """

    variable: keras.Variable
    name: str
    kind: str = "table"

    def to_huggingface(self) -> np.ndarray:
        value = self.variable.numpy()
        if self.kind == "kernel":
            # Attention's are square, so that it does not matter which side the heads are on.
            return value.reshape(len(value) if value.ndim == 2 else math.isqrt(value.size), -1).T
        return value.reshape(-1) if self.kind == "vector" else value


def backbone_weights(backbone: keras_hub.models.BertBackbone) -> Iterator[WeightPair]:
    """All weights of a BERT except the pooler's, which a sentence encoder does not use."""
    yield from _pair(_EMBEDDINGS, backbone)
    if hasattr(backbone, "relative_bias"):
        yield from _pair(_RELATIVE, backbone)
    for index, layer in enumerate(backbone.transformer_layers):
        yield from _pair(_LAYER, layer, f"encoder.layer.{index}.")


def masked_lm_head_weights(head: keras_hub.layers.MaskedLMHead) -> Iterator[WeightPair]:
    """The weights of the prediction head; its output matrix is the token embedding."""
    yield from _pair(_MASKED_LM_HEAD, head)


def _pair(table: list[_Weight], layer: object, prefix: str = "") -> Iterator[WeightPair]:
    for name, sizes, path in table:
        kind = "kernel" if path.endswith("kernel") else "vector" if len(sizes) == 1 else "table"
        yield WeightPair(operator.attrgetter(path)(layer), prefix + name, kind)


def read_bert_tensors(
    folder: pathlib.Path,
    config: dict[str, Any],
    further: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, np.ndarray]:
    """The weights of a BERT, float32, under HuggingFace's names without "bert.", by its
    configuration (`read_config`); and `further` tensors, such as a head's, by name with a shape.
    Raises InputError if a file cannot be read; a tensor is missing, has the wrong shape or a number
    that is not finite; or there are more layers than in the configuration.
    """
    tensors, layers = read_tensors(folder), config["num_hidden_layers"]
    rows = [("", row) for row in (*_EMBEDDINGS, *(_RELATIVE if is_relative(config) else []))]
    rows += [(f"encoder.layer.{index}.", row) for index in range(layers) for row in _LAYER]
    shapes = {prefix + row.name: tuple(config[size] for size in row.sizes) for prefix, row in rows}
    shapes |= further or {}
    found = {name: _take(tensors, name, shape, str(folder)) for name, shape in shapes.items()}
    # More layers would be used by no one; other tensors may be those of another architecture.
    rest = tensors.keys() - found.keys()
    deepest = max((int(match[1]) for name in rest if (match := _IN_LAYER.match(name))), default=0)
    if deepest >= layers:
        raise InputError(
            f"{folder}: has {deepest + 1} layers, and config.json says num_hidden_layers {layers}; "
            "expected as many as the weights were trained with"
        )
    if unknown := sorted(name for name in rest if not _NOT_NEEDED.match(name)):
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        _warn_once("%s", f"{folder}: these tensors are not used: {', '.join(unknown[:5])}{more}")
    return found


def _take(
    tensors: dict[str, np.ndarray], name: str, shape: tuple[int, ...], source: str
) -> np.ndarray:
    value = tensors.get(name)
    if value is None:
        raise InputError(f"{source}: lacks the tensor {name}")
    if value.shape != shape or value.dtype.kind in "iub":  # integers: of a quantized model
        raise InputError(f"{source}: {name} is {value.dtype} {value.shape}, expected {shape}")
    require_finite(value, name, source)
    return value.astype(np.float32, copy=False)


def head_shapes(dim: int, speakers: bool) -> dict[str, tuple[int, ...]]:
    """The shapes of a re-ranker's tensors other than its BERT's, by name."""
    shapes: dict[str, tuple[int, ...]] = {f"{POOLER}.bias": (dim,), f"{CLASSIFIER}.bias": (1,)}
    shapes |= {SPEAKER_TABLE: (SPEAKERS, dim)} if speakers else {}
    return {**shapes, f"{POOLER}.weight": (dim, dim), f"{CLASSIFIER}.weight": (1, dim)}


def read_tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """All tensors of a checkpoint, under BERT's names without "bert."; raises InputError if a file
    is missing or cannot be read.

    If the padding is not the vocabulary's first entry, the rows of these two are swapped, so that
    padding has id 0 everywhere in this code.
    """
    tensors = read_tensor_file(folder / _WEIGHTS_FILE, finite=False)  # `_take` checks what is used
    config = read_json_object(folder / "config.json", optional=True)
    return _pad_first(families.convert_tensors(config, tensors), find_padding(folder))


def _pad_first(tensors: dict[str, np.ndarray], padding: int) -> dict[str, np.ndarray]:
    """Swaps the padding's row with the first in the tables by token."""
    for name in _BY_TOKEN:
        if padding and name in tensors and len(tensors[name]) > padding:
            value = tensors[name].copy()
            value[[0, padding]] = value[[padding, 0]]
            tensors = {**tensors, name: value}
    return tensors


def extend_vocabulary(
    tensors: dict[str, np.ndarray], vocabulary: Vocabulary, folder: pathlib.Path
) -> dict[str, np.ndarray]:
    """Adds the entries that a vocabulary has beyond the one of a checkpoint's folder to the
    checkpoint's tensors, each as a copy of [SEP]'s.
    """
    known, size = len(read_vocabulary(folder).tokens), len(vocabulary.tokens)
    extended, like = dict(tensors), vocabulary.sep_id
    for name in tensors.keys() & {*_BY_TOKEN} if known < size else ():
        value = tensors[name]
        copies = np.repeat(value[like : like + 1], size - known, axis=0)
        # A table may have more rows than there are entries, with anything in them.
        extended[name] = np.concatenate([value[:known], copies, value[size:]])
    return extended


def assign(pairs: Iterable[WeightPair], tensors: dict[str, np.ndarray], source: str) -> None:
    """Assigns the tensors of a checkpoint, which errors call `source`, to Keras variables; for
    errors about them see `read_bert_tensors`.
    """
    for pair in pairs:
        value = _take(tensors, pair.name, pair.to_huggingface().shape, source)
        value = value.T if pair.kind == "kernel" else value
        pair.variable.assign(value.reshape(pair.variable.shape))


def to_tensors(pairs: Iterable[WeightPair]) -> dict[str, np.ndarray]:
    """The values of Keras variables under HuggingFace's names."""
    return {pair.name: np.ascontiguousarray(pair.to_huggingface()) for pair in pairs}


def write_bert(
    folder: pathlib.Path, config: Mapping[str, Any], tensors: dict[str, np.ndarray]
) -> None:
    """Writes config.json and model.safetensors, as `read_bert_tensors` and HuggingFace read them;
    raises OutputError if it cannot. An MPNet is written as an MPNet, with its own token ids: see
    `number_as_written` of `dcse_tf.bert.tokenizer`.
    """
    dtypes = {x: "float32" for x in ("dtype", "torch_dtype") if x in config}  # not the start's
    config = {**config, "architectures": ["BertModel"], **dtypes}
    if is_relative(config):
        config, tensors = families.make_mpnet(config, _pad_first(tensors, 1))
    write_json(folder / "config.json", config, sort_keys=True)
    write_tensors(folder, tensors)


def write_tensors(folder: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes `model.safetensors`; raises OutputError if it cannot."""
    write_tensor_file(folder / _WEIGHTS_FILE, tensors, {"format": "pt"})
