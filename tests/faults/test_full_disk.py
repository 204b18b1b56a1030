"""Jobs on a disk that fills up: one sentence with the path, and what was complete stays."""

import subprocess

import pytest
from dialogue_files import DIALOGUES, run, tsv
from train_options import SMALL, make_options

from dcse_tf.errors import OutputError
from dcse_tf.search.embed_file import EmbedOptions, embed
from dcse_tf.training.hooks import SummaryWriter
from dcse_tf.training.train import train

pytestmark = pytest.mark.slow


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
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_preparing_on_a_full_disk(tmp_path, small_disk):
    folder, _ = small_disk
    content = tsv({str(number): DIALOGUES["a"] for number in range(8_000)})
    with pytest.raises(OutputError, match=rf"^{folder}/data.*: cannot be written: .*No space"):
        run(tmp_path, content, output_dir=str(folder / "data"))
    assert list(folder.iterdir()) == []


def test_training_on_a_full_disk_keeps_the_last_checkpoint_and_goes_on(data_dir, small_disk):
    folder, remount = small_disk
    remount("size=5m")
    values = {**SMALL, "data_dir": str(data_dir), "run_dir": str(folder / "run"), "negatives": 3}
    options = make_options(**{**values, "save_every": 1})
    with pytest.raises(OutputError, match=f"{folder}/run.*No space left"):
        train(options)
    remount("size=200m")
    assert train(options).kept.step in (0, 4)


def test_summaries_and_embeddings_on_a_full_disk_name_their_path(model, tmp_path, small_disk):
    folder, _ = small_disk
    (tmp_path / "a.txt").write_text("where is my parcel\n")
    (folder / "filler").write_bytes(bytes(1 << 20))
    files = {"input": f"{tmp_path}/a.txt", "output": f"{folder}/a.npy"}
    with pytest.raises(OutputError, match=rf"^{folder}/a\.npy.*: cannot be written: No space left"):
        embed(EmbedOptions(model=str(model), **files))
    assert [path.name for path in folder.iterdir()] == ["filler"]
    (folder / "filler").write_bytes(bytes(1 << 19))
    writer = SummaryWriter(folder / "run")
    with pytest.raises(OutputError, match=str(folder)):  # noqa: PT012 - some step fills the disk
        for step in range(2000):
            writer.text("log", "x" * 1000, step)
