"""Renders the HTML templates beside this file. The pages are self-contained."""

from typing import Any

import jinja2

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("dcse_tf.inspecting"),
    autoescape=True,  # texts and names of a corpus can be anything
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.globals["number"] = format


def render_page(template: str, **values: Any) -> str:
    """Renders a template.

    Args:
        template: the name of the file, such as "explanation.html.j2".
        values: the template's variables. `number(value, spec)` formats numbers in a template.
    """
    return _TEMPLATES.get_template(template).render(values)
