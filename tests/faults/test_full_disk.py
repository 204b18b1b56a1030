"""Jobs on a disk that fills up, or that may not be written: one sentence with the path."""

import pathlib
import subprocess
import sys

import kill_harness
import numpy as np
import pytest
from tiny_bert import build_backbone, save_checkpoint

from dcse_tf.errors import OutputError
from dcse_tf.search.embed import embed
from dcse_tf.search.index import build_faiss
from dcse_tf.search.search_options import EmbedOptions

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parent.parent.parent


def _run(job, *flags):
    command = [sys.executable, "-m", "dcse_tf.cli", job, *map(str, flags)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of a megabyte, and what mounts it otherwise."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode

    if mount("size=1m"):
        pytest.skip("no file system can be mounted here")
    yield folder, lambda *options: mount("remount", *options)
    subprocess.run(["umount", str(folder)], check=True)


def _says_what_could_not_be_written(done, folder, why="No space left"):
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1, done.stderr
    assert last.startswith("error: ")
    assert str(folder) in last
    assert why in last
    assert "Traceback" not in done.stderr


def test_preparing_on_a_full_disk(tmp_path, small_disk):
    folder, _ = small_disk
    (folder / "filler").write_bytes(b"x" * (1 << 19))
    with (tmp_path / "a.tsv").open("w") as file:
        for number in range(20_000):
            file.write(f"{number // 5}\t{'ab'[number % 2]}\twhere is parcel {number} of mine\n")
    flags = [f"--input={tmp_path}/a.tsv", f"--output_dir={folder}/data", "--vocab_size=200"]
    _says_what_could_not_be_written(_run("prepare_data", *flags), folder)
    assert not (folder / "data").exists()


def test_training_on_a_full_disk_keeps_the_last_checkpoint_and_goes_on(data_dir, small_disk):
    folder, remount = small_disk
    flags = kill_harness.train_flags(data_dir, folder / "run", steps=4)
    remount("size=12m")
    done = _run("train", *flags)
    if done.returncode == 0:
        pytest.fail("the disk is too large for this test")
    _says_what_could_not_be_written(done, folder)
    remount("size=200m")
    done = _run("train", *flags)
    assert done.returncode == 0, done.stderr


def test_summaries_on_a_full_disk_name_their_folder(small_disk):
    """In a process of its own, whose exit closes the writer once more."""
    folder, _ = small_disk
    (folder / "filler").write_bytes(b"x" * (1 << 19))
    code = """
import pathlib, sys
from dcse_tf.errors import OutputError
from dcse_tf.training.summaries import SummaryWriter
writer = SummaryWriter(pathlib.Path(sys.argv[1]))
try:
    for step in range(2000):
        writer.text("log", "x" * 1000, step)
except OutputError as error:
    sys.exit(f"error: {error}")
"""
    command = [sys.executable, "-c", code, str(folder / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    _says_what_could_not_be_written(done, folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An encoder of half a megabyte."""
    return save_checkpoint(tmp_path_factory.mktemp("saved") / "model", build_backbone())


def test_embedding_on_a_disk_without_a_byte_left(model, tmp_path, small_disk):
    folder, _ = small_disk
    (folder / "filler").write_bytes(bytes(1 << 20))
    (tmp_path / "a.txt").write_text("where is my parcel\n")
    files = {"input": f"{tmp_path}/a.txt", "output": f"{folder}/a.npy"}
    with pytest.raises(OutputError, match=rf"^{folder}/a\.npy.*: cannot be written: No space left"):
        embed(EmbedOptions(model=str(model), **files))
    assert [path.name for path in folder.iterdir()] == ["filler"]


def test_an_approximate_index_on_a_full_disk(small_disk):
    pytest.importorskip("faiss")
    folder, _ = small_disk
    matrix = np.eye(600, 500, dtype=np.float32)  # 1.2 MB
    with pytest.raises(OutputError, match=rf"^{folder}/a: cannot be written: .*No space left"):
        build_faiss(matrix, folder / "a")
