"""TensorFlow starts without noise, and nothing else is lost."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]

# Stands for TensorFlow: writes to the file descriptor, as C++ does, and to Python's stderr.
STAND_IN = r"""
import os, subprocess, sys
def write(text): os.write(2, text.encode())
write("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
write("I0000 00:00:1795383663.872990   24597 port.cc:153] oneDNN custom operations are on.\n")
write("E0000 00:00:1795383663.872990   24597 cuda_platform.cc:52] failed call to cuInit\n")
write("F0000 00:00:1795383663.872990   24597 cpu_feature_guard.cc:1] no AVX\n")
print("UserWarning: a warning of Python's", file=sys.stderr)
subprocess.run(["sh", "-c", "echo a child speaks >&2"])
"""
KEPT = [
    "F0000 00:00:1795383663.872990   24597 cpu_feature_guard.cc:1] no AVX",
    "UserWarning: a warning of Python's",
    "a child speaks",
]


def start(tmp_path, end="", script="import dcse_tf, tensorflow", **variables):
    (tmp_path / "tensorflow.py").write_text(STAND_IN + end)
    known = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**known, "PYTHONPATH": paths, **variables},
        capture_output=True,
        text=True,
    )


def test_noise_is_left_out_and_all_else_passed_on(tmp_path):
    then = "; import sys, os; print(os.environ['TF_CPP_MIN_LOG_LEVEL'], file=sys.stderr)"
    done = start(tmp_path, script=f"import dcse_tf, tensorflow{then}")
    assert done.stderr.splitlines() == [*KEPT, "3"]


def test_what_is_said_before_an_end_is_not_lost(tmp_path):
    failed = start(tmp_path, "raise ImportError('no such library')")
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[: len(KEPT)] == KEPT
    assert "ImportError: no such library" in failed.stderr
    crashed = start(tmp_path, "os.abort()")
    assert crashed.returncode < 0
    assert crashed.stderr.splitlines()[: len(KEPT)] == KEPT


@pytest.mark.parametrize("variables", [{"TF_CPP_MIN_LOG_LEVEL": "0"}, {"PATH": "/nothing"}])
def test_whoever_asks_for_messages_gets_them(tmp_path, variables):
    """And where the filter cannot be had, nothing is lost either."""
    done = start(tmp_path, script="import dcse_tf, tensorflow", **variables)
    assert "oneDNN custom operations" in done.stderr
    assert "failed call to cuInit" in done.stderr


@pytest.mark.parametrize("given", ["", "false"])
def test_processes_share_a_gpu_unless_the_user_says_otherwise(tmp_path, monkeypatch, given):
    name = "TF_FORCE_GPU_ALLOW_GROWTH"
    monkeypatch.delenv(name, raising=False)  # set by the import in this process
    script = f"import dcse_tf, os; print(os.environ['{name}'])"
    done = start(tmp_path, script=script, **({name: given} if given else {}))
    assert done.stdout.split() == [given or "true"]
