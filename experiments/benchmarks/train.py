"""Measures training steps by batch form, beside the paper's procedure in plain PyTorch.

    python experiments/benchmarks/train.py

Each form is `dcse train` of the recommended preset with further flags, in a separate process, in
turns with the others on the same random dialogues, without warm-up, saving and evaluation. The peer
encodes every use of an utterance, padded, as the paper describes it. About 10 minutes on 2 cores.
"""

import contextlib
import functools
import pathlib
import tempfile

import jobs
import measure
import peers
from runs import ROOT

FORMS = {
    "plain": "--batch_form=plain --global_batch_size=16 --cosine_weight=0",
    "unique": "--batch_form=unique --global_batch_size=64",
    "dense": "",
    "dense, padded": "--layout=padded",
    "dense, bfloat16": "--compute_dtype=bfloat16",
}


def main() -> None:
    parser = jobs.make_parser(__doc__)
    peers.add_arguments(parser)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        work_dir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        inputs = jobs.write_inputs(work_dir)
        checkout = jobs.Checkout(ROOT, work_dir / "here", args.encoder)
        cases = []
        if not args.no_peers:
            model, dialogues = jobs.find_model(args.encoder), str(inputs.dialogues)
            given = {"model": model, "dialogues": dialogues, "longest": jobs.LONGEST}
            peer = stack.enter_context(peers.Peer(args, "train", **given))
            cases = [
                measure.Case(name, functools.partial(peer.run, name))
                for name in peer.found["variants"]
            ]
        cases += [
            checkout.case(name, "train", inputs, args, *FORMS[name].split()) for name in args.forms
        ]
        rows = measure.run_rounds(cases, args.rounds)
    table = measure.make_table("", "samples", rows)
    measure.tell(args.output, "Training steps", [table], f"Forms: {FORMS}.")


if __name__ == "__main__":
    main()
