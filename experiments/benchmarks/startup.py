"""Measures the time from the start of `dcse embed` to the embedding of one line, by kind of model.

    pip install -e '.[onnx]'
    python experiments/benchmarks/startup.py

Each start is a process of its own. Beside it are the imports of TensorFlow and of dcse_tf, the
static export as a library, and sentence-transformers, which embeds the same line in its own
environment (see peers.py). The first round, which reads the files from disk, does not count.
"""

import argparse
import contextlib
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import jobs
import measure
import peers

LINE = "where is my parcel"
# The flags that export each kind of model.
EXPORTS = {
    "ONNX": "--format=onnx",
    "ONNX int8": "--format=onnx --quantize=int8",
    "static": "--format=static",
    "SavedModel": "",
}
_LIBRARY = f"import dcse_tf; dcse_tf.SentenceEncoder.load({{!r}}).encode({LINE!r})"
_PEER = f"import sentence_transformers as s; s.SentenceTransformer({{!r}}).encode({LINE!r})"


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__, rounds=3)
    parser.add_argument("--encoder", default=jobs.ENCODER, help="default: %(default)s")
    peers.add_arguments(parser)
    return parser.parse_args(arguments)


def start(python: str | pathlib.Path, *words: str) -> measure.Round:
    """Runs a process of Python to its end; exits if it fails."""
    path = {"PYTHONPATH": str(jobs.ROOT)} if python == sys.executable else {}
    environment = {**os.environ, **peers.QUIET, **path}
    started = time.perf_counter()
    done = subprocess.run([python, *words], env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"error: {' '.join(words)}\n{done.stderr[-2000:]}")
    return measure.Round(seconds, {"starts": 1}, {"seconds": seconds})


def make_cases(folder: pathlib.Path, args: argparse.Namespace) -> list[measure.Case]:
    """Exports the models and returns the cases, of which `import tensorflow` is the base."""
    text = folder / "line.txt"
    text.write_text(f"{LINE}\n", encoding="utf-8")
    maker = jobs.Checkout(jobs.ROOT, folder / "jobs", args.encoder)
    # A small corpus, for the static export.
    dialogues, data = jobs.write_inputs(folder, 800, 10).dialogues, folder / "data"
    prepared = (f"--input={dialogues}", f"--vocab={args.encoder}", f"--output_dir={data}")
    maker.run("prepare_data", "--format=session_tsv", *prepared)
    models = {"checkpoint": args.encoder}
    for name, flags in EXPORTS.items():
        models[name] = str(folder / name)
        given = [f"--run_dir={args.encoder}", f"--output_dir={models[name]}", *flags.split()]
        maker.run("export", *given, *([f"--data_dir={data}"] if name == "static" else []))

    output = f"--output={folder / 'rows.npy'}"
    embed = ("-c", jobs.DCSE, "embed", f"--input={text}", output, "--overwrite")
    commands = {"import tensorflow": ("-c", "import tensorflow")}
    commands["import dcse_tf"] = ("-c", "import dcse_tf")
    commands |= {name: (*embed, f"--model={model}") for name, model in models.items()}
    commands["static, as a library"] = ("-c", _LIBRARY.format(models["static"]))
    pythons: dict[str, str | pathlib.Path] = dict.fromkeys(commands, sys.executable)
    if not args.no_peers:
        pythons["sentence-transformers"] = peers.build_environment(args.peer_env)
        commands["sentence-transformers"] = ("-c", _PEER.format(peers.find_model(args.encoder)))
    return [
        measure.Case(name, "starts", functools.partial(start, pythons[name], *words))
        for name, words in commands.items()
    ]


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows = measure.run_rounds(make_cases(folder, args), args.rounds, warm_up=1)
    print(measure.format_rows(rows))
    measure.write_json(args.output, rows)


if __name__ == "__main__":
    main()
