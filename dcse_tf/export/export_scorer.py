"""Contexts and candidate responses to an export's own similarity."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf


class ExportScorer:
    """Scores candidates by the signature match.

    Args:
        match: the signature, see `ServedEncoder`.
        rows: samples matched at a time.
    """

    def __init__(self, match: Callable[..., dict[str, tf.Tensor]], rows: int = 16):
        self._match = match
        self._rows = rows

    def score(self, contexts: list[list[str]], candidates: list[list[str]]) -> np.ndarray:
        """The similarity of each sample's candidates; see `ResponseScorer.score`."""
        parts = []
        for start in range(0, len(contexts), self._rows):
            # To the signature the empty string is no turn; a space has no token either, and is one.
            texts = [
                [turn or " " for turn in turns] for turns in contexts[start : start + self._rows]
            ]
            turns = tf.ragged.constant(texts, tf.string)
            rows = tf.constant(candidates[start : start + self._rows])
            found = self._match(context=turns.to_tensor(), candidates=rows)
            parts.append(found["similarities"].numpy())
        return np.concatenate(parts)
