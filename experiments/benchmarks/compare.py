"""Compares the speed of this checkout with another's, in one run.

    python experiments/benchmarks/compare.py --before=/path/to/another/checkout

Both run the same command lines on the same random dialogues, each in a separate process, in turns.
train and bfloat16: samples a second of the recommended preset, after the first 10 steps, without
saving and evaluation. The others: the difference between two sizes of input, which leaves out
start-up; start-up is shown beside it. If other work distorts the times, look at the ratios by
processor time. The ratios so far are printed after every round and written to --output, so that an
interrupted comparison keeps them. Takes about 10 minutes on 2 idle cores.
"""

import pathlib
import statistics
import tempfile
from typing import Any

import jobs
import measure
from runs import ROOT


def describe_ratio(subject: str, before: measure.Row, after: measure.Row) -> str:
    """The median ratio, its spread, and the median ratio by processor time per amount."""
    work = statistics.median(
        (a.more["processor s"] / a.amount) / (b.more["processor s"] / b.amount)
        for a, b in zip(before.rounds, after.rounds, strict=True)
    )
    ratio, low, high = statistics.median(after.ratios), min(after.ratios), max(after.ratios)
    return f"{subject:<8} {ratio:.3f} ({low:.3f} to {high:.3f}); by processor time {work:.3f}"


def main() -> None:
    parser = jobs.make_parser(__doc__, rounds=5)
    add = parser.add_argument
    add("--before", type=pathlib.Path, required=True, help="the other checkout")
    add("--after", type=pathlib.Path, default=ROOT, help="default: this checkout")
    add("--subjects", nargs="+", choices=jobs.SUBJECTS, default=list(jobs.SUBJECTS))
    args = parser.parse_args()
    told: dict[str, str] = {}
    tables: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        work_dir = pathlib.Path(name)
        inputs = jobs.write_inputs(work_dir, args.sentences, args.contexts)
        checkouts = {
            side: jobs.Checkout(getattr(args, side), work_dir / side, args.encoder)
            for side in ("before", "after")
        }

        for subject in args.subjects:
            print(subject, flush=True)

            def keep(rows: list[measure.Row], subject: str = subject) -> None:
                told[subject] = describe_ratio(subject, *rows)
                tables[subject] = measure.make_table(subject, jobs.SUBJECTS[subject], rows)
                notes = [f"After, as a ratio to before: {line}" for line in told.values()]
                measure.tell(args.output, "Two checkouts", list(tables.values()), *notes)

            cases = [
                checkout.case(side, subject, inputs, args) for side, checkout in checkouts.items()
            ]
            measure.run_rounds(cases, args.rounds, tell=keep)

    print("\nspeed of this checkout as a ratio to the other's:", *told.values(), sep="\n")


if __name__ == "__main__":
    main()
