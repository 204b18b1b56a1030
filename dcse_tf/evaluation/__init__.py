"""Evaluation in NumPy. Of a model it knows a function from sentences to embeddings."""

from collections.abc import Callable

import numpy as np

# list[str] to float [n, dim].
Encode = Callable[[list[str]], np.ndarray]
