"""What the benchmarks share: cases that take turns, ratios within a round, tables, JSON.

A machine's speed varies over time. So the cases take turns, round after round, and are compared by
their ratio within a round: the result is the median ratio over rounds, not the rates.
"""

import argparse
import dataclasses
import importlib.metadata
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

import report
import runs

from dcse_tf.files import write_record

PACKAGES = ("tensorflow", "tensorflow-text", "keras", "keras-hub", "numpy")
# Instructions that decide the speed of matrix products, and their flags in /proc/cpuinfo.
_INSTRUCTIONS = {
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "bfloat16": {"avx512_bf16", "amx_bf16"},
}
# Before the benchmark's own work. Other work slows a case whose threads wait for one another more
# than others; then not even the ratios can be trusted.
LOAD_BEFORE = os.getloadavg()[0]


@dataclasses.dataclass(frozen=True)
class Round:
    """What a case did in one round."""

    seconds: float  # wall time
    amount: float  # how much it did, in the unit of its case
    # Other figures to show, such as peak memory.
    more: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def rate(self) -> float:
        """The amount a second."""
        return self.amount / self.seconds


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to measure."""

    name: str  # in the table
    run: Callable[[], Round]  # runs one round


@dataclasses.dataclass(frozen=True)
class Row:
    """A case over all rounds."""

    name: str
    rounds: list[Round]  # the measured ones
    ratios: list[float]  # in each round the rate relative to that of the first case


def timed(function: Callable[[], Any]) -> Round:
    """The round of one call, which must wait for its result."""
    started = time.perf_counter()
    function()
    seconds = time.perf_counter() - started
    return Round(seconds, 1, {"seconds": seconds})


def run_rounds(
    cases: Sequence[Case],
    rounds: int,
    warm_up: int = 0,
    tell: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """Runs every case once a round.

    The order is reversed every other round, so that no case always runs after another.

    Args:
        cases: what to measure; the first is the base of the ratios.
        rounds: number of rounds.
        warm_up: number of rounds before, which do not count.
        tell: called after every round with the rows so far.
    """
    if LOAD_BEFORE > 0.5:
        print(f"warning: load {LOAD_BEFORE:.1f} before the start: other work distorts the ratios")
    results: list[list[Round]] = [[] for _ in cases]
    rows: list[Row] = []
    for number in range(warm_up + rounds):
        for place, case in list(enumerate(cases))[:: -1 if number % 2 else 1]:
            result = case.run()
            if number >= warm_up:
                results[place].append(result)
                at = number - warm_up + 1
                print(f"  round {at}: {case.name}: {figure(result.rate)} a second", flush=True)
        if number >= warm_up:
            base = results[0]
            rows = [
                Row(case.name, own, [a.rate / b.rate for a, b in zip(own, base, strict=True)])
                for case, own in zip(cases, results, strict=True)
            ]
            tell(rows)
    return rows


def make_table(title: str, unit: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The table of a report: medians, in brackets the smallest and the largest over rounds."""
    more = list(dict.fromkeys(name for row in rows for name in row.rounds[0].more))
    cells = []
    for row in rows:
        cells.append([row.name, spread([each.rate for each in row.rounds]), spread(row.ratios)])
        for name in more:
            values = [each.more[name] for each in row.rounds if name in each.more]
            cells[-1].append(figure(statistics.median(values)) if values else "")
    columns = ["", f"{unit} a second", f"times {rows[0].name}", *more]
    return {"title": title, "columns": columns, "rows": cells}


def spread(values: Sequence[float]) -> str:
    """The median, with the smallest and the largest if there are several."""
    middle = figure(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({figure(min(values))} to {figure(max(values))})"


def figure(value: float) -> str:
    """A number with three digits or, if it is larger, without decimals."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def make_parser(description: str | None, rounds: int = 3) -> argparse.ArgumentParser:
    """Makes a parser with the arguments of every benchmark."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rounds", type=int, default=rounds, help="default: %(default)s")
    add("--output", type=pathlib.Path, help="JSON file to write")
    add("--no_peers", action="store_true", help="measure without the PyTorch peers")
    environment = runs.ROOT / ".venv-peers"
    add("--peer_env", type=pathlib.Path, default=environment, help="their environment")
    return parser


def tell(path: pathlib.Path | None, title: str, tables: Sequence[Any], *notes: str) -> None:
    """Prints a report, and writes it if there is a path."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    found = {
        **report.describe_origin(title),
        "machine": describe_machine(),
        "notes": [*notes, f"Load before the start: {LOAD_BEFORE:.1f}. Versions: {versions}."],
        "tables": list(tables),
    }
    print(f"\n{report.format_report(found)}")
    if path:
        write_record(path, found, sort_keys=False)


def describe_machine() -> str:
    """The number of processors, their name, and which instructions they have; on Linux."""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    pairs = [line.partition(":")[::2] for line in text.splitlines()]
    found = {name.strip(): value.strip() for name, value in pairs}
    known = [x for x, of in _INSTRUCTIONS.items() if of & {*found.get("flags", "").split()}]
    return f"{os.cpu_count()} cores, {found.get('model name', '')}, {', '.join(known)}"
