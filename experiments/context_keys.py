"""What contexts add to stored turns: MAP of labelled turns with keys u + w (before + after).

    python experiments/context_keys.py --model=run --dialogues=dev.jsonl intents.txt acts.txt

A set's sentences are found in the dialogues. "both": queries have contexts too, as in clustering;
"index": stored turns alone, as in a search.
"""

import argparse
import json
import pathlib

import numpy as np

import dcse_tf
from dcse_tf.encoder.backend import normalize
from dcse_tf.evaluation import metrics
from dcse_tf.evaluation.retrieval import read_retrieval_set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dialogues", required=True, type=pathlib.Path)
    parser.add_argument("sets", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    where: dict[str, tuple[str, ...]] = {}
    for line in options.dialogues.open(encoding="utf-8"):
        turns = ["", *(turn["text"] for turn in json.loads(line)["turns"]), ""]
        for place in range(1, len(turns) - 1):
            where.setdefault(turns[place], tuple(turns[place - 1 : place + 2]))
    encoder = dcse_tf.SentenceEncoder.load(options.model, max_sequence_length=128)
    for path in options.sets:
        found = read_retrieval_set(path)
        texts = [where.get(text, ("", text, "")) for text in found.sentences]
        before, own, after = (normalize(encoder.encode(each)) for each in zip(*texts))
        real = np.array([[bool(first), bool(last)] for first, _, last in texts])[..., None]
        for share in (0.0, 0.25, 0.5, 1.0):
            keys = normalize(own + share * (before * real[:, 0] + after * real[:, 1]))
            scores = {"both": [], "index": []}
            for query in found.queries:
                candidates = np.concatenate([query.positives, query.negatives])
                for name, side in (("both", keys), ("index", own)):
                    row = keys[candidates] @ side[query.sentence]
                    scores[name].append((row, len(query.positives)))
            told = {
                name: float(metrics.rate("map", rows)[0].mean()) for name, rows in scores.items()
            }
            print(path.name, share, {name: round(value, 1) for name, value in told.items()})


if __name__ == "__main__":
    main()
