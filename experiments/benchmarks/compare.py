"""Compares the speed of this checkout with another's: training steps, embedding, preparation.

    python experiments/benchmarks/compare.py --before=/path/to/another/checkout

Both run the same command lines on the same random dialogues, each in a separate process, in turns.
Train: samples per second of the recommended preset, after the first 10 steps, without saving and
evaluation. Embed and prepare: the difference between two sizes of input, which leaves out start-up;
start-up is shown separately. If other work distorts the times, look at the ratios by processor
time. The ratios so far are printed after every round and written to --output, so that an
interrupted comparison keeps them. Takes about 10 minutes on 2 idle cores.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

import jobs
import measure


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = measure.make_parser(__doc__)
    parser.add_argument("--before", type=pathlib.Path, required=True, help="the other checkout")
    parser.add_argument(
        "--after", type=pathlib.Path, default=jobs.ROOT, help="default: this checkout"
    )
    parser.add_argument(
        "--subjects",
        nargs="+",
        choices=jobs.SUBJECTS,
        default=list(jobs.SUBJECTS),
        help="default: all",
    )
    jobs.add_arguments(parser)
    return parser.parse_args(arguments)


def describe_ratio(subject: str, before: measure.Row, after: measure.Row) -> str:
    """Formats the median ratio, its spread, and the median ratio by processor time."""
    spread = f"({after.ratio_low:.3f} to {after.ratio_high:.3f})"
    pairs = zip(before.rounds, after.rounds)
    work = statistics.median(a.more["processor s"] / b.more["processor s"] for a, b in pairs)
    return f"  {subject:<8} {after.ratio:.3f} {spread}; by processor time {work:.3f}"


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    results: dict[str, list[measure.Row]] = {}
    with tempfile.TemporaryDirectory() as name:
        work_dir = pathlib.Path(name)
        inputs = jobs.write_inputs(work_dir, args.turns, args.sentences, args.contexts)
        checkouts = {
            side: jobs.Checkout(getattr(args, side), work_dir / side, args.encoder)
            for side in ("before", "after")
        }
        places = {side: str(checkout.path) for side, checkout in checkouts.items()}

        for subject in args.subjects:
            print(subject, flush=True)

            def keep(rows: list[measure.Row], subject: str = subject) -> None:
                results[subject] = rows
                print(f"{describe_ratio(subject, *rows)}, so far", flush=True)
                measure.write_json(args.output, results, checkouts=places)

            cases = [
                checkout.case(side, subject, inputs, args) for side, checkout in checkouts.items()
            ]
            measure.run_rounds(cases, args.rounds, tell=keep)
            print(measure.format_rows(results[subject]), flush=True)

    print("\nspeed of this checkout as a ratio to the other's (1 = the same, 2 = twice as fast):")
    for subject, rows in results.items():
        print(describe_ratio(subject, *rows))


if __name__ == "__main__":
    main()
