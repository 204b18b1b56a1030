"""An installed package that registers a task is known to the command line, or named."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
REGISTERS = """
from dcse_tf.options import option
from dcse_tf.tasks import register_task
from dcse_tf.tasks.train_options import TrainOptions

@register_task
class ToyOptions(TrainOptions):
    help = "a toy that jumps"
    task: str = "toy"
    jump: float = option(0.2, "How high a toy jumps.")
"""


@pytest.mark.parametrize(
    ("text", "flags", "status", "said"),
    [
        (REGISTERS, ["toy", "--help"], 0, "How high a toy jumps."),
        (REGISTERS, ["--jump=3"], 1, "Unknown command line flag 'jump'"),
        ("import nothing_of_this_name", ["--help"], 1, "plug-in toys (toys) cannot be loaded"),
    ],
)
def test_an_installed_package_is_known_to_the_command_line(tmp_path, text, flags, status, said):
    """Its entry point is a module that does something; importing TensorFlow ends the process."""
    (tmp_path / "toys.py").write_text(text)
    info = tmp_path / "toys-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dcse_tf.plugins]\ntoys = toys\n")
    for name in ("tensorflow", "keras", "keras_hub"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('TensorFlow was started')\n")
    paths = [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "dcse_tf.cli", "train", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert said in " ".join((done.stdout + done.stderr).split())
