"""Exports a run for sentence-transformers, and checks that it computes the same embeddings.

    python experiments/round_trip.py --run_dir=RUN --sentences=FILE

Counts the sentences that HuggingFace's tokenizer of the checkpoint splits differently from ours.
Then exports the run, builds the environment of the PyTorch peers, and compares our embeddings with
those of sentence-transformers and of transformers alone. Finally loads the exported folder, and the
folder that the library saves from it, with dcse_tf. Exits with status 1 if a cosine is below
0.9999, which a single different token causes.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parent / "benchmarks"))

import numpy as np
import peers
import tensorflow as tf
from transformers import AutoTokenizer

import dcse_tf
from dcse_tf.bert.checkpoints import resolve_checkpoint
from dcse_tf.bert.tokenizer import read_vocabulary

LOWEST = 0.9999


def read_sentences(path: pathlib.Path, most: int) -> list[str]:
    """The first distinct lines of a text file, or distinct texts of a .jsonl file of sessions."""
    lines = path.read_text(encoding="utf-8").split("\n")
    if path.suffix == ".jsonl":
        sessions = (json.loads(line)["turns"] for line in lines if line)
        lines = [turn["text"] for turns in sessions for turn in turns]
    folded = (" ".join(line.split()) for line in lines)
    return list(dict.fromkeys(line for line in folded if line))[:most]


def compare_tokens(run_dir: str, sentences: list[str]) -> None:
    """Prints how many sentences HuggingFace's tokenizer splits differently, with examples."""
    folder = resolve_checkpoint(run_dir, "run_dir")
    theirs, vocabulary = AutoTokenizer.from_pretrained(folder), read_vocabulary(folder)
    ids = vocabulary.with_prefix("").make_tokenizer().tokenize(tf.constant(sentences), 10**6)
    different = []
    for sentence, row in zip(sentences, ids.to_list(), strict=True):
        # Compared by name, because ids may differ, see `read_tensors`.
        ours = [vocabulary.tokens[i] for i in row]
        expected = theirs.convert_ids_to_tokens(theirs(sentence)["input_ids"])
        if ours != expected:
            different.append((sentence, ours, expected))
    print(f"other tokens by HuggingFace's tokenizer: {len(different)} of {len(sentences)}")
    for sentence, ours, expected in different[:3]:
        print(f"  {sentence!r}: {' '.join(ours)}; theirs: {' '.join(expected)}")


def compare(name: str, found: np.ndarray, expected: np.ndarray) -> bool:
    """Prints the cosines of two sets of embeddings; returns whether all are high enough."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    first, second = np.linalg.norm(found, axis=1), np.linalg.norm(expected, axis=1)
    cosines, lengths = (found * expected).sum(axis=1) / (first * second), first / second
    print(
        f"{name:<46}cosine min {cosines.min():.8f} mean {cosines.mean():.8f}"
        f"   length {lengths.min():.6f} to {lengths.max():.6f} times ours"
    )
    return bool(cosines.min() >= LOWEST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run_dir", required=True)
    parser.add_argument("--sentences", type=pathlib.Path, required=True)
    parser.add_argument("--most", type=int, default=1000, help="sentences compared")
    parser.add_argument("--pooling", default="mean", choices=("mean", "cls"))
    parser.add_argument("--peer_env", type=pathlib.Path, default=peers.DEFAULT_ENVIRONMENT)
    args = parser.parse_args()
    sentences = read_sentences(args.sentences, args.most)
    compare_tokens(args.run_dir, sentences)
    encoder = dcse_tf.SentenceEncoder.load(args.run_dir, pooling=args.pooling)
    expected = encoder.encode(sentences)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        exported, saved, embedded = work / "exported", work / "saved", work / "embedded.npz"
        dcse_tf.export(
            run_dir=args.run_dir,
            output_dir=exported,
            format="sentence_transformers",
            pooling=args.pooling,
        )
        (work / "sentences.txt").write_text("\n".join(sentences), encoding="utf-8")
        settings = {
            "model": str(exported),
            "sentences": str(work / "sentences.txt"),
            "output": str(embedded),
            "cls": args.pooling == "cls",
            "save": str(saved),
        }
        with peers.Peer(peers.build_environment(args.peer_env), "embed", settings) as peer:
            print(json.dumps(peer.found))
        arrays = np.load(embedded)
        print(f"{len(sentences)} sentences of {args.sentences.name}")
        passed = [compare("sentence-transformers, our export", arrays["embeddings"], expected)]
        # transformers alone applies neither a prefix nor a fitted baseline's map after pooling.
        maps = "Dense" in (exported / "modules.json").read_text(encoding="utf-8")
        if not maps and not encoder.settings.get("prefix"):
            passed.append(compare("transformers, our export", arrays["pooled"], expected))
        for folder, title in ((exported, "our export"), (saved, "saved again by the library")):
            again = dcse_tf.SentenceEncoder.load(folder).encode(sentences)
            passed.append(compare(f"dcse_tf, {title}", again, expected))
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
