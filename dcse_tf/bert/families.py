"""Architectures that compute the same as BERT under other names, and are read as BERTs.

RoBERTa and XLM-R count positions from pad_token_id + 1 and have one segment; DistilBERT has no
segments. Encoders trained from these are written as BERTs, which every library loads. MPNet is a
BERT whose attention adds a bias by distance (Song et al. 2020); BERT's format has no such bias, so
it is written as MPNet. Each head has one bias for each of T5's buckets of distances (Raffel et al.
2020), shared by all layers.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Tensors = dict[str, np.ndarray]

_POSITIONS = "embeddings.position_embeddings.weight"
_SEGMENTS = "embeddings.token_type_embeddings.weight"
_HEAD = "cls.predictions"
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
RELATIVE_BIAS = "encoder.relative_attention_bias.weight"
# The number of distance buckets. Only the configuration of an MPNet has this key.
RELATIVE_BUCKETS = "relative_attention_num_buckets"
# transformers' MPNet uses these two values whatever the configuration says.
BUCKETS, FARTHEST = 32, 128


class Family(NamedTuple):
    """An architecture."""

    prefix: str  # of its tensors' names in a model with a head
    keys: Mapping[str, str] = {}  # BERT's key of the configuration -> its own
    names: Mapping[str, str] = {}  # part of its tensors' names -> what gives BERT's name
    # Maps its configuration to the number of unused rows at the start of the position table.
    skipped: Callable[[Mapping[str, Any]], int] = lambda config: 0


def _count_from_padding(config: Mapping[str, Any]) -> int:
    """Rows before the first position; RoBERTa's padding, 1, if the configuration gives none."""
    padding = config.get("pad_token_id")
    return (padding if type(padding) is int else 1) + 1


_ROBERTA = Family(
    "roberta.",
    names={
        "lm_head.dense.": f"{_HEAD}.transform.dense.",
        "lm_head.layer_norm.": f"{_HEAD}.transform.LayerNorm.",
        "lm_head.bias": f"{_HEAD}.bias",
    },
    skipped=_count_from_padding,
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
        "transformer.layer.": "encoder.layer.",
        ".attention.q_lin.": ".attention.self.query.",
        ".attention.k_lin.": ".attention.self.key.",
        ".attention.v_lin.": ".attention.self.value.",
        ".attention.out_lin.": ".attention.output.dense.",
        ".sa_layer_norm.": ".attention.output.LayerNorm.",
        ".ffn.lin1.": ".intermediate.dense.",
        ".ffn.lin2.": ".output.dense.",
        ".output_layer_norm.": ".output.LayerNorm.",
        "vocab_transform.": f"{_HEAD}.transform.dense.",
        "vocab_layer_norm.": f"{_HEAD}.transform.LayerNorm.",
        "vocab_projector.bias": f"{_HEAD}.bias",
    },
)
_MPNET_LAYER = {
    ".attention.attn.q.": ".attention.self.query.",
    ".attention.attn.k.": ".attention.self.key.",
    ".attention.attn.v.": ".attention.self.value.",
    ".attention.attn.o.": ".attention.output.dense.",
    ".attention.LayerNorm.": ".attention.output.LayerNorm.",
}
_MPNET_SKIPPED = 2  # whatever the configuration says
_MPNET = Family("mpnet.", {}, {**_MPNET_LAYER, **_ROBERTA.names}, lambda _: _MPNET_SKIPPED)
# By HuggingFace's `model_type`.
FAMILIES: dict[str, Family] = {
    "bert": Family("bert."),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
}


def convert_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the content of an encoder's config.json to a BERT's configuration; a BERT's own is
    only left without a number of buckets of distance.
    """
    name = config.get("model_type", "bert")
    family = FAMILIES[name]
    result = {key: value for key, value in config.items() if key not in family.keys.values()}
    if family is _MPNET:
        result.setdefault(RELATIVE_BUCKETS, BUCKETS)
    else:
        result.pop(RELATIVE_BUCKETS, None)
    # Add a second segment, equal to the first, for models that read a context and a response.
    if result.setdefault("type_vocab_size", 2 if name == "bert" else 1) == 1:
        result["type_vocab_size"] = 2
    if name == "bert":
        return result
    result |= {key: config[theirs] for key, theirs in family.keys.items() if theirs in config}
    positions = result.get("max_position_embeddings")
    if type(positions) is int:
        result["max_position_embeddings"] = positions - family.skipped(config)
    return {**result, "architectures": ["BertModel"], "model_type": "bert", "pad_token_id": 0}


def convert_tensors(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Tensors:
    """Converts an encoder's tensors to BERT's under BERT's names without "bert."."""
    family = FAMILIES.get(config.get("model_type", "bert"), FAMILIES["bert"])
    result = _rename(
        {name.removeprefix(family.prefix): value for name, value in tensors.items()},
        {**family.names, **_OLD_NAMES},
    )
    is_bert = family is FAMILIES["bert"]
    if not is_bert and _POSITIONS in result:
        result[_POSITIONS] = result[_POSITIONS][family.skipped(config) :]
        result.setdefault(_SEGMENTS, np.zeros((1, result[_POSITIONS].shape[1]), np.float32))
    if len(result.get(_SEGMENTS, ())) == 1 and (not is_bert or config.get("type_vocab_size") == 1):
        result[_SEGMENTS] = np.repeat(result[_SEGMENTS], 2, axis=0)
    return result


def _rename(tensors: Mapping[str, np.ndarray], names: Mapping[str, str]) -> Tensors:
    result: Tensors = {}
    for name, value in tensors.items():
        for old, new in names.items():
            name = name.replace(old, new)
        result[name] = value
    return result


def is_relative(config: Mapping[str, Any]) -> bool:
    """Whether a BERT is an MPNet, whose attention adds a bias by distance."""
    return RELATIVE_BUCKETS in config


def make_mpnet(config: Mapping[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    """The configuration and the tensors of an MPNet that was read as a BERT, as MPNet's own."""
    own = {"architectures": ["MPNetModel"], "model_type": "mpnet", "pad_token_id": 1}
    own["max_position_embeddings"] = config["max_position_embeddings"] + _MPNET_SKIPPED
    config = {key: value for key, value in config.items() if key != "type_vocab_size"} | own
    tensors = _rename(tensors, {ours: theirs for theirs, ours in _MPNET_LAYER.items()})
    del tensors[_SEGMENTS]  # all zeros: MPNet has no segments
    tensors[_POSITIONS] = np.pad(tensors[_POSITIONS], [(_MPNET_SKIPPED, 0), (0, 0)])
    return config, tensors


def bucket_distances(distances: np.ndarray) -> np.ndarray:
    """T5's buckets of int distances, position of the key minus position of the query.

    Half of the buckets are for preceding tokens and half for following ones. In each half, eight
    buckets hold a single distance, and the others grow logarithmically up to `FARTHEST`: 0, -7, 7,
    -8, 11 and 1,000 give 0, 7, 23, 8, 24 and 31.
    """
    half, exact, far = BUCKETS // 2, BUCKETS // 4, np.abs(distances)
    octaves = np.log2(np.maximum(far, exact) / exact) / np.log2(FARTHEST / exact)
    wide = exact + (octaves * (half - exact)).astype(int)
    return np.where(far < exact, far, np.minimum(wide, half - 1)) + half * (distances > 0)


# The buckets of distances -FARTHEST to FARTHEST; larger distances share the outermost buckets.
BUCKET_OF = bucket_distances(np.arange(-FARTHEST, FARTHEST + 1))
