"""A separate program that runs an export with only TensorFlow and tensorflow-text.

    python -P fresh_process.py EXPORT REQUESTS.json ANSWERS.npz

REQUESTS.json is a list of {"signature", "inputs": {name: {"dtype", "shape", "values"}}}, with the
values as one flat list. ANSWERS.npz has an array "REQUEST/OUTPUT", such as "0/embeddings", for
every output of every request.
"""

import json
import sys

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations


def main(export: str, requests: str, answers: str) -> None:
    signatures = tf.saved_model.load(export).signatures
    arrays = {}
    with open(requests, encoding="utf-8") as file:
        asked = json.load(file)
    for number, request in enumerate(asked):
        inputs = {
            name: tf.reshape(tf.constant(given["values"], given["dtype"]), given["shape"])
            for name, given in request["inputs"].items()
        }
        for name, output in signatures[request["signature"]](**inputs).items():
            arrays[f"{number}/{name}"] = output.numpy()
    own = [name for name in sys.modules if name.startswith(("dcse_tf", "keras_hub"))]
    if own:
        sys.exit(f"expected only TensorFlow, found {', '.join(own)}")
    np.savez(answers, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
