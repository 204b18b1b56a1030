"""The index of a split's shards: what it counts, where blocks lie, what is refused."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest
import tensorflow as tf
from lettered_corpus import prepare_sessions

from dcse_tf.data import manifest as blocks
from dcse_tf.data.manifest import BlockCounter, Index, read_blocks, read_manifest, write_blocks
from dcse_tf.data.records import parse_session
from dcse_tf.errors import InputError

TURNS = [2 + number % 5 for number in range(22)]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_SESSIONS", 3)


@pytest.fixture
def corpus(tmp_path, small_blocks):
    """22 sessions in three shards: 8, 7 and 7, in blocks of 3, 3, 2; 3, 3, 1; 3, 3, 1."""
    return tmp_path / "data", prepare_sessions(tmp_path, TURNS, words=6)


def test_blocks_are_counted_shard_by_shard(small_blocks, tmp_path):
    """A record of so many bytes takes 16 more of the file."""
    counter = BlockCounter(2)
    for shard, size, turns in ((0, 10, 2), (1, 20, 3), (0, 30, 4), (0, 5, 2), (0, 7, 9)):
        counter.add(shard, size, turns)
    write_blocks(tmp_path / "index.npy", counter.rows())
    table = np.load(tmp_path / "index.npy", allow_pickle=False)
    # Shard, offset, bytes, sessions, utterances.
    assert table.tolist() == [[0, 0, 26 + 46 + 21, 3, 8], [0, 93, 23, 1, 9], [1, 0, 36, 1, 3]]


def test_every_block_lies_where_the_index_says(corpus):
    folder, manifest = corpus
    split = manifest.splits["train"]
    found = read_blocks(folder, split)
    assert found.shard.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert found.sessions.tolist() == [3, 3, 2, 3, 3, 1, 3, 3, 1]
    for number, shard in enumerate(split.shards):
        records = iter(tf.data.TFRecordDataset(str(folder / shard.name)))
        own = found.shard == number
        ends = found.offset[own] + found.bytes[own]
        assert ends.tolist() == [*found.offset[own].tolist()[1:], shard.bytes]
        for block in np.flatnonzero(own):
            sessions = [parse_session(next(records)) for _ in range(found.sessions[block])]
            turns = sum(session["utterances"].shape[0] for session in sessions)
            assert turns == found.utterances[block]


def test_a_split_of_nothing_has_no_block(corpus):
    folder, manifest = corpus
    assert manifest.splits["test"].sessions == 0
    assert read_blocks(folder, manifest.splits["test"]).sessions.shape == (0,)


@pytest.mark.parametrize("damage", [lambda content: content[:-8], lambda content: b""])
def test_an_index_that_was_changed_is_refused(corpus, damage):
    folder, manifest = corpus
    path = folder / "train-blocks.npy"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=f"{path}: its SHA-256 is not the manifest's"):
        read_blocks(folder, manifest.splits["train"])


def test_an_index_that_is_not_there_is_named(corpus):
    folder, manifest = corpus
    (folder / "train-blocks.npy").unlink()
    with pytest.raises(InputError, match=r"train-blocks\.npy: .*No such file"):
        read_blocks(folder, manifest.splits["train"])


@pytest.mark.parametrize("name", ["sessions", "utterances"])
def test_an_index_that_counts_other_than_the_manifest_is_refused(corpus, name):
    folder, manifest = corpus
    content = json.loads((folder / "manifest.json").read_text())
    content["splits"]["train"][name] += 1
    (folder / "manifest.json").write_text(json.dumps(content))
    said = getattr(manifest.splits["train"], name) + 1
    with pytest.raises(InputError, match=f"{said - 1} {name}, the manifest says {said}"):
        read_blocks(folder, read_manifest(folder).splits["train"])


def test_an_index_that_does_not_fit_its_shards_is_refused(corpus):
    """Places that follow one another, but for the last: a byte more than the shard has."""
    folder, manifest = corpus
    split = manifest.splits["train"]
    path = folder / split.index.name
    table = np.load(path)
    for row, column in ((1, 1), (8, 2), (5, 0)):
        changed = table.copy()
        changed[row, column] += 1
        np.save(path, changed)
        index = Index(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
        with pytest.raises(InputError, match=r"train-blocks\.npy: does not fit train-0000\d-of"):
            read_blocks(folder, dataclasses.replace(split, index=index))


def test_an_index_of_another_form_is_refused(corpus):
    folder, manifest = corpus
    for table in (np.zeros((2, 4), np.int64), np.zeros((2, 5)), np.array([{}], object)):
        path = folder / "train-blocks.npy"
        np.save(path, table, allow_pickle=True)
        index = Index(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
        with pytest.raises(InputError, match=f"{path}: not an index of prepare_data"):
            read_blocks(folder, dataclasses.replace(manifest.splits["train"], index=index))
