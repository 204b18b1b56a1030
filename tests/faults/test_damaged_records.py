"""Shards that lie: each fault is one sentence with shard and record."""

import os
import shutil

import pytest
from train_options import make_options

from dcse_tf.data.manifest import Corpus, read_manifest
from dcse_tf.data.records import check_records
from dcse_tf.data.stream import Stream, list_sessions
from dcse_tf.errors import InputError
from dcse_tf.training import job as train_job
from dcse_tf.training.job import train

pytestmark = pytest.mark.slow


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


def test_a_whole_corpus_is_not_found_damaged(data_dir):
    check_records(data_dir, read_manifest(data_dir))


@pytest.mark.parametrize("place", [0, 9, 30, -2], ids=["length", "length crc", "content", "crc"])
def test_a_flipped_bit_names_shard_and_record(place, corpus):
    folder, shard = corpus
    _flip(shard, place)
    number = "1" if place >= 0 else r"\d+"
    with pytest.raises(InputError, match=rf"{shard}: record {number} cannot be read: .*corrupt"):
        check_records(folder, read_manifest(folder))


def test_training_on_a_flipped_bit_names_shard_and_record(corpus, tmp_path):
    folder, shard = corpus
    _flip(shard, 30)
    settings = {"data_dir": str(folder), "run_dir": str(tmp_path / "run"), "encoder_size": "tiny"}
    batch = {"global_batch_size": 8, "negatives": 3, "steps": 30, "dev_samples": 0}
    with pytest.raises(InputError, match=rf"{shard}: record 1 cannot be read"):
        train(make_options(**settings, **batch))


def test_a_shard_that_is_lost_while_training_is_named(corpus, tmp_path, monkeypatch):
    folder, shard = corpus
    settings = {"data_dir": str(folder), "run_dir": str(tmp_path / "run"), "encoder_size": "tiny"}
    batch = {"global_batch_size": 8, "negatives": 3, "steps": 30, "dev_samples": 0}
    # The manifest's sizes have been held against the shards by then.
    monkeypatch.setattr(train_job, "_log_plan", lambda *_: shard.unlink())
    with pytest.raises(InputError, match=rf"^{shard}: .*run prepare_data again"):
        train(make_options(**settings, **batch))


def test_a_start_that_is_refused_leaves_no_run_directory(tmp_path):
    run_dir = tmp_path / "runs" / "first"
    settings = {"data_dir": str(tmp_path / "none"), "encoder_size": "tiny"}
    with pytest.raises(InputError, match="no such file"):
        train(make_options(**settings, run_dir=str(run_dir)))
    assert list(tmp_path.iterdir()) == []
    (run_dir / "empty").mkdir(parents=True)
    for begun in (run_dir, run_dir / "empty"):  # what the user made stays, empty or not
        with pytest.raises(InputError, match="no such file"):
            train(make_options(**settings, run_dir=str(begun)))
    assert list(run_dir.iterdir()) == [run_dir / "empty"]
    assert list((run_dir / "empty").iterdir()) == []


def test_a_shard_cut_short_is_noticed_before_anything_is_loaded(corpus):
    folder, shard = corpus
    os.truncate(shard, shard.stat().st_size - 5)
    with pytest.raises(InputError, match=rf"{shard}: \d+ bytes, expected \d+"):
        read_manifest(folder)


def test_a_manifest_of_another_count_is_noticed(corpus):
    folder, _ = corpus
    manifest = read_manifest(folder)
    sessions = manifest.splits["train"].sessions
    path = folder / "manifest.json"
    text = path.read_text().replace(f'"sessions": {sessions}', f'"sessions": {sessions + 1}')
    path.write_text(text)
    with pytest.raises(InputError, match=rf"split train have {sessions} records, the manifest"):
        check_records(folder, read_manifest(folder))


@pytest.mark.parametrize("samples", ["sessions", "utterances"])
def test_the_sessions_of_a_step_are_those_of_the_epoch_in_turn(samples, data_dir):
    """Over an epoch every session comes once, or once for each of its turns."""
    corpus = Corpus(data_dir, read_manifest(data_dir))
    size = getattr(corpus.manifest.splits["train"], samples)
    batch = size // 4  # each step is a pipeline of its own
    found = [
        session
        for step in range(4)
        for session in list_sessions(corpus, samples, Stream(batch, seed=3, first_step=step))
    ]
    assert len(found) == 4 * batch
    turns = {f"d{i}": 2 + i % 5 for i in range(120)}
    for session in set(found):
        assert found.count(session) <= (1 if samples == "sessions" else turns[session])
    other = list_sessions(corpus, samples, Stream(batch, seed=4))
    assert other != found[:batch]


def test_a_manifest_that_names_a_file_elsewhere_is_refused(corpus, tmp_path):
    folder, shard = corpus
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace(shard.name, f"../data/{shard.name}"))
    with pytest.raises(InputError, match=r"manifest\.json: .* expected a file in the same folder"):
        read_manifest(folder)
