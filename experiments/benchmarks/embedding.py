"""Sentences embedded a second by form, beside sentence-transformers, and with a third of repeats.

    python experiments/benchmarks/embedding.py

Utterances of the test split, each once. FLOPs are those of real tokens: what is spent on padding
lowers a form's share of the matrix rate. About 5 minutes on 2 cores; `--all` adds forms that are
slower: padded to 50, in fixed batches, and compiled ones, which compile a program for every length.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import contextlib
import functools
import pathlib
import sys
from collections.abc import Callable

import dialogues
import measure
import numpy as np
import peer_process
import tensorflow as tf

from dcse_tf.encoder.graph import EncoderGraph, GraphBackend
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.model.bert import FusedBert, build_bert_encoder, load_backbone
from dcse_tf.model.checkpoints import read_config, read_max_sequence_length, resolve_checkpoint
from dcse_tf.model.tokenizer import read_vocabulary
from dcse_tf.model.weights import read_bert_tensors

Embed = Callable[[list[str]], np.ndarray]

BASE = "sentence-transformers, batches of 32"
PEERS = {
    "float32_32": BASE,
    "float32_best": "sentence-transformers, its best batch size",
    "bfloat16": "sentence-transformers, bfloat16",
}
EXACT, FUSED, HALF = "Keras, by tokens", "fused, by tokens", "fused, by tokens, bfloat16"
REPEATS = "fused, by tokens, a third of repeats"


def make_forms(folder: pathlib.Path, every: bool) -> dict[str, Embed]:
    """Name -> function from sentences to embeddings."""
    vocabulary, length = read_vocabulary(folder), read_max_sequence_length(folder)

    def make(bert: Callable[..., tf.Tensor]) -> EncoderGraph:
        return EncoderGraph(bert, vocabulary, length, "mean")

    def by_tokens(graph: EncoderGraph, jit_compile: bool = False) -> Embed:
        encoder = SentenceEncoder(GraphBackend(graph, jit_compile=jit_compile))
        return functools.partial(encoder.encode, show_progress=False)

    config = read_config(folder)
    tensors = read_bert_tensors(folder, config)
    keras_encoder = make(build_bert_encoder(load_backbone(folder)))
    fused = make(FusedBert(tensors, config))
    half = make(FusedBert(tensors, config, "bfloat16"))
    forms: dict[str, Embed] = {
        EXACT: by_tokens(keras_encoder),
        FUSED: by_tokens(fused),
        HALF: by_tokens(half),
        REPEATS: by_tokens(fused),
    }
    if every:
        mixed = make(build_bert_encoder(load_backbone(folder, compute_dtype="bfloat16")))
        forms |= {
            "Keras, padded to 50, batches of 32": _padded(keras_encoder, 32, 50),
            "Keras, sorted by bytes, batches of 64": _sorted_by_bytes(keras_encoder, 64),
            "Keras, by tokens, bfloat16": by_tokens(mixed),
            "fused, by tokens, XLA": by_tokens(fused, True),
            "fused, by tokens, bfloat16, XLA": by_tokens(half, True),
        }
    return forms


def _padded(encoder: EncoderGraph, batch_size: int, tokens: int) -> Embed:
    """In the order of the lines, every batch as wide as the training data's."""
    pool = tf.function(
        encoder.pool_tokens, input_signature=[tf.TensorSpec([None, tokens], tf.int32)]
    )

    def embed(texts: list[str]) -> np.ndarray:
        ids = encoder.tokenizer.tokenize(tf.constant(texts), tokens).to_tensor(shape=[None, tokens])
        starts = range(0, len(texts), batch_size)
        return np.concatenate([pool(ids[start : start + batch_size]).numpy() for start in starts])

    return embed


def _sorted_by_bytes(encoder: EncoderGraph, batch_size: int) -> Embed:
    """A fixed number of sentences, tokenised batch by batch."""
    pool = tf.function(encoder.pool_tokens, input_signature=[tf.TensorSpec([None, None], tf.int32)])

    def embed(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i].encode()))
        rows = np.empty([len(texts), encoder.bert.output.shape[-1]], np.float32)
        for start in range(0, len(texts), batch_size):
            batch = order[start : start + batch_size]
            ids = encoder.tokenize(tf.constant([texts[i] for i in batch])).to_tensor()
            rows[batch] = pool(ids)
        return rows

    return embed


def count_flops(folder: pathlib.Path, texts: list[str]) -> float:
    """Of a sentence in the mean: the matrix products, for real tokens alone."""
    encoder = EncoderGraph(
        lambda inputs, training: inputs,
        read_vocabulary(folder),
        read_max_sequence_length(folder),
        "cls",
    )
    lengths = encoder.tokenize(tf.constant(texts)).row_lengths().numpy().tolist()
    return measure.bert_flops(read_config(folder), lengths) / len(texts)


def mean_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean(np.sum(a * b, 1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)))


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__)
    dialogues.add_arguments(parser)
    peer_process.add_arguments(parser)
    parser.add_argument(
        "--sentences", type=measure.at_least_one, default=1024, help="default: %(default)s"
    )
    parser.add_argument("--all", action="store_true", help="measure the slower forms too")
    return parser.parse_args(arguments)


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    with contextlib.ExitStack() as stack:
        data_dir = stack.enter_context(dialogues.prepared(args.data_dir, args.encoder))
        texts = dialogues.read_sentences(data_dir, args.sentences)
        folder = resolve_checkpoint(args.encoder, "encoder")
        forms, flops = make_forms(folder, args.all), count_flops(folder, texts)
        exact = forms[EXACT](texts)
        cosines = {name: mean_cosine(embed(texts), exact) for name, embed in forms.items()}
        matrix = measure.matrix_case()
        cases = [matrix]
        for name, embed in forms.items():
            # Two thirds of these lines are all sentences once; one third repeats them.
            lines = texts + texts[: len(texts) // 2] if name == REPEATS else texts
            run = measure.timed(lambda embed=embed, lines=lines: embed(lines), sentences=len(lines))
            cases.append(measure.Case(name, run, "sentences", 0 if name == REPEATS else flops))
        base = EXACT
        if not args.no_peers:
            base = BASE
            peer = peer_process.start_encoder(stack, args.peer_env, folder, texts)
            cases += [peer.case(n, variant, "sentences", flops) for variant, n in PEERS.items()]
        rows = measure.summarize(
            cases, measure.run_rounds(cases, args.rounds), base, matrix=matrix.name
        )
    print(measure.format_rows(rows, base))
    for name, cosine in cosines.items():
        if name != REPEATS:
            print(f"mean cosine with {EXACT}: {cosine:.6f}, {name}")
    measure.write_json(args.output, rows, mean_cosines=cosines)


if __name__ == "__main__":
    main()
