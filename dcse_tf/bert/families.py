"""Architectures that compute the same as BERT under other names, and are read as BERTs.

RoBERTa and XLM-R count positions from pad_token_id + 1 and have one segment; DistilBERT has no
segments. Encoders trained from these are written as BERTs, which every library loads. MPNet is a
BERT whose attention adds a bias by distance; BERT's format has no such bias, so it is written as
MPNet.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]

_POSITIONS = "embeddings.position_embeddings.weight"
_SEGMENTS = "embeddings.token_type_embeddings.weight"
_HEAD = "cls.predictions"
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclasses.dataclass(frozen=True)
class Family:
    """An architecture, by HuggingFace's `model_type`.

    Attributes:
        prefix: prefix of its tensors' names in a model with a head.
        keys: BERT's key of the configuration -> its own.
        names: regular expression in its tensors' names -> replacement that gives BERT's name.
        skipped: maps its configuration to the number of unused rows at the start of the position
            table.
    """

    prefix: str
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skipped: Callable[[Mapping[str, Any]], int] = lambda config: 0


def _read_padding(config: Mapping[str, Any]) -> int:
    """The padding's id; RoBERTa's own, 1, if the configuration does not give it."""
    padding = config.get("pad_token_id")
    return padding if type(padding) is int else 1


# Positions are counted from pad_token_id + 1.
_ROBERTA = Family(
    "roberta.",
    names={
        r"lm_head\.dense\.": f"{_HEAD}.transform.dense.",
        r"lm_head\.layer_norm\.": f"{_HEAD}.transform.LayerNorm.",
        r"lm_head\.bias": f"{_HEAD}.bias",
    },
    skipped=lambda config: _read_padding(config) + 1,
)
_DISTILBERT = Family(
    "distilbert.",
    keys={
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    names={
        r"transformer\.layer\.(\d+)\.attention\.q_lin\.": r"encoder.layer.\1.attention.self.query.",
        r"transformer\.layer\.(\d+)\.attention\.k_lin\.": r"encoder.layer.\1.attention.self.key.",
        r"transformer\.layer\.(\d+)\.attention\.v_lin\.": r"encoder.layer.\1.attention.self.value.",
        r"transformer\.layer\.(\d+)\.attention\.out_lin\.": (
            r"encoder.layer.\1.attention.output.dense."
        ),
        r"transformer\.layer\.(\d+)\.sa_layer_norm\.": (
            r"encoder.layer.\1.attention.output.LayerNorm."
        ),
        r"transformer\.layer\.(\d+)\.ffn\.lin1\.": r"encoder.layer.\1.intermediate.dense.",
        r"transformer\.layer\.(\d+)\.ffn\.lin2\.": r"encoder.layer.\1.output.dense.",
        r"transformer\.layer\.(\d+)\.output_layer_norm\.": r"encoder.layer.\1.output.LayerNorm.",
        r"vocab_transform\.": f"{_HEAD}.transform.dense.",
        r"vocab_layer_norm\.": f"{_HEAD}.transform.LayerNorm.",
        r"vocab_projector\.bias": f"{_HEAD}.bias",
    },
)
# Parts of tensor names: BERT's -> MPNet's.
_MPNET_NAMES = {
    ".attention.self.query.": ".attention.attn.q.",
    ".attention.self.key.": ".attention.attn.k.",
    ".attention.self.value.": ".attention.attn.v.",
    ".attention.output.dense.": ".attention.attn.o.",
    ".attention.output.LayerNorm.": ".attention.LayerNorm.",
}
# MPNet counts positions from 2, whatever the configuration says.
_MPNET_SKIPPED = 2
_MPNET = Family(
    "mpnet.",
    names={re.escape(theirs): ours for ours, theirs in _MPNET_NAMES.items()} | {**_ROBERTA.names},
    skipped=lambda config: _MPNET_SKIPPED,
)
# transformers' MPNet uses these two values whatever the configuration says.
BUCKETS, FARTHEST = 32, 128
RELATIVE_BIAS = "encoder.relative_attention_bias.weight"
# The number of distance buckets. Only the configuration of an MPNet has this key.
RELATIVE_BUCKETS = "relative_attention_num_buckets"
FAMILIES: dict[str, Family] = {
    "bert": Family("bert."),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
}


def make_bert_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the content of an encoder's config.json to a BERT's configuration.

    A BERT's own configuration is returned without a number of buckets of distance, and otherwise
    unchanged. Missing or invalid sizes are not checked here, but by the reader of the result.
    """
    name = config.get("model_type", "bert")
    family = FAMILIES[name]
    result = {key: value for key, value in config.items() if key not in family.keys.values()}
    if family is _MPNET:
        result.setdefault(RELATIVE_BUCKETS, BUCKETS)
    else:
        result.pop(RELATIVE_BUCKETS, None)
    if name == "bert":
        return result
    result |= {key: config[theirs] for key, theirs in family.keys.items() if theirs in config}
    positions = result.get("max_position_embeddings")
    if type(positions) is int:
        result["max_position_embeddings"] = positions - family.skipped(config)
    # Add a second segment, equal to the first, for models that read a context and a response.
    if result.get("type_vocab_size", 1) == 1:
        result["type_vocab_size"] = 2
    return {**result, "architectures": ["BertModel"], "model_type": "bert", "pad_token_id": 0}


def make_bert_tensors(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Tensors:
    """Converts an encoder's tensors to BERT's, under BERT's names without "bert.".

    Args:
        config: the content of its config.json.
        tensors: the tensors of its files by name.
    """
    name = config.get("model_type", "bert")
    family = FAMILIES.get(name, FAMILIES["bert"])
    patterns = [(re.compile(pattern), ours) for pattern, ours in family.names.items()]
    result: Tensors = {}
    for key, value in tensors.items():
        key = key.removeprefix(family.prefix)
        for pattern, ours in patterns:
            key = pattern.sub(ours, key)
        for old, new in _OLD_NAMES.items():
            key = key.replace(old, new)
        result[key] = value
    if family is not FAMILIES["bert"] and _POSITIONS in result:
        result[_POSITIONS] = result[_POSITIONS][family.skipped(config) :]
        segments = result.get(_SEGMENTS, np.zeros((1, result[_POSITIONS].shape[1]), np.float32))
        result[_SEGMENTS] = np.repeat(segments, 2, axis=0) if len(segments) == 1 else segments
    return result


def is_relative(config: Mapping[str, Any]) -> bool:
    """Whether a BERT's attention adds a bias by distance, that is, whether it is an MPNet.

    Args:
        config: the configuration from `make_bert_config`.
    """
    return RELATIVE_BUCKETS in config


def make_mpnet_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of an MPNet that was read as a BERT: the inverse of `make_bert_config`."""
    result = {key: value for key, value in config.items() if key != "type_vocab_size"}
    return {
        **result,
        "architectures": ["MPNetModel"],
        "max_position_embeddings": config["max_position_embeddings"] + _MPNET_SKIPPED,
        "model_type": "mpnet",
        "pad_token_id": 1,
    }


def make_mpnet_tensors(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """The tensors of an MPNet under its own names: the inverse of `make_bert_tensors`."""
    result: Tensors = {}
    for key, value in tensors.items():
        for ours, theirs in _MPNET_NAMES.items():
            key = key.replace(ours, theirs)
        result[key] = value
    del result[_SEGMENTS]  # all zeros: MPNet has no segments
    result[_POSITIONS] = np.pad(result[_POSITIONS], [(_MPNET_SKIPPED, 0), (0, 0)])
    return result


def bucket_distances(distances: np.ndarray) -> np.ndarray:
    """T5's buckets of distances.

    Half of the buckets are for preceding tokens and half for following ones. In each half, eight
    buckets hold a single distance, and the others grow logarithmically up to `FARTHEST`.

    Args:
        distances: int array, position of the key minus position of the query.

    Returns:
        int array of that shape, from 0 to `BUCKETS` - 1.

    Example:
        0, -7, 7, -8, 11 and 1,000 give 0, 7, 23, 8, 24 and 31.
    """
    half = BUCKETS // 2
    exact = half // 2
    far = np.abs(distances)
    octaves = np.log2(np.maximum(far, exact) / exact) / np.log2(FARTHEST / exact)
    wide = exact + (octaves * (half - exact)).astype(int)
    return np.where(far < exact, far, np.minimum(wide, half - 1)) + half * (distances > 0)


# The buckets of distances -FARTHEST to FARTHEST; larger distances share the outermost buckets.
BUCKET_OF = bucket_distances(np.arange(-FARTHEST, FARTHEST + 1))
