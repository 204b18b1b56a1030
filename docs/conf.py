"""The documentation's site: `sphinx-build -W -b html docs docs/_build/html`."""

import dataclasses
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

project = "dcse_tf"
author = "The authors of dcse_tf"
copyright = author
_version = re.search(r'__version__ = "(.+)"', (ROOT / "dcse_tf/__init__.py").read_text())
assert _version
version = release = _version[1]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# What stands between single backticks in a docstring is code.
default_role = "literal"

# Quotation marks in what is to be typed stay as they are.
smartquotes = False

html_theme = "furo"
html_title = "dcse_tf"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# Without this a code block that names no language is taken for Python.
highlight_language = "text"


def show_notebook(app: object, name: str, source: list[str]) -> None:
    """Turns a notebook into Markdown, cell by cell; other pages stay as they are."""
    if not source[0].startswith("{"):
        return

    parts = []
    for cell in json.loads(source[0])["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            printed = "".join(output.get("text") or output.get("data", {}).get("text/plain", []))
            if printed:
                parts.append(f"```text\n{printed.rstrip()}\n```")
    source[0] = "\n\n".join(parts) + "\n"


def list_options(app: object, name: str, source: list[str]) -> None:
    """Adds to the page of options a table for every job, from the fields that the flags are of."""
    if name != "options":
        return

    from dcse_tf.cli.commands import JOBS, list_options

    for title, kind in list_options():
        if kind.choice()[0]:  # its tasks or baselines follow, each with all of its options
            continue
        rows = ["| option | default | |", "|---|---|---|"]
        for field in dataclasses.fields(kind):
            default = "required" if field.metadata["required"] else _show(field.default)
            text = re.sub(r"([|*<\[{]|\b_|_\b)", r"\\\1", field.metadata["help"])
            if field.metadata["choices"]:
                text += f" One of: {', '.join(field.metadata['choices'])}."
            rows.append(f"| `{field.name}` | {default} | {text} |")
        source[0] += (
            f"\n## {title}\n\n{JOBS[title.split()[0]].summary}\n\n" + "\n".join(rows) + "\n"
        )


def _show(default: object) -> str:
    if default in (None, "", ()):
        return ""
    return ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def mark_examples(app, what, name, thing, options, lines: list[str]) -> None:  # type: ignore[no-untyped-def]
    """Marks code in a docstring, which is indented after an empty line, as a literal block."""
    marked: list[str] = []
    for number, line in enumerate(lines):
        begins = line.startswith("    ") and number > 1 and not lines[number - 1]
        if begins and lines[number - 2] and not lines[number - 2].startswith(" "):
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


def setup(app: object) -> None:
    # Before the docstring's sections are read, which comes at the usual priority, 500.
    app.connect("autodoc-process-docstring", mark_examples, priority=400)  # type: ignore[attr-defined]
    app.connect("source-read", show_notebook)  # type: ignore[attr-defined]
    app.connect("source-read", list_options)  # type: ignore[attr-defined]
