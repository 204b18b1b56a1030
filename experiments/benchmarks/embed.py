"""Measures embedding by the checkpoint and its exports, and how long each takes to start.

    pip install -e ".[onnx]"
    python experiments/benchmarks/embed.py

Ours are `dcse embed`, which reads and writes files, with its start-up subtracted; the peer,
sentence-transformers, has the same texts in memory. All use the same processors, in turns. Starting
is the time from the start of a process to the embedding of one line.
"""

import contextlib
import functools
import pathlib
import subprocess
import tempfile

import jobs
import measure
import peers
from runs import ROOT

# Name -> flags of the export ("" for the checkpoint itself), flags of `embed`.
FORMS = {
    "checkpoint": ("", ""),
    "checkpoint, bfloat16": ("", "--compute_dtype=bfloat16"),
    "ONNX": ("--format=onnx", ""),
    "ONNX, eight bits": ("--format=onnx --quantize=int8", ""),
    "static": ("--format=static", ""),
}
_PEER = "import sentence_transformers as s; s.SentenceTransformer({!r}).encode('a line')"


def main() -> None:
    parser = jobs.make_parser(__doc__)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        work_dir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        inputs = jobs.write_inputs(work_dir, sentences=args.sentences)
        line = work_dir / "line.txt"
        line.write_text("where is my parcel\n", encoding="utf-8")
        checkout = jobs.Checkout(ROOT, work_dir / "here", args.encoder)
        model = jobs.find_model(args.encoder)
        cases = peers.make_cases(stack, args, "embed", model=model, sentences=inputs.sentences[1])
        starts = []
        if cases:
            command = [peers.find_python(args), "-c", _PEER.format(model)]
            start = functools.partial(subprocess.run, command, check=True, capture_output=True)
            starts.append(measure.Case(cases[0].name, functools.partial(measure.timed, start)))
        for name in args.forms:
            export, flags = FORMS[name]
            model = checkout.export(inputs, *export.split()) if export else args.encoder
            given = (model, *flags.split())
            run = functools.partial(checkout.measure_embedding, inputs, *given)
            cases.append(measure.Case(name, run))
            start = functools.partial(checkout.embed, line, *given)
            starts.append(measure.Case(name, functools.partial(measure.timed, start)))
        rows = measure.run_rounds(cases, args.rounds)
        # The first round, which reads the files from disk, does not count.
        started = measure.run_rounds(starts, args.rounds, warm_up=1)
    tables = [
        measure.make_table("Embedding", "sentences", rows),
        measure.make_table("Starting", "starts", started),
    ]
    measure.tell(args.output, "Embedding", tables)


if __name__ == "__main__":
    main()
