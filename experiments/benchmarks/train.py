"""Measures training steps by batch form, beside sentence-transformers.

    python experiments/benchmarks/train.py

Each form is `dcse train` of the recommended preset with further flags, in a separate process, in
turns with the others on the same random dialogues, without warm-up, saving and evaluation. A sample
is a response with its context and its negatives; the peer's is a pair of a turn and the next one,
with the other pairs of the batch as negatives. About 10 minutes on 2 cores.
"""

import contextlib
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
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        work_dir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        inputs = jobs.write_inputs(work_dir)
        checkout = jobs.Checkout(ROOT, work_dir / "here", args.encoder)
        given = {"model": jobs.find_model(args.encoder), "dialogues": str(inputs.dialogues)}
        cases = peers.make_cases(stack, args, "train", **given)
        cases += [
            checkout.case(name, "train", inputs, args, *FORMS[name].split()) for name in args.forms
        ]
        tables = [measure.make_table("", "samples", measure.run_rounds(cases, args.rounds))]
    measure.tell(args.output, "Training steps", tables, f"Forms: {FORMS}.")


if __name__ == "__main__":
    main()
