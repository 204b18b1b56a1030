"""Measures embedding by the checkpoint and its exports, beside sentence-transformers.

    pip install -e ".[onnx]"
    python experiments/benchmarks/embed.py

Ours are `dcse embed`, which reads and writes files, with its start-up subtracted; the peer has the
same texts in memory. All use the same processors, in turns.
"""

import contextlib
import functools
import pathlib
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


def main() -> None:
    parser = jobs.make_parser(__doc__)
    peers.add_arguments(parser)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        work_dir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        inputs = jobs.write_inputs(work_dir, sentences=args.sentences)
        checkout = jobs.Checkout(ROOT, work_dir / "here", args.encoder)
        cases = []
        if not args.no_peers:
            given = {"model": jobs.find_model(args.encoder), "sentences": str(inputs.sentences[1])}
            peer = stack.enter_context(peers.Peer(args, "embed", **given))
            cases = [
                measure.Case(name, functools.partial(peer.run, name))
                for name in peer.found["variants"]
            ]
        for name in args.forms:
            export, flags = FORMS[name]
            model = checkout.export(inputs, *export.split()) if export else args.encoder
            embed = functools.partial(checkout.embed, model=model, flags=flags.split())
            run = functools.partial(jobs.compare_sizes, inputs.sentences, embed)
            cases.append(measure.Case(name, run))
        rows = measure.run_rounds(cases, args.rounds)
    measure.tell(args.output, "Embedding", [measure.make_table("", "sentences", rows)])


if __name__ == "__main__":
    main()
