"""An installed package that registers a task is known to the command line, or named."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def install(folder, text):
    """A package as pip installs one, whose entry point is a module that does something."""
    (folder / "toys.py").write_text(text)
    info = folder / "toys-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dcse_tf.plugins]\ntoys = toys\n")


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
def test_an_installed_package_is_known_to_the_command_line(
    tmp_path, no_tensorflow, text, flags, status, said
):
    install(tmp_path, text)
    environment = {**no_tensorflow, "PYTHONPATH": f"{tmp_path}:{no_tensorflow['PYTHONPATH']}"}
    command = [sys.executable, "-m", "dcse_tf.cli", "train", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert said in " ".join((done.stdout + done.stderr).split())
