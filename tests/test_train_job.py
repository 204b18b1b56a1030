import json

import pytest
import tensorflow as tf

from dcse_tf.config import ConfigError, TrainConfig
from dcse_tf.jobs.train import _begin_run


def _config(run_dir, **changes):
    settings = {"data_dir": "data", "encoder_size": "tiny", "run_dir": str(run_dir)}
    return TrainConfig(**{**settings, **changes})


def _save_checkpoint(run_dir):
    checkpoint = tf.train.Checkpoint(step=tf.Variable(1))
    tf.train.CheckpointManager(checkpoint, str(run_dir / "checkpoints"), 1).save()


def test_a_run_that_has_begun_keeps_its_settings(tmp_path):
    _begin_run(tmp_path, _config(tmp_path))
    _save_checkpoint(tmp_path)
    _begin_run(tmp_path, _config(tmp_path, save_every=7))
    with pytest.raises(ConfigError, match=r"--seed=1 \(begun with 0\)"):
        _begin_run(tmp_path, _config(tmp_path, seed=1))
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 0


def test_what_stopped_before_its_first_checkpoint_may_be_put_right(tmp_path):
    _begin_run(tmp_path, _config(tmp_path, freeze_layers=99))
    _begin_run(tmp_path, _config(tmp_path, freeze_layers=1))
    assert json.loads((tmp_path / "config.json").read_text())["freeze_layers"] == 1


def test_a_run_directory_may_be_moved(tmp_path):
    _begin_run(tmp_path / "old", _config(tmp_path / "old"))
    _save_checkpoint(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    _begin_run(tmp_path / "new", _config(tmp_path / "new"))
