"""Measures the speed of training, embedding or preparation by settings, beside PyTorch.

    python experiments/benchmarks/speed.py train
    python experiments/benchmarks/speed.py select
    python experiments/benchmarks/speed.py embed --no_peers
    python experiments/benchmarks/speed.py prepare --turns=5000000

Each form is the job's command line with further flags, in a separate process, in turns with the
others on the same random dialogues; see jobs.py for what is timed. The peers are: for train, the
paper's procedure in plain PyTorch, which encodes every use of an utterance; for select, which
trains a re-ranker, transformers' BERT with a classifier on padded pairs; for embed,
sentence-transformers' encode. They run in a separate environment. Takes about 15 minutes on 2 idle
cores.
"""

import argparse
import contextlib
import pathlib
import sys
import tempfile
import time

import jobs
import measure
import peers

FORMS = {
    "train": {
        "plain": "--batch_form=plain --global_batch_size=16 --cosine_weight=0",
        "unique": "--batch_form=unique --global_batch_size=64",
        "dense": "",
        "dense, padded": "--layout=padded",
        "dense, all negatives": "--negatives=all",
        "dense, bfloat16": "--compute_dtype=bfloat16",
        "dense, XLA": "--jit_compile",
    },
    "select": {
        "packed": "",
        "padded": "--layout=padded",
        "packed, bfloat16": "--compute_dtype=bfloat16",
        "four auxiliary tasks": "--auxiliary=next_session,restoration,incoherence,consistency",
    },
    "embed": {
        "float32": "",
        "bfloat16": "--compute_dtype=bfloat16",
        "two workers": "--workers=2",
        "XLA": "--jit_compile",
    },
    "prepare": {"one process": "--workers=1", "all processors": "--workers=0"},
}
# Without XLA, whose compilation takes minutes and whose code is slower on the processors tried.
DEFAULT = {
    "train": ["plain", "unique", "dense", "dense, bfloat16"],
    "select": ["packed", "padded", "four auxiliary tasks"],
    "embed": ["float32", "bfloat16"],
    "prepare": ["one process", "all processors"],
}


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__)
    parser.add_argument("subject", choices=FORMS)
    parser.add_argument("--forms", help="forms to run, separated by semicolons")
    jobs.add_arguments(parser)
    peers.add_arguments(parser)
    args = parser.parse_args(arguments)
    forms = FORMS[args.subject]
    given = [name.strip() for name in (args.forms or "").split(";")]
    args.forms = given if args.forms else DEFAULT[args.subject]
    for name in args.forms:
        if name not in forms:
            parser.error(f"--forms: no form {name!r}; there are {'; '.join(forms)}")
    return args


def multiply(size: int = 2048, times: int = 200) -> measure.Round:
    """Measures what this machine makes of TensorFlow's product of two matrices in float32."""
    import tensorflow as tf

    matrix = tf.random.stateless_normal([size, size], [1, 2])
    product = tf.function(lambda: tf.matmul(matrix, matrix))
    product()
    started = time.perf_counter()
    for _ in range(times):
        last = product()
    last.numpy()
    return measure.Round(time.perf_counter() - started, {"GFLOP": times * 2 * size**3 / 1e9})


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    with contextlib.ExitStack() as stack:
        work_dir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        inputs = jobs.write_inputs(work_dir, args.turns, args.sentences, args.contexts)
        checkout = jobs.Checkout(jobs.ROOT, work_dir / "here", args.encoder)
        cases = [
            checkout.case(name, args.subject, inputs, args, FORMS[args.subject][name].split())
            for name in args.forms
        ]
        if not args.no_peers:
            cases += peers.make_cases(stack, args, inputs)
        products = [measure.Case("matrix product", "GFLOP", multiply)]
        rows = measure.run_rounds([*cases, *products], args.rounds)
    *rows, product = rows
    print(measure.format_rows(rows))
    print(f"matrix product: {product.rate:.0f} GFLOP/s ({product.low:.0f} - {product.high:.0f})")
    for row in rows:
        if rate := row.more.get("GFLOP/s"):
            print(f"  {row.name}: {100 * rate / product.rate:.0f}% of it in the encoder's products")
    forms = {name: FORMS[args.subject][name] for name in args.forms}
    measure.write_json(args.output, rows, forms=forms)


if __name__ == "__main__":
    main()
