"""What the benchmarks share: cases run by turns, the ratio within a round, the table, the JSON.

A machine's speed comes and goes. So the cases take turns, round after round, and what is
compared is the ratio within a round: its median over the rounds is what counts, not the rates.
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
# Before the benchmark's own work. Other work takes more from a case whose threads wait for one
# another than from one whose threads do not: then even ratios are not to be trusted.
LOAD_BEFORE = os.getloadavg()[0]
LOAD_ALLOWED = 0.5


@dataclasses.dataclass(frozen=True)
class Round:
    """What a case did in one round, and in how many seconds.

    Attributes:
        seconds: wall time.
        counts: amounts done, by unit: {"samples": 16, "tokens": 812}.
        more: other figures to show, such as the peak of the memory.
    """

    seconds: float
    counts: dict[str, float]
    more: dict[str, float] = dataclasses.field(default_factory=dict)

    def rate(self, unit: str) -> float:
        return self.counts[unit] / self.seconds


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to be measured.

    Attributes:
        name: for the table.
        unit: the count that makes its rate.
        run: does one round.
    """

    name: str
    unit: str
    run: Callable[[], Round]


@dataclasses.dataclass(frozen=True)
class Row:
    """A case over all rounds.

    Attributes:
        rate, low, high: units a second: median, least and greatest.
        ratio, ratio_low, ratio_high: to the base, of a round to a round: median, least, greatest.
        more: the medians of the other rates and figures.
        rounds: as measured.
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
    """The `run` of a case whose amounts are known before; the function waits for its result."""

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
    """Every case once a round; the warm-up's rounds are left out.

    The order is turned around every other round, so that no case always comes after another. The
    first case is the base of the ratios.

    Args:
        cases: what to measure.
        rounds: how often.
        warm_up: rounds before, which do not count.
        tell: is called after every round with the rows so far.
    """
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
    """The table: rate and ratio to the first, each as its median with the spread."""
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
    """Rows of cells in columns; all but the first and the last are aligned on the right."""
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
    text = json.dumps(record, indent=2, default=dataclasses.asdict)
    path.write_text(text + "\n", encoding="utf-8")


def cpu_model() -> str:
    """The CPU as Linux names it, or as Python knows it elsewhere."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
