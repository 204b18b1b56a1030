"""Signals and locks, by processes of their own."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from dcse_tf.errors import LockedError
from dcse_tf.files import lock_folder

ROOT = pathlib.Path(__file__).parent.parent.parent

SECOND = """
import os, signal, threading, time
from dcse_tf.training.controller import StopSignals
with StopSignals() as signals:
    os.kill(os.getpid(), signal.SIGTERM)
    while not signals.asked.numpy():
        time.sleep(0.01)
    print("asked", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
HOLDER = """
import pathlib, sys, time
from dcse_tf.files import lock_folder
with lock_folder(pathlib.Path(sys.argv[1]), ""):
    print("held", flush=True)
    time.sleep(60)
"""


WITH_A_CHILD = """
import pathlib, subprocess, sys, time
from dcse_tf.files import lock_folder
with lock_folder(pathlib.Path(sys.argv[1]), "") as lock:
    passed = [lock] if sys.argv[2] == "passed" else []
    child = subprocess.Popen(["sleep", "60"], pass_fds=passed, stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_a_second_signal_ends_the_process_at_once():
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SECOND], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    assert done.stdout == b"asked\n"
    assert done.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - started < 50


def test_a_lock_touches_no_file_of_the_users(tmp_path):
    (tmp_path / "lock").write_text("precious")
    with lock_folder(tmp_path, ""):
        assert len(list(tmp_path.iterdir())) == 2
    assert (tmp_path / "lock").read_text() == "precious"
    assert list(tmp_path.iterdir()) == [tmp_path / "lock"]


def test_a_folder_made_for_a_lock_stays_if_something_was_put_into_it(tmp_path):
    with lock_folder(tmp_path / "a" / "b", ""):
        (tmp_path / "a" / "b" / "c").touch()
    assert (tmp_path / "a" / "b" / "c").exists()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_lock_is_held_by_one_and_dies_with_it(end, tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with (
            pytest.raises(LockedError, match=f"process {holder.pid} is working in it; go away"),
            lock_folder(tmp_path, "go away"),
        ):
            pass
        holder.send_signal(end)
        holder.wait()
    with lock_folder(tmp_path, ""):
        pass


@pytest.mark.parametrize("lock", ["passed", "kept"])
def test_a_child_holds_the_lock_only_if_it_was_passed_to_it(lock, tmp_path):
    command = [sys.executable, "-c", WITH_A_CHILD, str(tmp_path), lock]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
    try:
        if lock == "passed":
            with pytest.raises(LockedError), lock_folder(tmp_path, ""):
                pass
        else:
            with lock_folder(tmp_path, ""):
                pass
    finally:
        os.kill(child, signal.SIGKILL)
