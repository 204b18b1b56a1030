"""The architectures "dual_lstm" and "esim": LSTMs read context and response."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.bert.fused_bert import Hold
from dcse_tf.bert.pair_rule import PairRule
from dcse_tf.bert.weights import read_tensors as read_weights
from dcse_tf.errors import InputError
from dcse_tf.reading.cross_encoder import PairHead, build_head, read_head_tensors
from dcse_tf.reading.matchers import ESIM, DualLSTM, read_matcher, read_matcher_settings
from dcse_tf.reading.reranker_files import RerankerSettings
from dcse_tf.reranker.graph import SequenceModel


class LstmScorer(tf.Module):
    """A matcher with its scoring head."""

    def __init__(self, matcher: DualLSTM | ESIM, head: PairHead):
        super().__init__()
        self.matcher = matcher
        self.head = head

    def score(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """See `SequenceScorer`."""
        names = ("token_ids", "segment_ids", "padding_mask")
        read = self.matcher(*(inputs[name] for name in names), training=False)
        return self.head(read["pair"])


def read_tensors(folder: pathlib.Path, settings: RerankerSettings) -> dict[str, np.ndarray]:
    """The weights that scores depend on."""
    return {**read_weights(folder), **read_head_tensors(folder)}


def read_facts(folder: pathlib.Path) -> dict[str, Any]:
    """The settings, besides the weights, that scores depend on."""
    return read_matcher_settings(folder)


def build(
    folder: pathlib.Path,
    tensors: Mapping[str, np.ndarray],
    settings: RerankerSettings,
    rule: PairRule,
    compute_dtype: str,
    hold: Hold,
) -> SequenceModel:
    """Builds the model of a folder; for the arguments, see `Architecture`.

    Raises:
        InputError: a file is damaged, or `compute_dtype` is not float32.
    """
    if compute_dtype != "float32":
        raise InputError(
            f"`compute_dtype`={compute_dtype}: {settings.architecture} computes in float32"
        )
    scorer = LstmScorer(read_matcher(folder), build_head(tensors))
    return SequenceModel(scorer, rule, speakers=False)
