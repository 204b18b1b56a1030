"""The notebook runs from its first cell to its last, as a person would run it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


def test_the_notebook_runs(tmp_path):
    """In a process of its own, whose working folder it leaves as it was."""
    cells = json.loads((ROOT / "docs/notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()

    run = subprocess.run(
        [sys.executable, "-c", "\n\n".join(code)],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert run.returncode == 0, run.stderr[-2000:]
    assert "(3, 128)" in run.stdout  # three sentences by the width of the tiny encoder
    assert list(here.iterdir()) == []
