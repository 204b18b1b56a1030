"""Measures the time from the start of `dcse embed` to the embedding of one line, by kind of model.

    pip install -e ".[onnx]"
    python experiments/benchmarks/startup.py

Each start is a process of its own. Beside it are the imports of TensorFlow and of dcse_tf, the
static export as a library, and sentence-transformers, which embeds the same line in its own
environment. The first round, which reads the files from disk, does not count.
"""

import functools
import os
import pathlib
import subprocess
import sys
import tempfile

import jobs
import measure
import peers
from runs import DCSE, MINILM, ROOT

LINE = "where is my parcel"
EXPORTS = {
    "ONNX": "--format=onnx",
    "ONNX, eight bits": "--format=onnx --quantize=int8",
    "static": "--format=static",
    "SavedModel": "--format=saved_model",
}
_LIBRARY = f"import dcse_tf; dcse_tf.SentenceEncoder.load({{!r}}).encode({LINE!r})"
_PEER = f"import sentence_transformers as s; s.SentenceTransformer({{!r}}).encode({LINE!r})"


def start(python: str | pathlib.Path, *words: str) -> None:
    """Runs a process of Python to its end; exits if it fails."""
    path = {"PYTHONPATH": str(ROOT)} if python == sys.executable else {}
    environment = {**os.environ, **peers.QUIET, **path}
    done = subprocess.run([python, *words], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(words)}\n{done.stderr[-2000:]}")


def main() -> None:
    parser = measure.make_parser(__doc__)
    parser.add_argument("--encoder", default=MINILM, help="default: %(default)s")
    peers.add_arguments(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "line.txt").write_text(f"{LINE}\n", encoding="utf-8")
        checkout = jobs.Checkout(ROOT, folder / "jobs", args.encoder)
        inputs = jobs.write_inputs(folder)
        models: dict[str, str | pathlib.Path] = {"checkpoint": args.encoder}
        models |= {kind: checkout.export(inputs, *of.split()) for kind, of in EXPORTS.items()}

        embed = (*DCSE, "embed", f"--input={folder / 'line.txt'}", "--overwrite")
        commands: dict[str, tuple[str, ...]] = {
            "import tensorflow": ("-c", "import tensorflow"),
            "import dcse_tf": ("-c", "import dcse_tf"),
            "static, as a library": ("-c", _LIBRARY.format(str(models["static"]))),
        }
        for kind, model in models.items():
            commands[kind] = (*embed, f"--output={folder / 'rows.npy'}", f"--model={model}")
        pythons: dict[str, str | pathlib.Path] = dict.fromkeys(commands, sys.executable)
        if not args.no_peers:
            pythons["sentence-transformers"] = peers.build_environment(args.peer_env)
            commands["sentence-transformers"] = ("-c", _PEER.format(jobs.find_model(args.encoder)))
        cases = [
            measure.Case(
                kind,
                functools.partial(measure.timed, functools.partial(start, pythons[kind], *words)),
            )
            for kind, words in commands.items()
        ]
        rows = measure.run_rounds(cases, args.rounds, warm_up=1)
    measure.tell(args.output, "Starting", [measure.make_table("", "starts", rows)])


if __name__ == "__main__":
    main()
