"""Encoders that compute what a BERT computes, under other names: read, they are BERTs.

RoBERTa and XLM-R count positions from behind the padding's and have one segment; DistilBERT has
none. What is trained from them is written as a BERT, which every library loads. MPNet is a BERT
whose attention adds a bias by distance, which no BERT can be written with: it is written as MPNet.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dcse_tf.model.relative_positions import BUCKETS

Tensors = dict[str, np.ndarray]

_POSITIONS = "embeddings.position_embeddings.weight"
_SEGMENTS = "embeddings.token_type_embeddings.weight"
_HEAD = "cls.predictions"
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclasses.dataclass(frozen=True)
class Family:
    """An architecture, by HuggingFace's `model_type`.

    Attributes:
        prefix: of its tensors' names, where they stand in a model with a head.
        keys: of its configuration, in place of BERT's.
        names: pattern of a tensor's name -> BERT's name.
        skipped: how many rows of the position table stand for no position.
    """

    prefix: str
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skipped: Callable[[Mapping[str, Any]], int] = lambda config: 0


def _read_padding(config: Mapping[str, Any]) -> int:
    """RoBERTa's own where the configuration names none."""
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
# BERT's names and MPNet's, within a tensor's name.
_MPNET_NAMES = {
    ".attention.self.query.": ".attention.attn.q.",
    ".attention.self.key.": ".attention.attn.k.",
    ".attention.self.value.": ".attention.attn.v.",
    ".attention.output.dense.": ".attention.attn.o.",
    ".attention.output.LayerNorm.": ".attention.LayerNorm.",
}
# Its positions are counted from 2 whatever the configuration says.
_MPNET_SKIPPED = 2
_MPNET = Family(
    "mpnet.",
    names={re.escape(theirs): ours for ours, theirs in _MPNET_NAMES.items()} | {**_ROBERTA.names},
    skipped=lambda config: _MPNET_SKIPPED,
)
RELATIVE_BIAS = "encoder.relative_attention_bias.weight"
# The number of buckets of distance, in the configuration of an MPNet and of no other.
RELATIVE_BUCKETS = "relative_attention_num_buckets"
FAMILIES: dict[str, Family] = {
    "bert": Family("bert."),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
}


def make_bert_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the BERT that an encoder is, from that in its config.json.

    A BERT's own comes back as it is. Sizes that are missing or are no numbers are left to the check
    of the result.
    """
    name = config.get("model_type", "bert")
    family = FAMILIES[name]
    left_out = {*family.keys.values(), *(() if family is _MPNET else [RELATIVE_BUCKETS])}
    result = {key: value for key, value in config.items() if key not in left_out}
    if name == "bert":
        return result
    if family is _MPNET:
        result.setdefault(RELATIVE_BUCKETS, BUCKETS)
    result |= {key: config[theirs] for key, theirs in family.keys.items() if theirs in config}
    positions = result.get("max_position_embeddings")
    if type(positions) is int:
        result["max_position_embeddings"] = positions - family.skipped(config)
    # A second segment, as the first, for models that read a context and a response.
    if result.get("type_vocab_size", 1) == 1:
        result["type_vocab_size"] = 2
    return {**result, "architectures": ["BertModel"], "model_type": "bert", "pad_token_id": 0}


def make_bert_tensors(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Tensors:
    """The tensors of an encoder under BERT's names, without "bert.".

    Args:
        config: of its config.json.
        tensors: as they are in its files.
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
    """Whether a BERT's attention adds a bias by distance: whether it was read from an MPNet.

    Args:
        config: see `make_bert_config`.
    """
    return RELATIVE_BUCKETS in config


def make_mpnet_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the MPNet that was read as a BERT: `make_bert_config` backwards."""
    result = {key: value for key, value in config.items() if key != "type_vocab_size"}
    return {
        **result,
        "architectures": ["MPNetModel"],
        "max_position_embeddings": config["max_position_embeddings"] + _MPNET_SKIPPED,
        "model_type": "mpnet",
        "pad_token_id": 1,
    }


def make_mpnet_tensors(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """The tensors of an MPNet under its own names, from BERT's: `make_bert_tensors` backwards."""
    result: Tensors = {}
    for key, value in tensors.items():
        for ours, theirs in _MPNET_NAMES.items():
            key = key.replace(ours, theirs)
        result[key] = value
    del result[_SEGMENTS]  # zeros
    result[_POSITIONS] = np.pad(result[_POSITIONS], [(_MPNET_SKIPPED, 0), (0, 0)])
    return result
