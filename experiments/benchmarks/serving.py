"""Serving: latency, throughput and start-up of an export, beside sentence-transformers.

    python experiments/benchmarks/serving.py

Exports all-MiniLM-L6-v2 as a SavedModel and serves it in an environment that has TensorFlow and
tensorflow-text alone; its embeddings are held to those of the encoder. Latency is of one sentence
at a time; throughput of batches of 64 in the order they come (the signature) and, by `embed`, of
all sentences at once, sorted by length; start-up is a fresh process: imports, loading, the first
answer. About 4 minutes on 2 cores.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import dialogues
import measure
import numpy as np
import peer_process

from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.export.saved_model import TOLERANCE
from dcse_tf.model.checkpoints import resolve_checkpoint

BATCH = 64
BASE = "SavedModel, batches of 64"
SERVING_ENVIRONMENT = peer_process.ROOT / ".venv-serving"
PEERS = {
    "float32_32": "sentence-transformers float32, 32",
    "float32_best": "sentence-transformers float32, best",
    "bfloat16": "sentence-transformers bfloat16",
}
# Imports, loading and the first answer, as a server would do them.
START = """
import sys, tensorflow as tf, tensorflow_text
model = tf.saved_model.load(sys.argv[1])
embeddings = model.signatures["serving_default"](sentences=tf.constant(["hello"]))["embeddings"]
assert embeddings.shape[0] == 1
"""


def export(encoder: str, folder: pathlib.Path) -> None:
    command = [sys.executable, "-m", "dcse_tf.cli.export", f"--run_dir={encoder}"]
    subprocess.run([*command, f"--output_dir={folder}"], check=True, cwd=peer_process.ROOT)


def start_server(
    stack: contextlib.ExitStack, python: pathlib.Path, folder: pathlib.Path, sentences: list[str]
) -> tuple[peer_process.Peer, np.ndarray]:
    """The export in `folder` / export in a process of its own, and the embeddings it gives."""
    (folder / "sentences.json").write_text(json.dumps(sentences), encoding="utf-8")
    names = {"export": "export", "sentences": "sentences.json", "embeddings": "embeddings.npy"}
    settings = {key: str(folder / name) for key, name in names.items()} | {"batch_size": BATCH}
    server = peer_process.Peer(python, "serving_default", settings, "served.py")
    return stack.enter_context(server), np.load(settings["embeddings"])


def compare(encoder: str, sentences: list[str], served: np.ndarray) -> float:
    """The largest difference from the encoder's embeddings; ends the benchmark if it is large."""
    expected = SentenceEncoder.load(encoder).encode(sentences)
    difference = float(np.abs(served - expected).max())
    print(f"largest difference from the encoder: {difference:.1e}", flush=True)
    if not difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        sys.exit("error: the export does not give the encoder's embeddings")
    return difference


def throughput_cases(
    server: peer_process.Peer, folder: pathlib.Path, sentences: list[str]
) -> list[measure.Case]:
    encoder = SentenceEncoder.load(folder)
    count = len(sentences)
    return [
        server.case(BASE, "batches", "sentences"),
        measure.Case(
            "SavedModel, all at once",
            measure.timed(lambda: encoder.encode(sentences), sentences=count),
            "sentences",
        ),
    ]


def start_up_cases(python: pathlib.Path, folder: pathlib.Path) -> list[measure.Case]:
    """Fresh processes, as fast as the disk cache lets them: a start a second is the rate."""
    commands = {
        "import, load, first answer": [str(python), "-c", START, str(folder)],
        "train --help": [sys.executable, "-m", "dcse_tf.cli.train", "--help"],
    }

    def case(name: str, command: list[str]) -> measure.Case:
        def start() -> None:
            done = subprocess.run(command, cwd=peer_process.ROOT, capture_output=True, text=True)
            # absl's help ends with status 1.
            helped = "--help" in command and "--data_dir" in done.stdout
            if done.returncode and not helped:
                sys.exit(f"error: {name}: {done.stderr}")

        return measure.Case(name, measure.timed(start, starts=1), "starts")

    return [case(name, command) for name, command in commands.items()]


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__)
    dialogues.add_arguments(parser)
    peer_process.add_arguments(parser)
    parser.add_argument(
        "--serving_env",
        type=pathlib.Path,
        default=SERVING_ENVIRONMENT,
        help="virtual environment with TensorFlow and tensorflow-text alone, built where it is not "
        "there (2 GB); default: .venv-serving in the clone",
    )
    parser.add_argument(
        "--sentences", type=measure.at_least_one, default=1024, help="default: %(default)s"
    )
    return parser.parse_args(arguments)


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    with contextlib.ExitStack() as stack:
        data_dir = stack.enter_context(dialogues.prepared(args.data_dir, args.encoder))
        sentences = dialogues.read_sentences(data_dir, args.sentences)
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        saved_model, peers = folder / "export", {}
        export(args.encoder, saved_model)
        python = peer_process.build_environment(
            args.serving_env,
            peer_process.ROOT / "constraints.txt",
            ("tensorflow", "tensorflow-text"),
            "serving_env",
        )

        server, embeddings = start_server(stack, python, folder, sentences)
        difference = compare(args.encoder, sentences, embeddings)
        latencies = server.found["latency_ms"]
        median, slow = statistics.median(latencies), float(np.percentile(latencies, 95))
        print(f"one sentence: median {median:.2f} ms, 95th percentile {slow:.2f} ms", flush=True)

        starts = start_up_cases(python, saved_model)
        start_results = measure.run_rounds(starts, args.rounds)
        seconds = {name: [r.seconds for r in rounds] for name, rounds in start_results.items()}
        for name, values in seconds.items():
            spread = f"{min(values):.2f} - {max(values):.2f}"
            print(f"{name}: {statistics.median(values):.2f} s ({spread})", flush=True)

        cases = throughput_cases(server, saved_model, sentences)
        if not args.no_peers:
            model = resolve_checkpoint(args.encoder, "encoder")
            peer = peer_process.start_encoder(stack, args.peer_env, model, sentences)
            peers = peer.found
            cases += [peer.case(name, variant, "sentences") for variant, name in PEERS.items()]
        rows = measure.summarize(cases, measure.run_rounds(cases, args.rounds), BASE)
    print(measure.format_rows(rows, BASE))
    measure.write_json(
        args.output,
        rows,
        latency_ms=latencies,
        start_up_seconds=seconds,
        largest_difference=difference,
        served_by=server.found["versions"],
        peers=peers,
    )


if __name__ == "__main__":
    main()
