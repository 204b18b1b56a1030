"""Exports a re-ranker as a SavedModel for serving, and checks its signatures on sample requests."""

import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.bert.blanks import NO_CANDIDATE
from dcse_tf.encoder.batching import BATCH_TOKENS
from dcse_tf.encoder.saved_model import SCORE, SCORE_SPEAKERS
from dcse_tf.exporting.saved_model import (
    CANDIDATES,
    CONTEXTS,
    Request,
    save_and_verify,
)
from dcse_tf.reranker.graph import RerankerGraph
from dcse_tf.reranker.reranker import Reranker

# Largest absolute difference of a score; scaled by the largest score if that is beyond 1.
TOLERANCE = 1e-4


class ServedReranker(tf.Module):
    """The functions that a server calls: from strings to scores.

    In one call, all inputs and outputs have the same number of rows n, which may be 0. A server
    that batches several requests concatenates and splits them along that axis.

    Args:
        graph: the re-ranker, with its weights as variables.

    Attributes:
        functions: name -> function from named tensors to named tensors:
            score: context string `[n, turns]`, the oldest turn first, and candidates string
                `[n, candidates]`, both padded with empty strings, to scores float32
                `[n, candidates]`: logits, and `NO_CANDIDATE` for blank texts. A model with speaker
                embeddings assumes that two speakers alternate and that the last turn and the
                response have different speakers.
            score_speakers: also takes speakers int32 `[n, turns]`: 0 for turns by the speaker of
                the response, 1 for all others. Only for a model with speaker embeddings.
    """

    def __init__(self, graph: RerankerGraph) -> None:
        super().__init__()
        self._graph = graph
        texts = [tf.TensorSpec([None, None], tf.string, name) for name in ("context", "candidates")]
        self.functions: dict[str, Any] = {
            SCORE: tf.function(self._score, input_signature=texts, autograph=False)
        }
        if graph.settings.speakers:
            speakers = tf.TensorSpec([None, None], tf.int32, "speakers")
            self.functions[SCORE_SPEAKERS] = tf.function(
                self._score, input_signature=[*texts, speakers], autograph=False
            )

    def _score(
        self, context: tf.Tensor, candidates: tf.Tensor, speakers: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        checks = [
            tf.debugging.assert_equal(
                tf.shape(context)[0],
                tf.shape(candidates)[0],
                "context and candidates: expected as many rows in both",
            )
        ]
        if speakers is not None:
            checks += [
                tf.debugging.assert_equal(
                    tf.shape(context), tf.shape(speakers), "speakers: expected the context's shape"
                ),
                tf.debugging.assert_equal(
                    speakers, speakers % 2, "speakers: expected numbers of 0 and 1"
                ),
            ]
        with tf.control_dependencies([check for check in checks if check is not None]):
            context = tf.identity(context)
        return {"scores": self._graph.score_texts(context, candidates, speakers, BATCH_TOKENS)}


def make_requests(graph: RerankerGraph) -> list[Request]:
    """Makes requests of 0, 1 and several rows for each signature of `ServedReranker`.

    The answers come from the code that evaluation uses, not from the exported graphs.
    """
    reranker = Reranker(graph)
    inputs = {
        "context": np.array(CONTEXTS, object),
        "candidates": np.array(CANDIDATES, object),
    }
    who = np.arange(inputs["context"].size, dtype=np.int32).reshape(inputs["context"].shape) % 3 % 2
    requests = _make_requests(SCORE, inputs, _answer(reranker, None))
    if graph.settings.speakers:
        inputs = {**inputs, "speakers": who}
        requests += _make_requests(SCORE_SPEAKERS, inputs, _answer(reranker, who))
    return requests


def _make_requests(
    signature: str, inputs: dict[str, np.ndarray], scores: np.ndarray
) -> list[Request]:
    real = scores[scores != NO_CANDIDATE]
    tolerance = TOLERANCE * max(1.0, float(np.abs(real).max()))
    return [
        Request(
            signature,
            {name: array[rows] for name, array in inputs.items()},
            "scores",
            scores[rows],
            tolerance,
        )
        for rows in (slice(0, 0), slice(0, 1), slice(None))
    ]


def _answer(reranker: Reranker, speakers: np.ndarray | None) -> np.ndarray:
    """The scores of the sample requests, float32 `[n, candidates]`."""
    if speakers is None:
        return np.stack(reranker.score(CONTEXTS, CANDIDATES, show_progress=False))
    roles, responders = speakers.astype(str).tolist(), ["0"] * len(CONTEXTS)
    return np.stack(reranker.score(CONTEXTS, CANDIDATES, roles, responders, show_progress=False))


def write_reranker(
    folder: pathlib.Path, graph: RerankerGraph, settings: dict[str, Any], warmup: bool
) -> None:
    """Writes a SavedModel with the signatures of `ServedReranker`, and verifies it.

    Args:
        folder: an existing folder to write to.
        graph: the re-ranker, with its weights as variables.
        settings: written beside the model.
        warmup: whether to include warm-up requests for TensorFlow Serving.

    Raises:
        InputError, OutputError: see `write_saved_model`.
    """
    served = ServedReranker(graph)
    save_and_verify(folder, served, lambda: make_requests(graph), settings, warmup)
