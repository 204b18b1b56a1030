"""A separate program that runs an export with only TensorFlow and tensorflow-text.

    python -P fresh_process.py EXPORT TEXTS.npz ANSWERS.npy

TEXTS.npz has an array of texts for each input of the export's one signature.
"""

import sys

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations


def answer(export: str, texts: dict) -> np.ndarray:
    """The answers to none, one (the third) and all rows of the texts, one after the other."""
    (serve,) = tf.saved_model.load(export).signatures.values()
    found = []
    for rows in (slice(0, 0), slice(2, 3), slice(None)):
        parts = {name: each[rows].astype(object) for name, each in texts.items()}
        (output,) = serve(**{n: tf.constant(part, tf.string) for n, part in parts.items()}).values()
        found.append(output.numpy())
    return np.concatenate(found)


if __name__ == "__main__":
    with np.load(sys.argv[2]) as given:
        np.save(sys.argv[3], answer(sys.argv[1], dict(given)))
    if own := [name for name in sys.modules if name.startswith(("dcse_tf", "keras_hub"))]:
        sys.exit(f"expected only TensorFlow, found {', '.join(own)}")
