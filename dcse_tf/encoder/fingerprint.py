"""Hashes arrays and settings, for fingerprints."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def hash_arrays(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> str:
    """SHA-256 over named arrays with their types and shapes, and over JSON settings."""
    digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
