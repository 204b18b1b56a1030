"""Writes docs/measurements.md and two pictures from the reports in experiments/results.

    python experiments/measurements.py

A report is what an experiment or a benchmark writes with its command and its commit. To add one,
copy its JSON to experiments/results and name it here. The page begins with results/head.md.
"""

import json
from typing import Any

import report
from runs import ROOT

RESULTS = ROOT / "experiments/results"
PAGE = ROOT / "docs/measurements.md"
IMAGES = ROOT / "docs/images"
_COLORS = "#b8c4d0", "#1f6fb2"  # before and after a training
# Section -> reports, in the order of the page.
SECTIONS = {
    "Quality": "demo in_domain in_domain_parts table2_e5 settings_small selection_order "
    "mutual equal_minutes discovery",
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


def draw_bars() -> None:
    """The README's picture: scores before and after training on one's own dialogues."""
    content = json.loads((RESULTS / "in_domain.json").read_text(encoding="utf-8"))
    ranks, retrieval = content["tables"]
    rows = {row[0]: row for row in retrieval["rows"]}
    before, after = rows["untrained"], rows["600 steps"]
    untrained, trained = ranks["rows"]
    bars = {
        "search by intent (MAP)": (before[1], after[1]),
        "search by dialogue act (MAP)": (before[2], after[2]),
        "the right one of 10 responses (R@1)": (untrained[2], trained[1]),
    }
    axes = _start(9, 2.4).subplots()
    for place, values in enumerate(bars.values()):
        for number, word in enumerate(("before", "after")):
            score = float(values[number].replace("*", "").split()[0])
            shown = axes.barh(place + 0.4 * number, score, 0.38, color=_COLORS[number])
            axes.bar_label(shown, [f"{score:.1f} {word}"], padding=4)
    axes.set_yticks([0.2, 1.2, 2.2], bars)
    axes.set(xlim=(0, 100), xticks=[])
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.figure.savefig(IMAGES / "before_after.svg", metadata={"Date": None})


def draw_times() -> None:
    """How well responses are chosen, by the milliseconds that a query takes."""
    content = json.loads((RESULTS / "equal_minutes.json").read_text(encoding="utf-8"))
    rows = [[cell.replace("*", "") for cell in row] for row in content["tables"][0]["rows"]]
    figure = _start(9, 3)
    panels = {"R@1 of 10 candidates (%)": (2, 3), "MRR of 1,000 candidates (%)": (4, 5)}
    for axes, (title, columns) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        axes.set(title=title, xlabel="milliseconds a query", xscale="log", xlim=(10, 2e5))
        for name, score, time in ((row[0], *map(row.__getitem__, columns)) for row in rows):
            if time:
                point = float(time.replace(",", "")), float(score.split()[0])
                axes.plot(*point, "o", color=_COLORS[1])
                shown = f"{name.partition(',')[0].strip('`')}: {point[1]}"
                axes.annotate(shown, point, (8, -4), textcoords="offset points")
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    figure.savefig(IMAGES / "choosing.svg", metadata={"Date": None})


def _start(width: float, height: float) -> Any:
    """A figure of a size in inches, whose file is the same every time."""
    import matplotlib.figure

    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "dcse_tf"}
    return matplotlib.figure.Figure(figsize=(width, height), layout="constrained")


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
    draw_bars()
    draw_times()
