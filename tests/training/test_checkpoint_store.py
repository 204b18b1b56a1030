import os
import shutil

import pytest
import tensorflow as tf

from dcse_tf.errors import InputError, OutputError
from dcse_tf.training.checkpoint_store import CheckpointStore, find_checkpoint


class Run:
    """A run of one weight."""

    def __init__(self, run_dir, keep=3, shape=(100,)):
        self.weight = tf.Variable(tf.zeros(shape))
        self.store = CheckpointStore(run_dir, tf.train.Checkpoint(weight=self.weight), keep)

    def save(self, *steps):
        for step in steps:
            self.weight.assign(tf.fill(self.weight.shape, float(step)))
            self.store.save(step)

    def restore(self):
        path = self.store.restore()
        return path and path.name, float(self.weight.numpy().flat[0])


def _names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_the_newest_is_restored_and_only_the_latest_are_kept(tmp_path):
    assert Run(tmp_path).restore() == (None, 0.0)
    Run(tmp_path, keep=2).save(5, 10, 100)
    assert Run(tmp_path).restore() == ("step-000000100", 100.0)
    assert _names(tmp_path) == ["step-000000010", "step-000000100"]


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flipped": lambda folder: _flip(next(folder.glob("state.data*"))),
    "cut": lambda folder: os.truncate(next(folder.glob("state.data*")), 7),
    "index gone": lambda folder: (folder / "state.index").unlink(),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
    "manifest cut": lambda folder: os.truncate(folder / "manifest.json", 20),
    "manifest of another kind": lambda folder: (folder / "manifest.json").write_text("[]"),
    "no files": lambda folder: (folder / "manifest.json").write_text('{"files": {}}'),
    "empty": lambda folder: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over_and_written_again(damage, tmp_path):
    Run(tmp_path).save(5, 10)
    assert find_checkpoint(tmp_path) == tmp_path / "checkpoints/step-000000010"
    DAMAGES[damage](tmp_path / "checkpoints/step-000000010")
    run = Run(tmp_path)
    assert run.restore() == ("step-000000005", 5.0)
    run.save(10)
    assert Run(tmp_path).restore() == ("step-000000010", 10.0)
    run.save(15, 20)
    for step in (10, 15, 20):
        DAMAGES[damage](tmp_path / f"checkpoints/step-{step:09d}")
    Run(tmp_path, keep=1).save(7)
    assert Run(tmp_path).restore() == ("step-000000007", 7.0)


def test_what_writing_left_behind_never_counts_and_is_cleared(tmp_path):
    Run(tmp_path).save(5)
    folder = tmp_path / "checkpoints"
    for name in ("step-000000010.dcse_tf-partial", "step-000000005.dcse_tf-previous", "notes"):
        shutil.copytree(folder / "step-000000005", folder / name)
    assert Run(tmp_path).restore() == ("step-000000005", 5.0)
    assert _names(tmp_path) == ["notes", "step-000000005"]


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    Run(tmp_path).save(5)
    with pytest.raises(InputError, match="step-000000005: a checkpoint of another model"):
        Run(tmp_path, shape=(99,)).restore()


def test_a_write_that_fails_names_the_path_and_keeps_what_was_there(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.save(5)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OutputError, match=r"step-000000010: .*No space left.*last good .*000000005"
    ):
        run.save(10)
    monkeypatch.undo()
    assert Run(tmp_path).restore() == ("step-000000005", 5.0)
    assert _names(tmp_path) == ["step-000000005"]
