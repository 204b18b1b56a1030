"""The documentation's site: `sphinx-build -W -b html docs docs/_build/html`."""

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


def setup(app: object) -> None:
    app.connect("source-read", show_notebook)  # type: ignore[attr-defined]
