"""HTML pages of tables. They are self-contained."""

from collections.abc import Sequence
from typing import NamedTuple

import jinja2


class Table(NamedTuple):
    """A table of texts, any texts, of which the first row is the header."""

    rows: Sequence[Sequence[str]]
    caption: str = ""
    colors: Sequence[Sequence[str]] = ()  # the CSS colour of each cell below the header, if any


def render_page(title: str, tables: Sequence[Table], summary: str = "") -> str:
    """A page of a heading, a summary and tables; title and summary may be any texts."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dcse_tf.inspecting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    template = environment.get_template("tables.html.j2")
    return template.render(title=title, tables=tables, summary=summary)
