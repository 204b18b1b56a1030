"""A separate program that runs an export with only TensorFlow and tensorflow-text.

    python -P fresh_process.py EXPORT REQUESTS.npz ANSWERS.npz

REQUESTS.npz has an array of texts "REQUEST/SIGNATURE/INPUT", such as "0/match/context", for every
input of every request; ANSWERS.npz an array "REQUEST/OUTPUT" for every output.
"""

import sys

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations


def main(export: str, requests: str, answers: str) -> None:
    signatures = tf.saved_model.load(export).signatures
    asked: dict = {}
    with np.load(requests) as given:
        for key, texts in given.items():
            request, name = key.rsplit("/", 1)
            asked.setdefault(request, {})[name] = tf.constant(texts.astype(object), tf.string)
    arrays = {}
    for request, inputs in asked.items():
        number, signature = request.split("/")
        for name, output in signatures[signature](**inputs).items():
            arrays[f"{number}/{name}"] = output.numpy()
    own = [name for name in sys.modules if name.startswith(("dcse_tf", "keras_hub"))]
    if own:
        sys.exit(f"expected only TensorFlow, found {', '.join(own)}")
    np.savez(answers, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
