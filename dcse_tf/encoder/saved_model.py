"""The names in a SavedModel export, and the backend that runs one."""

import functools
import pathlib
from typing import Any

import numpy as np

from dcse_tf.encoder.batching import Match, count_by_bytes
from dcse_tf.errors import InputError
from dcse_tf.files import hash_bytes, hash_file
from dcse_tf.input_files import read_json_object
from dcse_tf.matching.head_files import NO_HEADS
from dcse_tf.progress import Progress

# Signatures of an encoder, see `dcse_tf.exporting.saved_model.ServedEncoder`.
EMBED, EMBED_TOKENS, MATCH = "serving_default", "tokens", "match"
# Signatures of a re-ranker, see `dcse_tf.exporting.reranker_saved_model.ServedReranker`.
SCORE, SCORE_SPEAKERS = "score", "score_speakers"
# The settings of the export, and its fingerprint.
SETTINGS_FILE = "dcse_tf.json"

_ROWS = 16  # contexts matched at a time
# Settings that an encoder's export names where they are not the default.
OF_EXPORT = ("unit_norm", "projection", "truncate_dim")
_COMPUTING_FILES = ("*.pb", "variables/*", "assets/*")


def is_saved_model(folder: pathlib.Path) -> bool:
    return (folder / "saved_model.pb").is_file()


def export_fingerprint(of_encoder: str, unit_norm: bool) -> str:
    """An export's fingerprint: the encoder's, or another one if embeddings are normalised."""
    if not unit_norm:
        return of_encoder
    return hash_bytes(f"{of_encoder} unit_norm".encode())


class SavedModelBackend:
    """Runs an export. It tokenizes internally, so lengths are estimated from bytes, and it does not
    say which texts it truncates.

    Args:
        folder: the export's folder.
        batch_tokens: most tokens in a batch; four bytes count as one token.
    """

    heads = NO_HEADS

    def __init__(self, folder: pathlib.Path, batch_tokens: int):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers the tokenizer's operations

        self.batch_tokens = batch_tokens
        self._folder = folder
        self._signatures = tf.saved_model.load(str(folder)).signatures
        if EMBED not in self._signatures:
            kind = "of a re-ranker" if SCORE in self._signatures else "of something else"
            raise InputError(f"{folder}: is an export {kind}, which embeds no sentences")

    @functools.cached_property
    def _written(self) -> dict[str, Any]:
        path = self._folder / SETTINGS_FILE
        return read_json_object(path) if path.is_file() else {}

    @property
    def settings(self) -> dict[str, Any]:
        """See `Backend`; None for a setting that the export does not record."""
        known = {name: self._written.get(name) for name in ("max_sequence_length", "pooling")}
        names = ("matching", "prefix", *OF_EXPORT)
        further = {name: value for name in names if (value := self._written.get(name))}
        return {**known, **further}

    def read(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The strings, and estimates of their numbers of tokens, including [CLS] and [SEP]. Which
        are truncated is not known.
        """
        texts = np.array(sentences, object)
        return texts, count_by_bytes(sentences), np.zeros(len(sentences), bool)

    def embed(self, sentences: np.ndarray, tokens: int) -> np.ndarray:
        """Embeds strings `[n]` to float `[n, dim]`."""
        import tensorflow as tf

        texts = tf.constant(sentences.tolist())
        return self._signatures[EMBED](sentences=texts)["embeddings"].numpy()

    def fingerprint(self) -> str:
        """The fingerprint that the export records, or a hash of its files if it records none."""
        written = self._written.get("fingerprint")
        if isinstance(written, str):
            return written
        paths = {path for pattern in _COMPUTING_FILES for path in self._folder.glob(pattern)}
        lines = (f"{path.relative_to(self._folder)} {hash_file(path)}\n" for path in sorted(paths))
        return hash_bytes("".join(lines).encode())

    @property
    def match(self) -> Match | None:
        """Uses the signature "match"; an export of a fitted baseline has none."""
        return self._score if MATCH in self._signatures else None

    def _score(self, contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
        import tensorflow as tf

        scores = []
        progress = Progress("contexts", len(contexts))
        for start in range(0, len(contexts), _ROWS):
            rows = slice(start, start + _ROWS)
            found = self._signatures[MATCH](
                context=tf.ragged.constant(contexts[rows], tf.string).to_tensor(),
                candidates=tf.constant(candidates[rows]),
            )
            scores.append(found["similarities"].numpy())
            progress.update(min(start + _ROWS, len(contexts)))
        return np.concatenate(scores)
