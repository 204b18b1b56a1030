"""The architecture "bert": a BERT reads context and response as one sequence."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dcse_tf.bert.checkpoints import read_config
from dcse_tf.bert.fused_bert import FusedCrossEncoder, Hold, head_shapes
from dcse_tf.bert.pair_rule import PairRule
from dcse_tf.bert.weights import read_bert_tensors
from dcse_tf.errors import InputError
from dcse_tf.reading.reranker_files import RERANKER_FILE, RerankerSettings
from dcse_tf.reranker.graph import SequenceModel


class CrossEncoder(SequenceModel):
    """A BERT with a head on [CLS]."""


def read_tensors(folder: pathlib.Path, settings: RerankerSettings) -> dict[str, np.ndarray]:
    """The weights that scores depend on, by HuggingFace's names without the prefix "bert."."""
    config = read_config(folder)
    further = head_shapes(config["hidden_size"], settings.speakers)
    return read_bert_tensors(folder, config, further)


def read_facts(folder: pathlib.Path) -> dict[str, Any]:
    """The settings, besides the weights, that scores depend on."""
    config = read_config(folder)
    return {name: config[name] for name in ("num_attention_heads", "layer_norm_eps")}


def build(
    folder: pathlib.Path,
    tensors: Mapping[str, np.ndarray],
    settings: RerankerSettings,
    rule: PairRule,
    compute_dtype: str,
    hold: Hold,
) -> CrossEncoder:
    """Builds the model of a checkpoint folder; for the arguments, see `Architecture`.

    Raises:
        InputError: a sequence can have more tokens than the BERT has positions.
    """
    config = read_config(folder)
    longest, positions = rule.first_tokens + rule.second_tokens, config["max_position_embeddings"]
    if longest > positions:
        raise InputError(
            f"{folder / RERANKER_FILE}: first_tokens and second_tokens are {longest} together, but "
            f"the BERT has {positions} positions"
        )
    bert = FusedCrossEncoder(tensors, config, compute_dtype, hold)
    return CrossEncoder(bert, rule, settings.speakers)
