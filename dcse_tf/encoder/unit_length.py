"""Embeddings of length 1. No TensorFlow here."""

import numpy as np


def normalize(embeddings: np.ndarray) -> np.ndarray:
    """Scales rows `[..., dim]` to length 1, as float64; a zero row stays zero."""
    embeddings = np.asarray(embeddings, np.float64)
    norms = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings / np.where(norms == 0.0, 1.0, norms)
