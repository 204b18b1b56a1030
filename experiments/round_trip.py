"""An encoder exported for sentence-transformers, loaded by it and embedding the same sentences.

PYTHONPATH=. python experiments/round_trip.py --run_dir=RUN --sentences=FILE

Exports, builds the environment of the PyTorch peers, and compares our embeddings with those of
sentence-transformers and of transformers alone, token ids too; then loads the folder as the library
saves it again. Ends with status 1 if a cosine is below 0.9999 or a sentence has other tokens.
"""

import argparse
import itertools
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parent / "benchmarks"))

import numpy as np
import tensorflow as tf
from peer_process import DEFAULT_ENVIRONMENT, Peer, build_environment

from dcse_tf.data.formats import jsonl
from dcse_tf.encoder.graph import EncoderGraph
from dcse_tf.encoder.load import load_graph
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.export.job import export
from dcse_tf.export.options import ExportOptions
from dcse_tf.input_files import BadLines, read_lines

LOWEST = 0.9999


def read_sentences(path: pathlib.Path, most: int) -> list[str]:
    """The first distinct lines of a text file, or texts of a .jsonl file of sessions."""

    def texts() -> Iterator[str]:
        if path.suffix == ".jsonl":
            for _, turns in jsonl.read_sessions(path, BadLines(0)):
                yield from (turn.text for turn in turns)
        else:
            yield from (line for _, line in read_lines(path, BadLines(0)))

    return list(itertools.islice(dict.fromkeys(texts()), most))


def compare(name: str, found: np.ndarray, expected: np.ndarray) -> bool:
    """Prints the cosines of two sets of embeddings; whether all are high enough."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    first, second = np.linalg.norm(found, axis=1), np.linalg.norm(expected, axis=1)
    cosines, lengths = (found * expected).sum(axis=1) / (first * second), first / second
    print(
        f"{name:<46}cosine min {cosines.min():.8f} mean {cosines.mean():.8f}"
        f"   length {lengths.min():.6f} to {lengths.max():.6f} times ours"
    )
    return bool(cosines.min() >= LOWEST)


def compare_tokens(arrays: dict[str, np.ndarray], encoder: EncoderGraph, texts: list[str]) -> bool:
    """Prints the sentences that the libraries tokenise otherwise; whether there are none."""
    theirs = np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1])
    ours = encoder.tokenize(tf.constant(texts)).to_list()
    other = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b.tolist()]
    longest = encoder.max_sequence_length
    cut = sum(len(row) == longest for row in ours)
    print(f"tokens: {len(other)} of {len(texts)} sentences differ; {cut} fill all {longest} tokens")
    for i in other[:5]:
        print(f"  {texts[i]!r}\n    ours   {ours[i]}\n    theirs {theirs[i].tolist()}")
    return not other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run_dir", required=True)
    parser.add_argument("--sentences", type=pathlib.Path, required=True)
    parser.add_argument("--most", type=int, default=1000, help="sentences compared")
    parser.add_argument("--pooling", default="", choices=("", "mean", "cls"))
    parser.add_argument("--unit_norm", action="store_true")
    parser.add_argument("--peer_env", type=pathlib.Path, default=DEFAULT_ENVIRONMENT)
    args = parser.parse_args()
    sentences = read_sentences(args.sentences, args.most)
    ours = load_graph(args.run_dir, "run_dir", pooling=args.pooling)
    expected = SentenceEncoder.load(args.run_dir, pooling=args.pooling).encode(sentences)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        (work / "sentences.json").write_text(json.dumps(sentences), encoding="utf-8")
        export(
            ExportOptions(
                run_dir=args.run_dir,
                output_dir=str(work / "exported"),
                format="sentence_transformers",
                pooling=args.pooling,
                unit_norm=args.unit_norm,
            )
        )
        settings = {
            "model": str(work / "exported"),
            "sentences": str(work / "sentences.json"),
            "output": str(work / "embedded.npz"),
            "cls": ours.pooling == "cls",
            "save": str(work / "saved"),
        }
        with Peer(build_environment(args.peer_env), "embed", settings) as peer:
            print(json.dumps(peer.found))
        arrays = dict(np.load(work / "embedded.npz"))
        print(f"{len(sentences)} sentences of {args.sentences.name}")
        passed = [
            compare_tokens(arrays, ours, sentences),
            compare("sentence-transformers, our export", arrays["embeddings"], expected),
        ]
        if ours.postprocessing is None:
            passed.append(compare("transformers, our export", arrays["pooled"], expected))
        for folder in ("exported", "saved"):
            again = SentenceEncoder.load(work / folder).encode(sentences)
            names = {"exported": "our export", "saved": "saved again by the library"}
            passed.append(compare(f"dcse_tf, {names[folder]}", again, expected))
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
