"""Jobs that are killed end, when they are resumed, as ones that are left alone."""

import random
import signal
import subprocess
import sys
import time

import kill_harness
import pytest
from kill_harness import ROOT

import dcse_tf
from dcse_tf.cli.commands import main
from dcse_tf.errors import EXIT_STATUS
from dcse_tf.files import marked
from dcse_tf.input_files import parse_json

pytestmark = pytest.mark.slow


def test_a_killed_run_loses_no_saved_step_and_ends_bit_for_bit_the_same(data_dir, tmp_path):
    flags = [f"--data_dir={data_dir}", "--steps=8", *kill_harness.SETTINGS]
    alone = tmp_path / "alone"
    main(["train", *flags, f"--run_dir={alone}"])
    report = kill_harness.run_killed(flags, alone, tmp_path / "run", kills=1, seed=1)
    assert (report.kills, report.most_lost, report.equal) == (1, 0, True)


def test_two_processes_one_of_which_is_killed_go_on_from_a_saved_step(data_dir, tmp_path):
    flags = [f"--data_dir={data_dir}", "--steps=8", *kill_harness.SETTINGS, "--dev_samples=0"]
    flags.append(f"--run_dir={tmp_path}/two")
    first, second = kill_harness.start_workers(2, *flags)
    kill_harness.watch([first, second], 0.2, victim=1)
    assert (first.exitcode, second.exitcode) == (EXIT_STATUS, -signal.SIGKILL)
    left = [path.name for path in (tmp_path / "two/checkpoints").iterdir()]
    resumed = kill_harness.start_workers(2, *flags)
    begun, _ = kill_harness.watch(resumed, None)
    assert [each.exitcode for each in resumed] == [0, 0]
    assert f"step-{begun:09d}" in left


def test_a_killed_embedding_is_resumed_to_the_same_bytes(model, tmp_path, optimized_graphs):
    rng = random.Random(0)
    words = ["where", "is", "my", "parcel", "the", "cup", "blue", "refund", "it", "left", "ok"]
    lines = (" ".join(rng.choices(words, k=rng.randint(1, 20))) for _ in range(3_000))
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    values = {"model": model, "block_size": 100}
    values |= {"input": tmp_path / "in.txt", "output": tmp_path / "killed.npy"}
    flags = [f"--{name}={value}" for name, value in values.items()]
    command = [sys.executable, "-m", "dcse_tf.cli", "embed", *flags]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        record = marked(tmp_path / "killed.npy", "partial") / "done.json"
        while process.poll() is None and not record.exists():
            time.sleep(0.01)
        process.kill()
        process.communicate(timeout=60)  # until the last process has closed its end
    assert 100 <= parse_json(record.read_text())["rows"] < 3_000
    dcse_tf.embed(**values)
    dcse_tf.embed(**values | {"output": tmp_path / "alone.npy"})
    assert (tmp_path / "killed.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()
    assert not marked(tmp_path / "killed.npy", "partial").exists()


TWO_SIGNALS = """
import os, signal, time
from dcse_tf.training.controller import StopSignals
with StopSignals().watch() as signals:
    os.kill(os.getpid(), signal.SIGTERM)
    while not signals.asked.numpy():
        time.sleep(0.01)
    print("asked", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


def test_a_second_signal_ends_a_training_at_once():
    command = [sys.executable, "-c", TWO_SIGNALS]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False, timeout=300)
    assert (done.stdout, done.returncode) == (b"asked\n", 128 + signal.SIGTERM)
