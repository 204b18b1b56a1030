"""Measures how long a re-ranker takes for 10 and 100 candidates, beside sentence-transformers.

    python experiments/benchmarks/rerank.py

The re-ranker has all-MiniLM's size and random weights; contexts have 128 tokens and candidates 4 to
24, of random words. sentence-transformers' CrossEncoder scores the same pairs with an export of the
re-ranker, in turns with ours; the scores must agree. Also measured are other settings of ours, and
a last layer that computes every token although the head reads only [CLS].
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import measure
import numpy as np
import peers
import tensorflow as tf

import dcse_tf
from dcse_tf.bert.bert import (
    build_backbone,
    initialize_weights,
    make_bert_config,
    save_backbone,
)
from dcse_tf.bert.fused_bert import FusedBert, head_shapes
from dcse_tf.bert.weights import read_bert_tensors, read_tensors, write_tensors
from dcse_tf.bert.wordpiece import SPECIAL_TOKENS, WordPiece
from dcse_tf.reading.reranker_files import RerankerSettings, write_reranker_settings

LAYERS, DIM, HEADS, WIDE = 6, 384, 12, 1536
WORDS = 5000
SIZES = (10, 100)
CONTEXT_TOKENS = 128
TOLERANCE = 1e-4


def write_reranker(folder: pathlib.Path) -> pathlib.Path:
    """Writes a run directory with random weights."""
    words = (f"w{number}" for number in range(WORDS))
    vocabulary = WordPiece((*SPECIAL_TOKENS, *words), True).with_end_of_turn()
    config = make_bert_config(LAYERS, DIM, len(vocabulary.tokens))
    config |= {"num_attention_heads": HEADS, "intermediate_size": WIDE}
    encoder = folder / "encoder"
    encoder.mkdir(parents=True)
    backbone = build_backbone(config, 0.0)
    initialize_weights(backbone.trainable_variables, 1, 0.05)
    save_backbone(encoder, backbone, config)
    rng = np.random.default_rng(2)
    tensors = read_tensors(encoder)
    for name, shape in head_shapes(DIM, speakers=False).items():
        tensors[name] = rng.normal(0.0, 0.05, shape).astype(np.float32)
    write_tensors(encoder, tensors)
    vocabulary.write(encoder)
    write_reranker_settings(encoder, RerankerSettings())
    return folder


def draw_pairs(size: int) -> tuple[list[str], list[str]]:
    """The turns of a context, and `size` candidates, of random words."""
    rng = np.random.default_rng(size)

    def draw(length: int) -> str:
        return " ".join(f"w{number}" for number in rng.integers(WORDS, size=length))

    # Four turns with an [EOT] each, [CLS] and [SEP] make CONTEXT_TOKENS.
    turns = [draw(length) for length in (31, 31, 30, CONTEXT_TOKENS - 98)]
    return turns, [draw(int(length)) for length in rng.integers(4, 25, size=size)]


def make_full(run: pathlib.Path, reranker: dcse_tf.Reranker):
    """A copy of the re-ranker that computes every token in the last layer."""
    folder = run / "encoder"
    config = json.loads((folder / "config.json").read_text())
    bert = FusedBert(read_bert_tensors(folder, config), config)
    tensors = {name: tf.constant(value) for name, value in read_tensors(folder).items()}
    graph = reranker.graph

    def score(contexts, texts, context_rows, text_rows):
        first = tf.gather(contexts, context_rows)
        ids, speakers = (first.with_values(first.values[:, i]) for i in range(2))
        inputs = graph.model.make_inputs(ids, tf.gather(texts, text_rows), speakers)
        x = bert(inputs)[:, 0]
        for name, then in (("pooler.dense", tf.tanh), ("classifier", tf.identity)):
            weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
            x = then(tf.matmul(x, weight, transpose_b=True) + bias)
        return x[:, 0]

    full = dcse_tf.Reranker(graph, batch_tokens=reranker.batch_tokens)
    signature = reranker._score_rows.input_signature
    full._score_rows = tf.function(score, input_signature=signature, autograph=False)
    return full


def make_cases(rerankers, peer, size: int) -> list[measure.Case]:
    turns, candidates = draw_pairs(size)

    def case(name: str, reranker) -> measure.Case:
        def work():
            return reranker.score([turns], [candidates], show_progress=False)

        return measure.Case(name, "lists", measure.timed(work, lists=1, pairs=size))

    cases = [case(name, reranker) for name, reranker in rerankers.items()]
    if peer:
        work = functools.partial(peer.run, f"{size} CrossEncoder")
        cases.append(measure.Case("CrossEncoder", "lists", work))
    return cases


def compare_scores(reranker, output: pathlib.Path) -> None:
    """Exits with status 1 if the library's scores differ from ours."""
    theirs = np.load(output)
    for size in SIZES:
        turns, candidates = draw_pairs(size)
        (ours,) = reranker.score([turns], [candidates], show_progress=False)
        difference = float(np.abs(ours - theirs[str(size)]).max())
        spread = float(ours.std())
        print(f"{size} candidates: scores differ by {difference:.1e}, their spread is {spread:.2g}")
        if not difference <= TOLERANCE:
            sys.exit(f"error: expected at most {TOLERANCE}")


def parse_arguments() -> argparse.Namespace:
    parser = measure.make_parser(__doc__, rounds=9)
    peers.add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    with contextlib.ExitStack() as stack:
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run = write_reranker(work / "run")
        reranker = dcse_tf.Reranker.load(run)
        rerankers = {
            "dcse_tf": reranker,
            "batches of 4,096 tokens": dcse_tf.Reranker.load(run, batch_tokens=4096),
            "batches of 16,384 tokens": dcse_tf.Reranker.load(run, batch_tokens=16384),
            "every token in the last layer": make_full(run, reranker),
            "bfloat16": dcse_tf.Reranker.load(run, compute_dtype="bfloat16"),
        }
        peer = None
        if not args.no_peers:
            folder = dcse_tf.export(
                run_dir=run, output_dir=work / "exported", format="sentence_transformers"
            )
            pairs = {}
            for size in SIZES:
                turns, candidates = draw_pairs(size)
                context = " ".join(f"{turn} [EOT]" for turn in turns)
                pairs[size] = [[context, candidate] for candidate in candidates]
            (work / "pairs.json").write_text(json.dumps(pairs))
            settings = {
                "model": str(folder),
                "pairs": str(work / "pairs.json"),
                "output": str(work / "scores.npz"),
            }
            python = peers.build_environment(args.peer_env)
            peer = stack.enter_context(peers.Peer(python, "rerank", settings))
            print(json.dumps(peer.found))
            compare_scores(reranker, work / "scores.npz")
        results = {}
        for size in SIZES:
            print(f"{size} candidates", flush=True)
            cases = make_cases(rerankers, peer, size)
            results[size] = measure.run_rounds(cases, args.rounds, warm_up=2)
            print(measure.format_rows(results[size]))
            for row in results[size]:
                print(f"  {row.name}: {1000 / row.rate:.1f} ms")
        measure.write_json(args.output, results, peer=peer.found if peer else None)


if __name__ == "__main__":
    main()
