"""The architectures "dual_lstm" and "esim": LSTMs read context and response."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.errors import InputError
from dcse_tf.model.cross_encoder import PairHead, build_head, read_head_tensors
from dcse_tf.model.fused_bert import Hold
from dcse_tf.model.matchers import ESIM, DualLSTM, read_matcher, read_matcher_settings
from dcse_tf.model.pairs import PairRule
from dcse_tf.model.reranker_files import RerankerSettings
from dcse_tf.model.weights import read_tensors as read_weights
from dcse_tf.reranker.graph import SequenceModel


class LstmScorer(tf.Module):
    """A matcher with the head of the matching."""

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
    """The weights that the score depends on."""
    return {**read_weights(folder), **read_head_tensors(folder)}


def read_facts(folder: pathlib.Path) -> dict[str, Any]:
    """What the score depends on besides the weights."""
    return read_matcher_settings(folder)


def build(
    folder: pathlib.Path,
    tensors: Mapping[str, np.ndarray],
    settings: RerankerSettings,
    rule: PairRule,
    compute_dtype: str,
    hold: Hold,
) -> SequenceModel:
    """The model of a folder.

    Raises:
        InputError: a file is damaged; or another type than float32 is asked for.
    """
    if compute_dtype != "float32":
        raise InputError(
            f"`compute_dtype`={compute_dtype}: {settings.architecture} computes in float32"
        )
    scorer = LstmScorer(read_matcher(folder), build_head(tensors))
    return SequenceModel(scorer, rule, speakers=False)
