"""Jobs that are killed end, when they are resumed, as ones that are left alone."""

import pathlib
import random
import subprocess
import sys
import time

import kill_harness
import pytest
from tiny_bert import build_backbone, save_checkpoint

from dcse_tf.files import partial_path
from dcse_tf.input_files import parse_json
from dcse_tf.search.embed import embed
from dcse_tf.search.search_options import EmbedOptions

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_a_killed_run_loses_no_saved_step_and_ends_bit_for_bit_the_same(data_dir, tmp_path):
    kill_harness.run_alone(data_dir, tmp_path / "alone", steps=10)
    report = kill_harness.run_killed(data_dir, tmp_path / "alone", tmp_path / "run", 1, seed=1)
    assert report.kills == 1
    assert report.most_lost == 0
    assert report.equal


def test_a_killed_embedding_leaves_no_process_and_is_resumed_to_the_same_bytes(
    tmp_path, optimized_graphs
):
    rng = random.Random(0)
    words = ["where", "is", "my", "parcel", "the", "cup", "blue", "refund", "it", "left", "ok"]
    lines = (" ".join(rng.choices(words, k=rng.randint(1, 20))) for _ in range(3_000))
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    config = EmbedOptions(
        model=str(save_checkpoint(tmp_path / "model", build_backbone())),
        input=str(tmp_path / "in.txt"),
        output=str(tmp_path / "killed.npy"),
        block_size=100,
    )
    flags = [f"--{name}={getattr(config, name)}" for name in ("model", "input", "output")]
    flags += ["--block_size=100"]

    command = [sys.executable, "-m", "dcse_tf.cli", "embed", *flags]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        record = partial_path(tmp_path / "killed.npy") / "done.json"
        while process.poll() is None and not record.exists():
            time.sleep(0.01)
        process.kill()
        process.communicate(timeout=60)  # until the last process has closed its end
    assert 100 <= parse_json(record.read_text())["rows"] < 3_000

    embed(config)
    embed(config.replace(output=str(tmp_path / "alone.npy")))
    assert (tmp_path / "killed.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()
    assert not partial_path(tmp_path / "killed.npy").exists()
