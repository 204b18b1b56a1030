"""A self-contained HTML page: its frame, tables, and drawings."""

import html
import io
import warnings
from collections.abc import Sequence

import matplotlib
import matplotlib.figure

# Letters stay text, for which the browser has fonts; "$" begins no formula; equal drawings have
# equal names inside.
_DRAWING = {"svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "dcse_tf"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em;
       overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { text-align: left; padding: .2em 1em .2em 0; border-bottom: 1px solid #ddd; }
svg { max-width: 100%; height: auto; }
"""


def render_page(title: str, parts: Sequence[str], style: str = "") -> str:
    """A page of parts that are HTML already; `style` is added to the page's own."""
    body = "\n".join(parts)
    name = html.escape(title)
    head = f'<meta charset="utf-8"><title>{name}</title><style>{_STYLE}{style}</style>'
    return f"<!doctype html><html><head>{head}</head><body>\n{body}\n</body></html>\n"


def render_table(rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, the first row being its head."""
    lines = []
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        lines.append("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row))
    return "<table>" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def make_figure(height: float) -> tuple:
    """A figure of 8 by `height` inches, and its axes."""
    # Without pyplot there is no global state and no display to look for.
    with matplotlib.rc_context(_DRAWING):
        figure = matplotlib.figure.Figure(figsize=(8, height), layout="constrained")
        axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def to_svg(figure: matplotlib.figure.Figure) -> str:
    """The drawing as an element of a page."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_DRAWING), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawing = buffer.getvalue()
    return drawing[drawing.index("<svg") :]
