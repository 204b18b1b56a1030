"""What the benchmarks share: cases that take turns, ratios within a round, tables, JSON.

A machine's speed varies over time. So the cases take turns, round after round, and are compared by
their ratio within a round: the result is the median ratio over rounds, not the rates.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

PACKAGES = ("tensorflow", "tensorflow-text", "keras", "keras-hub", "numpy")
# Measured before the benchmark's own work. Other work slows a case whose threads wait for one
# another more than others; then not even the ratios can be trusted.
LOAD_BEFORE = os.getloadavg()[0]
LOAD_ALLOWED = 0.5

# What to tell of a processor, and the flags of /proc/cpuinfo that stand for it.
_INSTRUCTIONS = {
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "bfloat16": {"avx512_bf16", "amx_bf16"},
}


@dataclasses.dataclass(frozen=True)
class Round:
    """What a case did in one round, and the time it took.

    Attributes:
        seconds: wall time.
        counts: unit -> amount done, such as {"samples": 16, "tokens": 812}.
        more: other figures to show, such as peak memory.
    """

    seconds: float
    counts: dict[str, float]
    more: dict[str, float] = dataclasses.field(default_factory=dict)

    def rate(self, unit: str) -> float:
        return self.counts[unit] / self.seconds


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to measure.

    Attributes:
        name: the name in the table.
        unit: the unit of its rate, a key of `Round.counts`.
        run: runs one round.
    """

    name: str
    unit: str
    run: Callable[[], Round]


@dataclasses.dataclass(frozen=True)
class Row:
    """A case over all rounds.

    Attributes:
        name, unit: as in `Case`.
        rate, low, high: units per second: median, minimum and maximum over rounds.
        ratio, ratio_low, ratio_high: rate relative to the base in the same round: median, minimum
            and maximum.
        more: the medians of the other rates and figures.
        rounds: all measured rounds.
    """

    name: str
    unit: str
    rate: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    more: dict[str, float]
    rounds: list[Round]


def timed(function: Callable[[], Any], **counts: float) -> Callable[[], Round]:
    """Makes the `run` of a case with known amounts; the function must wait for its result."""

    def run() -> Round:
        started = time.perf_counter()
        function()
        return Round(time.perf_counter() - started, counts)

    return run


def run_rounds(
    cases: Sequence[Case],
    rounds: int,
    warm_up: int = 0,
    tell: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """Runs every case once per round, and summarises each over the rounds.

    The order is reversed every other round, so that no case always runs after another. The first
    case is the base of the ratios.

    Args:
        cases: what to measure.
        rounds: number of rounds.
        warm_up: number of rounds before, which do not count.
        tell: called after every round with the rows so far.
    """
    print(", ".join(f"{name}: {value}" for name, value in describe_processor().items()))
    if LOAD_BEFORE > LOAD_ALLOWED:
        print(f"warning: load {LOAD_BEFORE:.1f} before the start: other work distorts the ratios")
    results: list[list[Round]] = [[] for _ in cases]
    rows: list[Row] = []
    for number in range(warm_up + rounds):
        order = list(enumerate(cases))[:: -1 if number % 2 else 1]
        for place, case in order:
            result = case.run()
            if number >= warm_up:
                results[place].append(result)
                rate = f"{_figure(result.rate(case.unit))} {case.unit}/s"
                print(f"  round {number - warm_up + 1}: {case.name}: {rate}", flush=True)
        if number >= warm_up:
            rows = [_summarize(*pair, results[0]) for pair in zip(cases, results, strict=True)]
            tell(rows)
    return rows


def _summarize(case: Case, rounds: list[Round], base: list[Round]) -> Row:
    rates = [each.rate(case.unit) for each in rounds]
    ratios = [own / other.rate(case.unit) for own, other in zip(rates, base, strict=True)]
    others = {
        f"{unit}/s": statistics.median(each.rate(unit) for each in rounds)
        for unit in rounds[0].counts
        if unit != case.unit
    }
    more = {name: statistics.median(each.more[name] for each in rounds) for name in rounds[0].more}
    return Row(
        case.name,
        case.unit,
        *_spread(rates),
        *_spread(ratios),
        {**others, **more},
        list(rounds),
    )


def _spread(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def format_rows(rows: Sequence[Row]) -> str:
    """Formats the table: rate and ratio to the first row, as median and spread."""
    lines = [["", "median a second", "spread", f"times {rows[0].name}", "spread", "also"]]
    for row in rows:
        lines.append(
            [
                row.name,
                f"{_figure(row.rate)} {row.unit}",
                f"{_figure(row.low)} - {_figure(row.high)}",
                f"{row.ratio:.3f}",
                f"{row.ratio_low:.3f} - {row.ratio_high:.3f}",
                ", ".join(f"{name} {_figure(value)}" for name, value in row.more.items()),
            ]
        )
    return format_table(lines)


def format_table(lines: Sequence[Sequence[str]]) -> str:
    """Aligns rows of cells in columns; all but the first and last column are right-aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 0 < i < len(line) - 1 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def make_parser(description: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """Makes a parser with the arguments of every benchmark, --rounds and --output."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=at_least_one, default=rounds, help="default: %(default)s")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file to write")
    return parser


def at_least_one(text: str) -> int:
    """Parses a count, a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


def write_json(path: pathlib.Path | None, results: Any, **more: Any) -> None:
    """Writes the results and how they were obtained; does nothing without a path."""
    if path is None:
        return
    record = {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        **describe_processor(),
        "load_before": LOAD_BEFORE,
        **more,
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=2, default=dataclasses.asdict)
    path.write_text(text + "\n", encoding="utf-8")


def describe_processor() -> dict[str, Any]:
    """The CPU's name and number of cores, and which instructions it has that decide the speed of
    matrix products; on Linux, elsewhere without the instructions.
    """
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {"cpu": platform.processor(), "cores": os.cpu_count()}
    found = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in text.splitlines())
    }
    flags = set(found.get("flags", "").split())
    return {
        "cpu": found.get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "instructions": {name: bool(flags & known) for name, known in _INSTRUCTIONS.items()},
    }
