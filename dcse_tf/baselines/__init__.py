"""Baselines: sentence embeddings without training the encoder, and a registry for your own.

To add one, write a `BaselineSpec` and register it here, or from your own code before the command
line is started. Importing this package does not import TensorFlow.
"""

from dcse_tf.baselines.flow import FLOW
from dcse_tf.baselines.registry import BaselineSpec, Fitted, register_baseline
from dcse_tf.baselines.whitening import CENTERING, WHITENING
from dcse_tf.baselines.word_vectors import WORD_VECTORS

for spec in (CENTERING, WHITENING, FLOW, WORD_VECTORS):
    register_baseline(spec)

__all__ = ["BaselineSpec", "Fitted", "register_baseline"]
