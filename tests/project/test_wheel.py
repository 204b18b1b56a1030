"""The package as it is installed: a wheel, used in a directory that has nothing else of it."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]

NOTEBOOK = """
import numpy as np, dcse_tf
assert "installed" in dcse_tf.__file__
manifest = dcse_tf.prepare_data(
    preset="debug", format="jsonl", input="dialogues.jsonl", vocab_size=200, output_dir="data",
    dev_fraction=0.2, test_fraction=0.2,
)
outcome = dcse_tf.train(
    preset=["recommended", "debug"], data_dir="data", encoder_size="tiny", run_dir="run", steps=2,
    freeze_layers=0, freeze_embeddings=False, eval_every=2, dev_samples=4,
)
results = dcse_tf.evaluate(preset="debug", model="run", response_selection="data/test.jsonl")
embeddings = dcse_tf.SentenceEncoder.load("run").encode(["where is my parcel", "it left today"])
print(manifest.splits["train"].sessions, outcome.kept.step, len(results), embeddings.shape)
"""


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
def use(installed, tmp_path, monkeypatch):
    """Runs a command in an empty directory, where the wheel is the only dcse_tf there is."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)

    def run(*command):
        return subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=tmp_path,
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


def test_a_session_in_python_prepares_trains_evaluates_and_embeds(use, tmp_path, dialogues_file):
    shutil.copy(dialogues_file, tmp_path)
    done = use("-c", NOTEBOOK)
    assert done.returncode == 0, done.stderr
    train, kept, results, *shape = done.stdout.split()
    assert int(train) > 40
    assert int(kept) <= 2
    assert int(results) == 4  # by the matching and by the cosine, each with both contexts
    assert "".join(shape) == "(2,128)"
    # Every line is the package's, but for what TensorFlow says while its libraries are loaded.
    lines = [
        x for x in done.stderr.splitlines() if not re.match(r"[IWE]\d{4} |WARNING: All log", x)
    ]
    assert len(done.stderr.splitlines()) - len(lines) <= 10
    assert any("2 of 2 steps" in line for line in lines)
    assert all(re.match(r"\d\d:\d\d:\d\d \S", line) for line in lines), done.stderr
