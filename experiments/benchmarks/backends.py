"""Sentences a second of `embed` by what computes it: a checkpoint and its exports to ONNX.

    pip install -e '.[onnx]' && python experiments/benchmarks/backends.py --retrieval=select.txt

Each is the command line in a process of its own, by turns with the others on the same utterances of
chitchat-dataset, and beside them sentence-transformers' encode; see jobs.py for what is timed. What
eight bits cost is told by `evaluate` on a retrieval set, where one is given.
"""

import argparse
import json
import pathlib
import tempfile
from contextlib import ExitStack

import jobs
import measure
import numpy as np
import peers

from dcse_tf.data.formats import FORMATS
from dcse_tf.input_files import BadLines, resolve_inputs

UTTERANCES = "package:chitchat_dataset/dataset.json"
EXPORTS = {"ONNX float32": "none", "ONNX int8": "int8"}
PEER = "sentence-transformers, batches of 32"


def write_utterances(folder: pathlib.Path, count: int) -> tuple[pathlib.Path, pathlib.Path]:
    """Draws distinct utterances: a file of a tenth, and one of all."""
    (path,) = resolve_inputs([UTTERANCES])
    sessions = FORMATS["chitchat"].read(path, BadLines(0))
    texts = sorted({" ".join(turn.text.split()) for _, turns, *_ in sessions for turn in turns})
    drawn = np.random.default_rng(0).permutation(texts)[:count].tolist()
    few, many = folder / "few.txt", folder / "many.txt"
    few.write_text("".join(f"{text}\n" for text in drawn[: count // 10]), encoding="utf-8")
    many.write_text("".join(f"{text}\n" for text in drawn), encoding="utf-8")
    return few, many


def export(checkout: jobs.Checkout, folder: pathlib.Path) -> dict[str, str]:
    """Models by name, the checkpoint first."""
    models = {"dcse_tf float32": checkout.encoder}
    for place, (name, quantize) in enumerate(EXPORTS.items()):
        models[name] = str(folder / f"export-{place}")
        run = f"--run_dir={checkout.encoder}"
        output = f"--output_dir={models[name]}"
        checkout.run("export", run, output, "--format=onnx", f"--quantize={quantize}")
    return models


def score(checkout: jobs.Checkout, folder: pathlib.Path, model: str, retrieval: str) -> str:
    output = folder / "scores.json"
    checkout.run("evaluate", f"--model={model}", f"--retrieval={retrieval}", f"--output={output}")
    (result,) = json.loads(output.read_text(encoding="utf-8"))["results"]
    return ", ".join(f"{name} {value:.2f}" for name, value in result["scores"].items())


def main() -> None:
    parser = measure.make_parser(__doc__, rounds=3)
    jobs.add_arguments(parser)
    peers.add_arguments(parser)
    parser.add_argument("--retrieval", help="semantic retrieval set to score all on")
    args: argparse.Namespace = parser.parse_args()
    args.subject = "embed"
    with ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sentences = write_utterances(folder, args.sentences)
        inputs = jobs.Inputs(folder, (folder, folder), sentences)
        models = export(jobs.Checkout(jobs.ROOT, folder / "export", args.encoder), folder)
        checkouts = {
            name: jobs.Checkout(jobs.ROOT, folder / name.replace(" ", "-"), model)
            for name, model in models.items()
        }
        cases = [each.case(name, "embed", inputs, args) for name, each in checkouts.items()]
        if not args.no_peers:
            cases += [x for x in peers.make_cases(stack, args, inputs) if x.name == PEER]
        rows = measure.run_rounds(cases, args.rounds)
        print(measure.format_rows(rows), flush=True)
        scores = {}
        for name, each in checkouts.items() if args.retrieval else ():
            scores[name] = score(each, folder, each.encoder, args.retrieval)
            print(f"{name}: {scores[name]}", flush=True)
    measure.write_json(args.output, rows, scores=scores)


if __name__ == "__main__":
    main()
