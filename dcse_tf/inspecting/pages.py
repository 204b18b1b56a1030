"""HTML pages of tables. They are self-contained."""

import html
from collections.abc import Sequence

_STYLE = """body{font:15px sans-serif;margin:2em;max-width:80em}
table{border-collapse:collapse;margin:1em 0}caption{text-align:left;font-weight:bold}
th,td{padding:.2em .7em;text-align:left;border-bottom:1px solid #ddd}"""


def render_page(title: str, *parts: str) -> str:
    """A page of a heading and parts of HTML; the title may be any text."""
    heading = html.escape(title)
    return (
        f"<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>{heading}</title>\n"
        f"<style>{_STYLE}</style>\n<h1>{heading}</h1>\n" + "\n".join(parts) + "\n</html>\n"
    )


def render_table(
    rows: Sequence[Sequence[str]], caption: str = "", colors: Sequence[Sequence[str]] = ()
) -> str:
    """A table of texts; the first row is its header.

    Args:
        rows: the cells, any texts.
        caption: a title above the table.
        colors: the CSS colour of each cell below the header; empty for none.
    """
    lines = [f"<table><caption>{html.escape(caption)}</caption>"]
    for number, row in enumerate(rows):
        kind = "td" if number else "th"
        shades = colors[number - 1] if number and colors else [""] * len(row)
        cells = (
            f"<{kind} style='background:{shade}'>" if shade else f"<{kind}>" for shade in shades
        )
        texts = (f"{cell}{html.escape(text)}</{kind}>" for cell, text in zip(cells, row))
        lines.append(f"<tr>{''.join(texts)}</tr>")
    return "\n".join([*lines, "</table>"])
