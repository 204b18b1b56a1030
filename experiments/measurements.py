"""Writes the page of measurements, docs/measurements.md, from the reports in experiments/results.

    python experiments/measurements.py

A report is what an experiment or a benchmark writes with its command and its commit. To add one,
copy its JSON to experiments/results and name it here. The page begins with results/head.md.
"""

import json
import pathlib

import report
from runs import ROOT

RESULTS = ROOT / "experiments/results"
PAGE = ROOT / "docs/measurements.md"
# Section -> reports, in the order of the page.
SECTIONS = {
    "Quality": "demo in_domain in_domain_parts table2_e5 settings_small selection_table1 "
    "two_stages",
    "Speed": "train rerank embed serve",
    "Guarantees": "kills",
}


def make_page() -> str:
    """The page, from the reports."""
    parts = [(RESULTS / "head.md").read_text(encoding="utf-8")]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        for name in names.split():
            content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
            parts.append(report.format_report(content, level=3))
    return "\n".join(parts)


if __name__ == "__main__":
    pathlib.Path(PAGE).write_text(make_page(), encoding="utf-8")
