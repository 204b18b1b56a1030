"""The architecture "bert": context and response are one sequence of a BERT."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.errors import InputError
from dcse_tf.model.checkpoints import read_config
from dcse_tf.model.fused_bert import FusedCrossEncoder, Hold, head_shapes
from dcse_tf.model.pairs import PairRule, join_pairs, join_segments
from dcse_tf.model.reranker_files import RERANKER_FILE, RerankerSettings
from dcse_tf.model.weights import read_bert_tensors


class CrossEncoder(tf.Module):
    """Scores [CLS] u1 [EOT] ... um [EOT] [SEP] response [SEP].

    Args:
        bert: with its head.
        rule: how a pair becomes a sequence.
        speakers: whether the BERT knows who speaks.
    """

    def __init__(self, bert: FusedCrossEncoder, rule: PairRule, speakers: bool):
        super().__init__()
        self.bert = bert
        self.rule = rule
        self.speakers = speakers

    def count_tokens(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        """Tokens of the sequences of pairs of segments with these numbers of tokens, int `[n]`."""
        most = self.rule.first_tokens - 2, self.rule.second_tokens - 1
        return tf.minimum(first, most[0]) + tf.minimum(second, most[1]) + 3

    def make_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor, speakers: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """What `FusedBert` takes; the arguments are those of `score`."""
        token_ids, segment_ids = join_pairs(first, second, self.rule)
        inputs = {
            "token_ids": token_ids.to_tensor(),
            "segment_ids": segment_ids.to_tensor(),
            "padding_mask": tf.sequence_mask(token_ids.row_lengths()),
        }
        if self.speakers:
            # [CLS], [SEP] and the response have 0, whoever speaks it.
            who = join_segments(speakers, tf.zeros_like(second), self.rule, 0, 0)
            inputs["speaker_ids"] = who.to_tensor()
        return inputs

    def score(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor, speakers: tf.RaggedTensor
    ) -> tf.Tensor:
        """Logits of pairs, float32 `[pairs]`; see `dcse_tf.reranker.graph.PairModel`."""
        return self.bert.score(self.make_inputs(first, second, speakers))


def read_tensors(folder: pathlib.Path, settings: RerankerSettings) -> dict[str, np.ndarray]:
    """The weights that the score depends on, by HuggingFace's names without "bert."."""
    config = read_config(folder)
    further = head_shapes(config["hidden_size"], settings.speakers)
    return read_bert_tensors(folder, config, further)


def read_facts(folder: pathlib.Path) -> dict[str, Any]:
    """What the score depends on besides the weights."""
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
    """The model of a checkpoint folder.

    Raises:
        InputError: its sequences are longer than the BERT has positions.
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
