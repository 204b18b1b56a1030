"""Nearest neighbours by an exported encoder: all that serving needs is TensorFlow and its text ops.

python experiments/neighbours.py EXPORT_FOLDER SESSIONS.jsonl SENTENCE...
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations

MOST_SENTENCES = 2000
SHOWN = 3


def main() -> None:
    export, sessions, *queries = sys.argv[1:]
    serve = tf.saved_model.load(export).signatures["serving_default"]

    def embed(sentences: list[str]) -> np.ndarray:
        batches = [sentences[i : i + 64] for i in range(0, len(sentences), 64)]
        vectors = [serve(sentences=tf.constant(batch))["embeddings"].numpy() for batch in batches]
        stacked = np.concatenate(vectors)
        return stacked / np.linalg.norm(stacked, axis=1, keepdims=True)

    lines = pathlib.Path(sessions).read_text(encoding="utf-8").splitlines()
    texts = {turn["text"] for line in lines for turn in json.loads(line)["turns"]}
    # Short ones by length, so that a batch has little padding.
    corpus = sorted(texts, key=lambda text: (len(text), text))
    corpus = [text for text in corpus if len(text.split()) > 3][:MOST_SENTENCES]
    similarity = embed(queries) @ embed(corpus).T
    for query, row in zip(queries, similarity, strict=True):
        print(f"\n{query}")
        for place in np.argsort(-row, kind="stable")[:SHOWN]:
            print(f"  {row[place]:.3f}  {corpus[place]}")


if __name__ == "__main__":
    main()
