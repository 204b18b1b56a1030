"""Several processes train as one does, also when one of them is killed."""

import kill_harness
import numpy as np
import pytest
from safetensors.numpy import load_file

from dcse_tf.errors import EXIT_STATUS

pytestmark = pytest.mark.slow


def test_two_processes_one_of_which_is_killed_end_as_one_process_does(data_dir, tmp_path):
    def start(run_dir, workers):
        flags = kill_harness.train_flags(data_dir, tmp_path / run_dir, steps=14)
        # Each replica draws dropout masks of its own; a higher rate makes rounding errors grow.
        flags += ["--dropout=0", "--learning_rate=0.0003", "--dev_samples=0"]
        return kill_harness.start("train", *flags, workers=workers)

    kill_harness.check(start("one", workers=1))

    killed = start("two", workers=2)
    kill_harness.watch(killed, 0.2, victim=1)
    assert killed.returncode == EXIT_STATUS or killed.returncode > 128
    left = [path.name for path in (tmp_path / "two/checkpoints").iterdir()]
    assert left
    assert "step-000000014" not in left

    resumed = start("two", workers=2)
    begun, _ = kill_harness.watch(resumed, None)
    assert resumed.returncode == 0
    assert f"step-{begun:09d}" in left

    one, two = (load_file(tmp_path / run / "encoder/model.safetensors") for run in ("one", "two"))
    for name, value in one.items():
        np.testing.assert_allclose(value, two[name], atol=1e-4, err_msg=name)
    log = (tmp_path / "two/workers/1.log").read_text()
    assert f"step {begun}" in log
    assert "the first one wrote" in log
