"""The backend for models that are plain functions of texts, such as averaged word vectors."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dcse_tf.encoder.batching import count_by_bytes
from dcse_tf.encoder.fingerprint import hash_arrays
from dcse_tf.matching.head_files import NO_HEADS


class FunctionBackend:
    """Runs a function from texts to embeddings; lengths in tokens are estimated from bytes.

    Args:
        encode: maps n texts to float32 `[n, k]`.
        facts, tensors: what the function was made from, for the fingerprint.
        batch_tokens: most tokens in a batch; four bytes count as one token.
    """

    match = None  # there are no token embeddings
    heads = NO_HEADS

    def __init__(
        self,
        encode: Callable[[list[str]], np.ndarray],
        facts: Mapping[str, Any],
        tensors: Mapping[str, np.ndarray],
        batch_tokens: int,
    ):
        self.batch_tokens = batch_tokens
        self.settings: dict[str, Any] = {"max_sequence_length": None}
        self._encode = encode
        self._facts = facts
        self._tensors = tensors

    def read(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The strings, and estimates of their numbers of tokens; none is truncated."""
        texts = np.array(sentences, object)
        return texts, count_by_bytes(sentences), np.zeros(len(sentences), bool)

    def embed(self, sentences: np.ndarray, tokens: int) -> np.ndarray:
        """Embeds strings `[n]` to float32 `[n, k]`."""
        return self._encode(sentences.tolist())

    def fingerprint(self) -> str:
        """SHA-256 over what the function was made from."""
        return hash_arrays(self._tensors, self._facts)
