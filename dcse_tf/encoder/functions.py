"""Baselines that turn texts into embeddings by themselves, such as averaged word vectors."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dcse_tf.encoder.batching import count_by_bytes
from dcse_tf.encoder.fingerprint import hash_arrays


class FunctionBackend:
    """Runs a function from texts to embeddings; bytes stand for tokens.

    Args:
        encode: texts to float32 `[n, k]`.
        facts, tensors: what the function was made from.
        batch_tokens: most tokens of a batch, four bytes taken as one.
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

    def read(self, sentences: list[str]) -> tuple[tf.Tensor, np.ndarray]:
        """The strings, and how many tokens they are taken for."""
        return tf.constant(sentences), count_by_bytes(sentences)

    def embed(self, sentences: tf.Tensor, tokens: int) -> tf.Tensor:
        """Embeds strings `[n]`; float32 `[n, k]`."""
        return tf.constant(self._encode([text.decode() for text in sentences.numpy()]))

    def fingerprint(self) -> str:
        """SHA-256 over what the function was made from."""
        return hash_arrays(self._tensors, self._facts)
