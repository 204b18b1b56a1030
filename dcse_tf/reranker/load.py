"""Loads the re-ranker that a user names; only this module knows all architectures."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.encoder.fingerprint import hash_arrays
from dcse_tf.encoder.onnx import is_onnx
from dcse_tf.encoder.saved_model import is_saved_model
from dcse_tf.errors import InputError
from dcse_tf.model.checkpoints import resolve_checkpoint
from dcse_tf.model.fused_bert import Hold
from dcse_tf.model.pairs import make_rule
from dcse_tf.model.reranker_files import (
    RERANKER_FILE,
    RerankerSettings,
    is_reranker,
    read_reranker_settings,
)
from dcse_tf.model.tokenizer import read_vocabulary
from dcse_tf.model.vocabulary import END_OF_TURN
from dcse_tf.reranker import cross_encoder, lstm
from dcse_tf.reranker.graph import PairModel, RerankerGraph, SequenceModel
from dcse_tf.reranker.onnx import OnnxScorer


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How a kind of re-ranker is loaded from its folder.

    Attributes:
        read_tensors: (folder, settings) -> all weights that scores depend on.
        read_facts: folder -> the other settings that scores depend on, as JSON values.
        build: (folder, tensors, settings, pair rule, compute dtype, hold) -> the model; `hold`
            makes a weight from an array and a dtype: a constant or a variable.
    """

    read_tensors: Callable[[pathlib.Path, RerankerSettings], dict[str, np.ndarray]]
    read_facts: Callable[[pathlib.Path], Mapping[str, Any]]
    build: Callable[..., PairModel]


ARCHITECTURES = {
    "bert": Architecture(cross_encoder.read_tensors, cross_encoder.read_facts, cross_encoder.build),
    "dual_lstm": Architecture(lstm.read_tensors, lstm.read_facts, lstm.build),
    "esim": Architecture(lstm.read_tensors, lstm.read_facts, lstm.build),
}


def find_reranker(name: str, option: str) -> pathlib.Path:
    """The folder of a re-ranker.

    Args:
        name: an ONNX export, a run directory or anything else that `resolve_checkpoint` takes.
        option: the option that gives the name, for messages.

    Raises:
        InputError: there is no such folder, or it is a sentence encoder or a SavedModel.
    """
    folder = pathlib.Path(name)
    if is_saved_model(folder):
        raise InputError(
            f"`{option}`={name}: is a SavedModel, for servers; expected a re-ranker's run "
            "directory, its checkpoint folder or its export to ONNX"
        )
    if not is_onnx(folder):
        folder = resolve_checkpoint(name, option)
    if not is_reranker(folder):
        raise InputError(
            f"`{option}`={name}: is a sentence encoder, not a re-ranker: it has no {RERANKER_FILE}"
        )
    return folder


def load_graph(
    name: str, option: str, compute_dtype: str = "float32", variables: bool = False
) -> RerankerGraph:
    """Loads a re-ranker.

    Args:
        name, option: see `find_reranker`.
        compute_dtype: "float32" or "bfloat16"; scores are float32 either way.
        variables: whether weights are variables, which a SavedModel stores outside its graph,
            instead of constants.

    Raises:
        InputError: there is no such re-ranker, it is damaged, or its architecture is unknown.
    """
    folder = find_reranker(name, option)
    settings = read_reranker_settings(folder)
    vocabulary = read_vocabulary(folder)
    if END_OF_TURN not in vocabulary.tokens:
        raise InputError(f"{folder}: the vocabulary lacks {END_OF_TURN}, which ends every turn")
    rule = make_rule(vocabulary, settings.first_tokens, settings.second_tokens)
    if is_onnx(folder):
        if compute_dtype != "float32":
            raise InputError(
                f"`{option}`={name}: an export computes as it was exported; leave out "
                "`compute_dtype`, or name the run directory"
            )
        scorer = OnnxScorer(folder, settings.speakers)
        sequences = SequenceModel(scorer, rule, settings.speakers)
        return RerankerGraph(sequences, settings, vocabulary, folder, scorer.file)
    architecture = find_architecture(folder, settings)
    tensors = architecture.read_tensors(folder, settings)
    hold: Hold = _hold_variable if variables else tf.constant
    model = architecture.build(folder, tensors, settings, rule, compute_dtype, hold)
    return RerankerGraph(model, settings, vocabulary, folder)


def find_architecture(folder: pathlib.Path, settings: RerankerSettings) -> Architecture:
    """The architecture that the settings name; raises InputError if it is unknown."""
    if settings.architecture not in ARCHITECTURES:
        raise InputError(
            f"{folder / RERANKER_FILE}: architecture {settings.architecture!r:.40}, expected "
            f"{' or '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[settings.architecture]


def fingerprint(graph: RerankerGraph) -> str:
    """SHA-256 over everything that scores depend on: the values, not the files. A float32 export
    has the fingerprint of the re-ranker that was exported.
    """
    if graph.export:
        facts = dataclasses.asdict(graph.settings)
        return graph.export.fingerprint(facts, graph.vocabulary.fingerprint())
    architecture = find_architecture(graph.source, graph.settings)
    settings = {
        **dataclasses.asdict(graph.settings),
        **architecture.read_facts(graph.source),
        "vocabulary": graph.vocabulary.fingerprint(),
    }
    return hash_arrays(architecture.read_tensors(graph.source, graph.settings), settings)


def _hold_variable(value: np.ndarray, dtype: tf.DType) -> tf.Variable:
    return tf.Variable(value, trainable=False, dtype=dtype)
