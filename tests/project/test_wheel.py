"""The package as it is installed: a wheel, used in a directory that has nothing else of it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel's contents alone, built from a copy that leaves the clone clean."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("dcse_tf", "flags"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=unwanted)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", "."]
    subprocess.run([*pip, *build], cwd=folder / "source", check=True)
    (wheel,) = folder.glob("*.whl")
    install = ["install", "--no-deps", f"--target={folder / 'installed'}", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    shutil.rmtree(folder / "source")
    return folder / "installed"


@pytest.fixture
def use(installed, tmp_path):
    """Runs a command in an empty directory, where the wheel is the only dcse_tf there is."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "TMPDIR": str(tmp_path)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    (tmp_path / "here").mkdir()

    def run(*command):
        return subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=tmp_path / "here",
            env=environment,
            capture_output=True,
            text=True,
        )

    return run


def test_the_console_script_has_help_and_presets(installed, use):
    script = installed / "bin/dcse"
    listed = use(script, "presets").stdout
    presets = {path.relative_to(ROOT / "flags") for path in (ROOT / "flags").rglob("*.flags")}
    for path in presets:
        assert f"  {path.with_suffix('').as_posix()} " in listed
    # The settings were understood, of a file that names another; what only the user has is missing.
    done = use(script, "train", "--preset=ecd/dialogue_cse")
    assert done.stderr.startswith("error: --data_dir is required")


def test_the_notebook_prepares_trains_evaluates_and_embeds(use, tmp_path):
    """In a process of its own, whose working folder it leaves as it was."""
    cells = json.loads((ROOT / "docs/notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    done = use("-c", "\n\n".join([*code, "print(dcse_tf.__file__)"]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("installed/dcse_tf/__init__.py")
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    shown = "".join(text for output in outputs for text in output["text"])
    assert done.stdout.splitlines()[0] == shown.splitlines()[0]  # {'train': ...
    names = [re.findall(r"^\w+: ", text, re.MULTILINE) for text in (shown, done.stdout)]
    assert names[0] == names[1]  # the scores, whose values differ between machines
    assert re.search(r"^kept: step \d+ of 20, dev/", done.stdout, re.MULTILINE)
    assert "(3, 128)" in done.stdout  # three sentences by the width of the tiny encoder
    assert list((tmp_path / "here").iterdir()) == []
    # Every line is the package's, but for what TensorFlow says while its libraries are loaded.
    lines = [
        x for x in done.stderr.splitlines() if not re.match(r"[IWE]\d{4} |WARNING: All log", x)
    ]
    assert len(done.stderr.splitlines()) - len(lines) <= 10
    assert any("20 of 20 steps" in line for line in lines)
    ours = r"\d\d:\d\d:\d\d \S|  dev/\w+ "  # a message, or a row of its table
    assert all(re.match(ours, line) for line in lines), done.stderr
