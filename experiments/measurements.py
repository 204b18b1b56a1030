"""Writes docs/measurements.md and the README's picture from the reports in experiments/results.

    python experiments/measurements.py

A report is what an experiment or a benchmark writes with its command and its commit. To add one,
copy its JSON to experiments/results and name it here. The page begins with results/head.md.
"""

import json

import report
from runs import ROOT

RESULTS = ROOT / "experiments/results"
PAGE = ROOT / "docs/measurements.md"
PICTURE = ROOT / "docs/images/before_after.svg"
# Section -> reports, in the order of the page.
SECTIONS = {
    "Quality": "demo in_domain in_domain_parts table2_e5 settings_small selection_order "
    "selection_table1 mutual equal_minutes discovery",
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


def draw_bars() -> str:
    """The README's picture as SVG: scores before and after training on one's own dialogues."""
    content = json.loads((RESULTS / "in_domain.json").read_text(encoding="utf-8"))
    ranks, retrieval = content["tables"][:2]
    rows = {row[0]: row for row in retrieval["rows"]}
    untrained, trained = ranks["rows"]
    bars = {
        "search by intent (MAP)": (rows["MAP by intent"][2], rows["MAP by intent"][5]),
        "search by dialogue act (MAP)": (rows["MAP by act"][2], rows["MAP by act"][5]),
        "the right one of 10 responses (R@1)": (untrained[2], trained[1]),
    }
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 190" '
        'font-family="sans-serif" font-size="15">',
        '<rect width="760" height="190" fill="white"/>',
    ]
    for place, (title, values) in enumerate(bars.items()):
        top = 14 + 60 * place
        lines.append(f'<text x="310" y="{top + 26}" text-anchor="end">{title}</text>')
        for number, (value, color) in enumerate(zip(values, ("#b8c4d0", "#1f6fb2"), strict=True)):
            score = float(value.replace("*", "").split()[0])
            y = top + 22 * number
            lines.append(
                f'<rect x="320" y="{y}" width="{3.8 * score:.0f}" height="18" fill="{color}"/>'
            )
            word = ("before", "after")[number]
            lines.append(
                f'<text x="{328 + 3.8 * score:.0f}" y="{y + 14}">{score:.1f} {word}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
    PICTURE.write_text(draw_bars(), encoding="utf-8")
