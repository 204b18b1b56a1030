"""The backend for models that are plain functions of texts, such as averaged word vectors."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.encoder.batching import count_by_bytes
from dcse_tf.encoder.fingerprint import hash_arrays


class FunctionBackend:
    """Runs a function from texts to embeddings; lengths in tokens are estimated from bytes.

    Args:
        encode: maps n texts to float32 `[n, k]`.
        facts, tensors: what the function was made from, for the fingerprint.
        batch_tokens: most tokens in a batch; four bytes count as one token.
    """

    match = None  # there are no token embeddings

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

    def read(self, sentences: list[str]) -> tuple[tf.Tensor, np.ndarray, np.ndarray]:
        """The strings, and estimates of their numbers of tokens; none is truncated."""
        return tf.constant(sentences), count_by_bytes(sentences), np.zeros(len(sentences), bool)

    def embed(self, sentences: tf.Tensor, tokens: int) -> tf.Tensor:
        """Embeds strings `[n]` to float32 `[n, k]`."""
        return tf.constant(self._encode([text.decode() for text in sentences.numpy()]))

    def fingerprint(self) -> str:
        """SHA-256 over what the function was made from."""
        return hash_arrays(self._tensors, self._facts)
