"""Loads what scores the sequences of a re-ranker; TensorFlow is imported only for a checkpoint."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from dcse_tf.bert.checkpoints import resolve_checkpoint
from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.vocabulary import END_OF_TURN, Vocabulary
from dcse_tf.encoder.onnx_backend import INPUTS, OnnxFile, is_onnx
from dcse_tf.errors import InputError, name_missing_tensorflow
from dcse_tf.reading.reranker_files import (
    RERANKER_FILE,
    RerankerSettings,
    is_reranker,
    read_reranker_settings,
)

# The inputs and the output of a re-ranker's ONNX model, besides an encoder's inputs.
SEGMENTS, SPEAKERS, OUTPUT = "token_type_ids", "speaker_ids", "scores"


class Scorer(Protocol):
    """Scores the sequences of a `Reranker`.

    Attributes:
        written: the settings that were written with an export.
    """

    @property
    def written(self) -> Mapping[str, Any]: ...

    def score(self, sequences: Mapping[str, np.ndarray]) -> np.ndarray:
        """Logits, float32 `[pairs]`.

        Args:
            sequences: token_ids, segment_ids and speaker_ids int32, and padding_mask bool, each
                `[pairs, tokens]`; speaker_ids is 0 for what the responder says, else 1.
        """

    def fingerprint(self) -> str:
        """A hash of everything the scores depend on."""


@dataclasses.dataclass(frozen=True)
class RerankerFolder:
    """What is in any re-ranker's folder besides its weights.

    Attributes:
        path: the folder.
        settings: the re-ranker's settings.
        vocabulary: its vocabulary, which has [EOT]; without a prefix, see `PairRule`.
    """

    path: pathlib.Path
    settings: RerankerSettings
    vocabulary: Vocabulary


def read_reranker(name: str, option: str) -> RerankerFolder:
    """Finds a re-ranker, an ONNX export or what `resolve_checkpoint` takes, and reads what is
    beside its weights; `option` is the option that gives the name.

    Raises:
        InputError: there is none, it is an encoder or a SavedModel, or a file is damaged.
    """
    folder = pathlib.Path(name)
    if (folder / "saved_model.pb").is_file():
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
    vocabulary = read_vocabulary(folder)
    if END_OF_TURN not in vocabulary.tokens:
        raise InputError(f"{folder}: the vocabulary lacks {END_OF_TURN}, which ends every turn")
    return RerankerFolder(folder, read_reranker_settings(folder), vocabulary.with_prefix(""))


def load_scorer(folder: RerankerFolder, name: str, option: str, compute_dtype: str) -> Scorer:
    """Loads the scorer of a folder; for `name` and `option` see `read_reranker`, for
    `compute_dtype` and errors `Reranker.load`.
    """
    if is_onnx(folder.path):
        if compute_dtype != "float32":
            raise InputError(
                f"`{option}`={name}: an export computes as it was exported; leave out "
                "`compute_dtype`, or name the run directory"
            )
        return OnnxScorer(folder)
    with name_missing_tensorflow(f"`{option}`={name}: a checkpoint"):
        from dcse_tf.reranker.checkpoint_scorer import CheckpointScorer
    return CheckpointScorer(folder, compute_dtype)


class OnnxScorer:
    """Scores by an ONNX export; raises InputError if it is damaged, see `OnnxFile`."""

    def __init__(self, folder: RerankerFolder):
        speakers = [SPEAKERS] if folder.settings.speakers else []
        self._file = OnnxFile(folder.path, (*INPUTS, SEGMENTS, *speakers), OUTPUT, "a re-ranker")
        self._facts = dataclasses.asdict(folder.settings), folder.vocabulary.fingerprint()
        # In the order of the file's inputs.
        self._names = "token_ids", "padding_mask", "segment_ids", *(["speaker_ids"] * len(speakers))

    @property
    def written(self) -> Mapping[str, Any]:
        return {"compute_dtype": None, **self._file.written}

    def score(self, sequences: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._file.run(*(sequences[name] for name in self._names))

    def fingerprint(self) -> str:
        return self._file.fingerprint(*self._facts)
