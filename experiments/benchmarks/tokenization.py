"""Our tokenizer beside HuggingFace's on a corpus: are the tokens the same, and how fast is each?

    python experiments/benchmarks/tokenization.py ENCODER FORMAT FILE

ENCODER and FILE as --vocab and --input of prepare_data take them.
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from transformers import AutoTokenizer

from dcse_tf.data.formats import FORMATS
from dcse_tf.input_files import BadLines, resolve_inputs
from dcse_tf.model.checkpoints import resolve_checkpoint
from dcse_tf.model.tokenizer import Tokenizer, read_vocabulary

LENGTH = 512
SHOWN = 5
ROUNDS = 3


def main() -> None:
    encoder, form, file = sys.argv[1:]
    folder = resolve_checkpoint(encoder, "vocab", weights=False)
    ours, theirs = Tokenizer(read_vocabulary(folder)), AutoTokenizer.from_pretrained(folder)
    sessions = (s for p in resolve_inputs([file]) for s in FORMATS[form].read(p, BadLines(0)))
    texts = [turn.text for _, turns in sessions for turn in turns]

    def tokenize_ours() -> list[list[int]]:
        return ours.tokenize(tf.constant(texts), LENGTH).to_list()

    def tokenize_theirs() -> list[list[int]]:
        settings = {"split_special_tokens": True, "truncation": True, "max_length": LENGTH}
        return theirs(texts, **settings)["input_ids"]

    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    results = {}
    for _ in range(ROUNDS):
        for name, tokenize in (("ours", tokenize_ours), ("theirs", tokenize_theirs)):
            started = time.perf_counter()
            results[name] = tokenize()
            seconds[name].append(time.perf_counter() - started)
    pairs = zip(texts, results["ours"], results["theirs"], strict=True)
    different = [text for text, a, b in pairs if a != b]
    print(f"{len(texts)} texts, {len(different)} tokenised differently")
    for text in different[:SHOWN]:
        print(f"  {text[:100]!a}")
    best = {name: min(values) for name, values in seconds.items()}
    for name, value in best.items():
        print(f"{name}: {len(texts) / value:,.0f} texts a second, best of {ROUNDS}")
    print(f"ratio {best['theirs'] / best['ours']:.1f}")


if __name__ == "__main__":
    main()
