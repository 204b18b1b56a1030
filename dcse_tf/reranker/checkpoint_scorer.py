"""Scores the sequences of a re-ranker by a checkpoint's weights, or by weights being trained."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.bert.checkpoints import read_config
from dcse_tf.bert.fused_bert import FusedCrossEncoder, Hold, head_shapes
from dcse_tf.bert.weights import read_bert_tensors, read_tensors
from dcse_tf.encoder.backend import hash_arrays
from dcse_tf.errors import InputError
from dcse_tf.reading.cross_encoder import ReaderScorer, build_head, read_with_matcher
from dcse_tf.reading.matchers import read_matcher, read_matcher_settings
from dcse_tf.reading.reranker_files import RERANKER_FILE
from dcse_tf.reranker.scorers import RerankerFolder

BERT, LSTMS = "bert", ("dual_lstm", "esim")


class GraphScorer:
    """Scores by a function in TensorFlow's graph from the inputs of `Scorer.score` to logits, such
    as that of a model in training: its weights may change between calls.
    """

    written: Mapping[str, Any] = {}

    def __init__(self, score: Callable[[dict[str, tf.Tensor]], tf.Tensor]):
        ids = tf.TensorSpec([None, None], tf.int32)
        signature = dict.fromkeys(("token_ids", "segment_ids", "speaker_ids"), ids)
        signature |= {"padding_mask": tf.TensorSpec([None, None], tf.bool)}
        self._score = tf.function(score, input_signature=[signature], autograph=False)

    def score(self, sequences: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._score({name: tf.constant(x) for name, x in sequences.items()}).numpy()

    def fingerprint(self) -> str:
        raise ValueError("only a re-ranker that was read from a checkpoint has a fingerprint")


class CheckpointScorer(GraphScorer):
    """Scores by a checkpoint's weights; for arguments and errors, see `build_model`."""

    def __init__(self, folder: RerankerFolder, compute_dtype: str = "float32"):
        super().__init__(build_model(folder, compute_dtype).score)
        self._folder = folder

    def fingerprint(self) -> str:
        return fingerprint(self._folder)


def build_model(
    folder: RerankerFolder, compute_dtype: str = "float32", hold: Hold = tf.constant
) -> FusedCrossEncoder | ReaderScorer:
    """Builds the model of a checkpoint, with a function `score` from sequences to logits.

    Args:
        folder: the re-ranker.
        compute_dtype: "float32" or "bfloat16"; scores are float32 either way.
        hold: makes a BERT's weight from an array and a dtype: a constant, or a variable, which a
            SavedModel stores outside its graph.

    Raises:
        InputError: a file is damaged, the architecture is unknown or does not support
            `compute_dtype`, or a sequence can have more tokens than the BERT has positions.
    """
    tensors, settings = read_weights(folder), folder.settings
    if settings.architecture == BERT:
        config = read_config(folder.path)
        longest = settings.first_tokens + settings.second_tokens
        if longest > (positions := config["max_position_embeddings"]):
            raise InputError(
                f"{folder.path / RERANKER_FILE}: first_tokens and second_tokens are {longest} "
                f"together, but the BERT has {positions} positions"
            )
        return FusedCrossEncoder(tensors, config, compute_dtype, hold)
    if compute_dtype != "float32":
        raise InputError(
            f"`compute_dtype`={compute_dtype}: {settings.architecture} computes in float32"
        )
    return ReaderScorer(read_with_matcher(read_matcher(folder.path)), build_head(tensors))


def read_weights(folder: RerankerFolder) -> dict[str, np.ndarray]:
    """The weights that scores depend on; a BERT's by HuggingFace's names without "bert.".

    Raises:
        InputError: a file is damaged, or the architecture is unknown.
    """
    architecture = folder.settings.architecture
    if architecture == BERT:
        config = read_config(folder.path)
        heads = head_shapes(config["hidden_size"], folder.settings.speakers)
        return read_bert_tensors(folder.path, config, heads)
    if architecture in LSTMS:
        return read_tensors(folder.path)
    raise InputError(
        f"{folder.path / RERANKER_FILE}: architecture {architecture!r:.40}, expected "
        f"{' or '.join((BERT, *LSTMS))}"
    )


def fingerprint(folder: RerankerFolder) -> str:
    """SHA-256 over everything that scores depend on: the values, not the files."""
    if folder.settings.architecture == BERT:
        config = read_config(folder.path)
        facts = {name: config[name] for name in ("num_attention_heads", "layer_norm_eps")}
    else:
        facts = read_matcher_settings(folder.path)
    settings = {
        **dataclasses.asdict(folder.settings),
        **facts,
        "vocabulary": folder.vocabulary.fingerprint(),
    }
    return hash_arrays(read_weights(folder), settings)
