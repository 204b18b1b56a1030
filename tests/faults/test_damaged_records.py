"""Prepared corpora that are damaged: each fault is one sentence with shard and record."""

import os
import shutil

import pytest
from train_options import make_options

from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.records import check_records
from dcse_tf.errors import InputError
from dcse_tf.training.train import train


@pytest.fixture
def corpus(data_dir, tmp_path):
    """A copy of the small corpus that a test may damage, and its longest shard."""
    shutil.copytree(data_dir, tmp_path / "data")
    shards = sorted((tmp_path / "data").glob("train-*"), key=lambda path: path.stat().st_size)
    return tmp_path / "data", shards[-1]


def _flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def _check(folder):
    check_records(folder, read_manifest(folder))


def test_a_flipped_bit_names_shard_and_record(corpus):
    folder, shard = corpus
    _check(folder)
    for place in (0, 9, 30, -2):  # of the length, its checksum, the content, its checksum
        _flip(shard, place)
        number = "1" if place >= 0 else r"\d+"
        with pytest.raises(InputError, match=rf"{shard}: record {number} cannot be read: "):
            _check(folder)
        _flip(shard, place)


def test_a_manifest_that_lies_is_noticed(corpus):
    folder, shard = corpus
    path, sessions = folder / "manifest.json", read_manifest(folder).splits["train"].sessions
    text = path.read_text()
    path.write_text(text.replace(f'"sessions": {sessions}', f'"sessions": {sessions + 1}'))
    told = f": {sessions} records in the shards of split train, not {sessions + 1} as its manifest"
    with pytest.raises(InputError, match=told):
        _check(folder)
    path.write_text(text)
    os.truncate(shard, shard.stat().st_size - 5)
    with pytest.raises(InputError, match=rf"{shard}: \d+ bytes, expected \d+"):
        read_manifest(folder)


@pytest.mark.slow
def test_training_on_a_flipped_bit_names_shard_and_record(corpus, tmp_path):
    folder, shard = corpus
    _flip(shard, 30)
    settings = {"data_dir": str(folder), "run_dir": str(tmp_path / "run"), "encoder_size": "tiny"}
    batch = {"global_batch_size": 8, "negatives": 3, "steps": 30, "dev_samples": 0}
    with pytest.raises(InputError, match=rf"{shard}: record 1 cannot be read"):
        train(make_options(**settings, **batch))


def test_a_training_that_is_refused_leaves_no_run_directory(tmp_path):
    run_dir = tmp_path / "runs" / "first"
    settings = {"data_dir": str(tmp_path / "none"), "encoder_size": "tiny"}
    with pytest.raises(InputError, match="no such file"):
        train(make_options(**settings, run_dir=str(run_dir)))
    assert list(tmp_path.iterdir()) == []
    run_dir.mkdir(parents=True)  # what the user made stays
    with pytest.raises(InputError, match="no such file"):
        train(make_options(**settings, run_dir=str(run_dir)))
    assert list(run_dir.iterdir()) == []
