"""What the benchmarks share: cases run by turns, the machine's matrix rate, FLOPs, the report.

A machine's speed comes and goes. So the cases take turns, round after round, and what is
compared is the ratio within a round: its median over the rounds is what counts, not the rates.
"""

import argparse
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

PACKAGES = ("tensorflow", "tensorflow-text", "keras", "keras-hub", "numpy")
MATRIX_SIZE = 2048
# Before the benchmark's own work. Beside other work PyTorch's threads, which wait for one another,
# lose more than TensorFlow's, which take what is left: then even ratios are not to be trusted.
LOAD_BEFORE = os.getloadavg()[0]
LOAD_ALLOWED = 0.5


@dataclasses.dataclass(frozen=True)
class Round:
    """What a case did in one round, and in how many seconds.

    Attributes:
        seconds: wall time.
        counts: amounts done, by unit: {"samples": 16, "tokens": 812}.
    """

    seconds: float
    counts: dict[str, float]

    def rate(self, unit: str) -> float:
        return self.counts[unit] / self.seconds


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to be measured.

    Attributes:
        name: for the table.
        run: does one round.
        unit: the count that makes its rate.
        flops: the least that a unit takes, for the share of the matrix rate; 0: not known.
    """

    name: str
    run: Callable[[], Round]
    unit: str
    flops: float = 0.0


def timed(function: Callable[[], Any], **counts: float) -> Callable[[], Round]:
    """The `run` of a case whose amounts are known before; the function waits for its result."""

    def run() -> Round:
        started = time.perf_counter()
        function()
        return Round(time.perf_counter() - started, counts)

    return run


def matrix_case(size: int = MATRIX_SIZE, repeats: int = 5) -> Case:
    """The machine's arithmetic: float32 products of square matrices in TensorFlow, GFLOP/s."""
    import tensorflow as tf

    matrix = tf.random.stateless_uniform([size, size], [0, 0])
    product = tf.function(lambda: tf.reduce_sum(tf.linalg.matmul(matrix, matrix)))

    def run() -> Round:
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            product().numpy()
            seconds.append(time.perf_counter() - started)
        return Round(statistics.median(seconds), {"GFLOP": 2 * size**3 / 1e9})

    return Case(f"matrix product {size}", run, "GFLOP")


def run_rounds(cases: Sequence[Case], rounds: int, warm_up: int = 1) -> dict[str, list[Round]]:
    """Every case once a round, in their order; the warm-up's rounds are left out."""
    _warn_if_busy()
    results: dict[str, list[Round]] = {case.name: [] for case in cases}
    if len(results) < len(cases):
        raise ValueError(f"two cases of one name: {[case.name for case in cases]}")
    for number in range(warm_up + rounds):
        for case in cases:
            result = case.run()
            if number >= warm_up:
                results[case.name].append(result)
    return results


@functools.cache  # once a run
def _warn_if_busy() -> None:
    if LOAD_BEFORE > LOAD_ALLOWED:
        print(f"warning: load {LOAD_BEFORE:.1f} before the start: other work distorts the ratios")


def median_ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """The median over the rounds of a round's own ratio."""
    return statistics.median(a / b for a, b in zip(values, base, strict=True))


def summarize(
    cases: Sequence[Case], results: dict[str, list[Round]], base: str, matrix: str = ""
) -> list[dict[str, Any]]:
    """A row for every case.

    Args:
        cases: the cases.
        results: from `run_rounds`.
        base: the case whose rate the others are divided by.
        matrix: the case of the matrix rate, for the share; "" without.

    Returns:
        For every case name, unit; rate, low and high (units a second: median, least, greatest);
        ratio (to the base, of a unit to a unit); share (of the matrix rate; None where FLOPs are
        not known); rates, the medians by count; rounds, as measured.
    """
    by_name = {case.name: case for case in cases}
    rates = {k: [r.rate(by_name[k].unit) for r in rounds] for k, rounds in results.items()}
    rows = []
    for case in cases:
        own = rates[case.name]
        share = None
        if matrix and case.flops:
            share = median_ratio([rate * case.flops / 1e9 for rate in own], rates[matrix])
        counts = results[case.name][0].counts
        rows.append(
            {
                "name": case.name,
                "unit": case.unit,
                "rate": statistics.median(own),
                "low": min(own),
                "high": max(own),
                "ratio": median_ratio(own, rates[base])
                if case.unit == by_name[base].unit
                else None,
                "flops_per_unit": case.flops or None,
                "share": share,
                "rates": {
                    unit: statistics.median(r.rate(unit) for r in results[case.name])
                    for unit in counts
                },
                "rounds": [dataclasses.asdict(r) for r in results[case.name]],
            }
        )
    return rows


def format_rows(rows: Sequence[dict[str, Any]], base: str) -> str:
    """The table: median and spread of the rate, other rates, ratio to the base, share."""
    lines = [["", "median a second", "spread", f"times {base}", "share of matrix rate", "also"]]
    for row in rows:
        others = {unit: rate for unit, rate in row["rates"].items() if unit != row["unit"]}
        lines.append(
            [
                row["name"],
                f"{_figure(row['rate'])} {row['unit']}",
                f"{_figure(row['low'])} - {_figure(row['high'])}",
                "" if row["ratio"] is None else f"{row['ratio']:.2f}",
                "" if row["share"] is None else f"{row['share']:.0%}",
                ", ".join(f"{_figure(rate)} {unit}/s" for unit, rate in others.items()),
            ]
        )
    return format_table(lines)


def format_table(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells under one another: the first column left, the others right."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bert_flops(config: dict[str, Any], lengths: Iterable[int], trained_layers: int = 0) -> float:
    """Arithmetic of a BERT's matrix products: four projections, two feed-forward, attention.

    Args:
        config: config.json of the BERT.
        lengths: of every row, the tokens that attend to one another.
        trained_layers: layers, from the top, whose backward pass is counted too: twice the
            forward one, for the gradients of the activations and of the weights.

    Returns:
        FLOPs; a multiplication with its addition is two.
    """
    lengths = list(lengths)
    tokens, pairs = sum(lengths), sum(length * length for length in lengths)
    dim, inner = config["hidden_size"], config["intermediate_size"]
    layer = 2.0 * tokens * (4 * dim * dim + 2 * dim * inner) + 2.0 * 2 * pairs * dim
    return layer * (config["num_hidden_layers"] + 2 * trained_layers)


def make_parser(description: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """Arguments that every benchmark has: --rounds and --output."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=at_least_one, default=rounds, help="default: %(default)s")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file to write")
    return parser


def at_least_one(text: str) -> int:
    """An argument that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


def write_json(path: pathlib.Path | None, results: Any, **more: Any) -> None:
    """Writes the results and where they come from; nothing without a path."""
    if path is None:
        return
    record = {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load_before": LOAD_BEFORE,
        **more,
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}")


def cpu_model() -> str:
    """The CPU as Linux names it, or as Python knows it elsewhere."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
