"""The names in a SavedModel export, and the backend that runs one."""

import pathlib
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations

from dcse_tf.encoder.backend import FunctionBackend
from dcse_tf.encoder.onnx_backend import OF_EXPORT, SETTINGS_FILE
from dcse_tf.errors import InputError
from dcse_tf.files import hash_bytes, hash_file
from dcse_tf.input_files import read_json_object
from dcse_tf.progress import Progress

# Signatures of an encoder, see `dcse_tf.exporting.saved_model.ServedEncoder`.
EMBED, MATCH = "serving_default", "match"
# Signatures of a re-ranker, see `dcse_tf.exporting.saved_model.ServedReranker`.
SCORE, SCORE_SPEAKERS = "score", "score_speakers"
_ROWS = 16  # contexts matched at a time


def load_saved_model(folder: pathlib.Path, batch_tokens: int) -> FunctionBackend:
    """Loads an export that tokenizes by itself; one of a fitted baseline matches no responses.

    Raises:
        InputError: it is not the export of a sentence encoder.
    """
    signatures = tf.saved_model.load(str(folder)).signatures
    if EMBED not in signatures:
        kind = "of a re-ranker" if SCORE in signatures else "of something else"
        raise InputError(f"{folder}: is an export {kind}, which embeds no sentences")
    path = folder / SETTINGS_FILE
    written: dict[str, Any] = read_json_object(path) if path.is_file() else {}
    known = {name: written.get(name) for name in ("max_sequence_length", "pooling")}
    known |= {name: value for name in ("prefix", *OF_EXPORT) if (value := written.get(name))}

    def encode(texts: list[str]) -> np.ndarray:
        return signatures[EMBED](sentences=tf.constant(texts))["embeddings"].numpy()

    def match(contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
        scores, progress = [], Progress("contexts", len(contexts))
        for start in range(0, len(contexts), _ROWS):
            rows = slice(start, start + _ROWS)
            found = signatures[MATCH](
                context=tf.ragged.constant(contexts[rows], tf.string).to_tensor(),
                candidates=tf.constant(candidates[rows]),
            )
            scores.append(found["similarities"].numpy())
            progress.update(min(start + _ROWS, len(contexts)))
        return np.concatenate(scores)

    def fingerprint() -> str:
        # What the export records; else a hash of the files that decide what it computes.
        if isinstance(recorded := written.get("fingerprint"), str):
            return recorded
        patterns = ("*.pb", "variables/*", "assets/*")
        paths = sorted({path for pattern in patterns for path in folder.glob(pattern)})
        lines = (f"{path.relative_to(folder)} {hash_file(path)}\n" for path in paths)
        return hash_bytes("".join(lines).encode())

    matches = match if MATCH in signatures else None
    return FunctionBackend(encode, fingerprint, batch_tokens, known, matches)
