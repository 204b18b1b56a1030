"""Builds the graph of a re-ranker's checkpoint; only this module knows all architectures."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.bert.fused_bert import Hold
from dcse_tf.encoder.fingerprint import hash_arrays
from dcse_tf.errors import InputError
from dcse_tf.reading.reranker_files import RERANKER_FILE, RerankerSettings
from dcse_tf.reranker import cross_encoder, lstm
from dcse_tf.reranker.graph import PairModel, RerankerGraph
from dcse_tf.reranker.load import Parts, read_parts


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


def load_graph(
    name: str, option: str, compute_dtype: str = "float32", variables: bool = False
) -> RerankerGraph:
    """Loads a re-ranker's run directory or checkpoint, see `find_reranker`.

    Args:
        name, option: see `find_reranker`.
        compute_dtype: "float32" or "bfloat16"; scores are float32 either way.
        variables: whether weights are variables, which a SavedModel stores outside its graph,
            instead of constants.

    Raises:
        InputError: there is no such re-ranker, it is damaged, or its architecture is unknown.
    """
    return build_graph(read_parts(name, option), compute_dtype, variables)


def build_graph(parts: Parts, compute_dtype: str, variables: bool = False) -> RerankerGraph:
    """See `load_graph`."""
    folder, settings = parts.folder, parts.settings
    architecture = find_architecture(folder, settings)
    tensors = architecture.read_tensors(folder, settings)
    hold: Hold = _hold_variable if variables else tf.constant
    model = architecture.build(folder, tensors, settings, parts.rule, compute_dtype, hold)
    return RerankerGraph(model, settings, parts.vocabulary, folder)


def find_architecture(folder: pathlib.Path, settings: RerankerSettings) -> Architecture:
    """The architecture that the settings name; raises InputError if it is unknown."""
    if settings.architecture not in ARCHITECTURES:
        raise InputError(
            f"{folder / RERANKER_FILE}: architecture {settings.architecture!r:.40}, expected "
            f"{' or '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[settings.architecture]


def fingerprint(graph: RerankerGraph) -> str:
    """SHA-256 over everything that scores depend on: the values, not the files."""
    architecture = find_architecture(graph.source, graph.settings)
    settings = {
        **dataclasses.asdict(graph.settings),
        **architecture.read_facts(graph.source),
        "vocabulary": graph.vocabulary.fingerprint(),
    }
    return hash_arrays(architecture.read_tensors(graph.source, graph.settings), settings)


def _hold_variable(value: np.ndarray, dtype: tf.DType) -> tf.Variable:
    return tf.Variable(value, trainable=False, dtype=dtype)
