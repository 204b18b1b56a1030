"""Loads the re-ranker that a user names; TensorFlow is imported only for a checkpoint."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING

from dcse_tf.bert.checkpoints import resolve_checkpoint
from dcse_tf.bert.pair_rule import PairRule, make_rule
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import END_OF_TURN, Vocabulary
from dcse_tf.encoder.onnx import is_onnx
from dcse_tf.encoder.saved_model import is_saved_model
from dcse_tf.errors import InputError, name_missing_tensorflow
from dcse_tf.reading.reranker_files import (
    RERANKER_FILE,
    RerankerSettings,
    is_reranker,
    read_reranker_settings,
)
from dcse_tf.reranker.onnx import OnnxReranker

if TYPE_CHECKING:
    from dcse_tf.reranker.graph import RerankerGraph


@dataclasses.dataclass(frozen=True)
class Parts:
    """What the folder of any re-ranker has.

    Attributes:
        folder: the folder.
        settings: its settings.
        vocabulary: its vocabulary, which contains [EOT].
        rule: how a pair becomes a sequence.
    """

    folder: pathlib.Path
    settings: RerankerSettings
    vocabulary: Vocabulary
    rule: PairRule


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


def read_parts(name: str, option: str) -> Parts:
    """Finds a re-ranker and reads what is beside its weights, see `find_reranker`."""
    folder = find_reranker(name, option)
    settings = read_reranker_settings(folder)
    vocabulary = read_vocabulary(folder)
    if END_OF_TURN not in vocabulary.tokens:
        raise InputError(f"{folder}: the vocabulary lacks {END_OF_TURN}, which ends every turn")
    rule = make_rule(vocabulary, settings.first_tokens, settings.second_tokens)
    return Parts(folder, settings, vocabulary, rule)


def load_reranker(name: str, option: str, compute_dtype: str) -> "RerankerGraph | OnnxReranker":
    """Loads a re-ranker.

    Args:
        name, option: see `find_reranker`.
        compute_dtype: "float32" or "bfloat16"; scores are float32 either way.

    Raises:
        InputError: there is no such re-ranker, it is damaged, or its architecture is unknown.
    """
    parts = read_parts(name, option)
    if is_onnx(parts.folder):
        if compute_dtype != "float32":
            raise InputError(
                f"`{option}`={name}: an export computes as it was exported; leave out "
                "`compute_dtype`, or name the run directory"
            )
        return OnnxReranker(parts.folder, parts.settings, parts.vocabulary, parts.rule)
    with name_missing_tensorflow(f"`{option}`={name}: a checkpoint"):
        from dcse_tf.reranker.checkpoint import build_graph
    return build_graph(parts, compute_dtype)
