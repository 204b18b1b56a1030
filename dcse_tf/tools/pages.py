"""HTML pages from the templates beside this file. A page loads nothing from elsewhere."""

from typing import Any

import jinja2

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("dcse_tf.tools"),
    autoescape=True,  # texts and names of a corpus can be anything
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.globals["number"] = format


def render_page(template: str, **values: Any) -> str:
    """Fills in a template.

    Args:
        template: name of the file, such as "explanation.html.j2".
        values: what it names; `number(value, spec)` formats a number in it.
    """
    return _TEMPLATES.get_template(template).render(values)
