"""Writes the page of measurements, docs/measurements.md, from the reports in experiments/results.

    python experiments/measurements.py

A report is what an experiment or a benchmark writes with its command and its commit. To add one,
copy its JSON to experiments/results and name it here.
"""

import json
import pathlib

import report
from runs import ROOT

RESULTS = ROOT / "experiments/results"
PAGE = ROOT / "docs/measurements.md"
# Section -> reports, in the order of the page.
SECTIONS = {
    "Quality": (
        "demo",
        "in_domain",
        "in_domain_parts",
        "steps",
        "table2_e5",
        "table2_small",
        "settings_small",
        "selection_table1",
        "selection_long",
        "selection_table2",
        "selection_figure3",
        "selection_chance",
        "two_stages",
    ),
    "Speed": (
        "train",
        "memory",
        "rerank",
        "embed",
        "eight_bits",
        "dimensions",
        "serve",
        "workers",
        "gpu",
    ),
    "Data and guarantees": ("tokens", "kills"),
}
_HEAD = """# Measurements

What was measured of the code as it is today: each table with its command and the commit that
printed it. This page is written by `experiments/measurements.py` from the reports in
`experiments/results`.

- Percentages, unless a column says otherwise. In brackets are 95% intervals, by bootstrap over the
  items of a set. p is corrected after Holm. "Correlation" is Spearman's.
- **Which turns a context holds**: R@1 and MRR of responses are by the turns *before* the response.
  Where it is said to be *bidirectional*, as in the paper, up to three turns after it are read too,
  which nobody has who chooses a response; they often repeat it, so such figures are too high for
  that use.
- Commands are written as they were typed at their commit; flags and scripts may have other names
  today.
- Machines have 2 CPU cores and no GPU unless it is said. Many tables have one seed or three: small
  differences may be those of another seed.
- Commit 162b683 has the page before this one, with every figure of what was
  [tried and left out](tried.md), of faults that were mended, and of older versions.
"""


def make_page() -> str:
    """The page, from the reports."""
    parts = [_HEAD]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        for name in names:
            content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
            parts.append(report.format_report(content, level=3))
    return "\n".join(parts)


if __name__ == "__main__":
    pathlib.Path(PAGE).write_text(make_page(), encoding="utf-8")
