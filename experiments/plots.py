"""Plots an experiment's results: bars by model, or lines over the varied setting."""

import pathlib

import matplotlib
import matplotlib.axes
import matplotlib.figure
from report import TITLES, Line, Report

from dcse_tf.files import atomic_file

# The scores of each column, of which the first available one is shown: those of the papers'
# figures or, for grouped candidates, R@1 and MRR.
_SHOWN = (("spearman", "r1"), ("map", "mrr"))
_DRAWING = {"text.parse_math": False}


def write_plot(path: pathlib.Path, report: Report) -> None:
    """Writes a PNG with a row per set and a column per score, with 95% intervals.

    The paper's scores are grey.
    """
    count, tallest = len(report.sets), max(map(len, report.sets.values()))
    height = 2.8 if report.axis else 0.8 + 0.3 * tallest
    # Without pyplot, there is no global state and no display is needed.
    with matplotlib.rc_context(_DRAWING):
        figure = matplotlib.figure.Figure(figsize=(10, height * count), layout="constrained")
        grid = figure.subplots(count, len(_SHOWN), squeeze=False)
        for axes_row, (title, lines) in zip(grid, report.sets.items(), strict=True):
            for axes, names in zip(axes_row, _SHOWN, strict=True):
                name = next((name for name in names if name in lines[0].scores), "")
                if not name:
                    axes.set_axis_off()
                    continue
                axes.set_title(f"{title}: {TITLES[name]}")
                axes.spines[["top", "right"]].set_visible(False)
                if report.axis:
                    _draw_lines(axes, lines, name)
                    axes.set_xlabel(report.axis)
                else:
                    _draw_bars(axes, lines, name)
        with atomic_file(path) as partial:
            figure.savefig(partial, format="png", dpi=120, metadata={"Software": None})


def _draw_bars(axes: matplotlib.axes.Axes, lines: list[Line], name: str) -> None:
    labels = [line.label for line in lines]
    means = [line.scores[name].mean for line in lines]
    axes.barh(labels, means, xerr=_errors(lines, name), color="#3a6ea5", ecolor="#222222")
    given = [line for line in lines if name in line.paper]
    if given:
        values = [line.paper[name] for line in given]
        axes.plot(
            values, [line.label for line in given], "|", color="#888888", ms=12, label="paper"
        )
        axes.legend(frameon=False, fontsize="small")
    axes.invert_yaxis()


def _draw_lines(axes: matplotlib.axes.Axes, lines: list[Line], name: str) -> None:
    for series in dict.fromkeys(line.series for line in lines):
        points = sorted((line for line in lines if line.series == series), key=lambda p: p.x or 0)
        xs = [point.x for point in points]
        means = [point.scores[name].mean for point in points]
        axes.errorbar(xs, means, yerr=_errors(points, name), marker="o", capsize=3, label=series)
        given = [point for point in points if name in point.paper]
        if given:
            values = [point.paper[name] for point in given]
            axes.plot(
                [point.x for point in given],
                values,
                "--",
                color="#888888",
                label=f"{series}, paper",
            )
    axes.legend(frameon=False, fontsize="small")


def _errors(lines: list[Line], name: str) -> list[list[float]]:
    """Distances from the mean down and up to the interval's ends; 0 without an interval."""
    scores = [line.scores[name] for line in lines]
    # A percentile interval need not contain the score itself.
    down = [max(0.0, s.mean - s.low) if s.low is not None else 0.0 for s in scores]
    up = [max(0.0, s.high - s.mean) if s.high is not None else 0.0 for s in scores]
    return [down, up]
