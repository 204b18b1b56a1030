"""The index of a split's shards: what it counts, where blocks lie, what is refused."""

import numpy as np
import pytest
import tensorflow as tf
from lettered_corpus import prepare_sessions

from dcse_tf.data import records
from dcse_tf.data.manifest import read_blocks
from dcse_tf.data.records import parse_session
from dcse_tf.errors import InputError

TURNS = [2 + number % 5 for number in range(22)]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """22 sessions in three shards: 8, 7 and 7, in blocks of 3, 3, 2; 3, 3, 1; 3, 3, 1."""
    monkeypatch.setattr(records, "BLOCK_SESSIONS", 3)
    return tmp_path / "data", prepare_sessions(tmp_path, TURNS, words=6)


def test_every_block_lies_where_the_index_says_and_a_split_of_nothing_has_none(corpus):
    folder, manifest = corpus
    split = manifest.splits["train"]
    found = read_blocks(folder, split)
    assert found.shard.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert found.sessions.tolist() == [3, 3, 2, 3, 3, 1, 3, 3, 1]
    for number, shard in enumerate(split.shards):
        stored = iter(tf.data.TFRecordDataset(str(folder / shard["name"])))
        own = found.shard == number
        ends = found.offset[own] + found.bytes[own]
        assert ends.tolist() == [*found.offset[own].tolist()[1:], shard["bytes"]]
        for block in np.flatnonzero(own):
            sessions = [parse_session(next(stored)) for _ in range(found.sessions[block])]
            turns = sum(session["utterances"].shape[0] for session in sessions)
            assert turns == found.utterances[block]
    assert manifest.splits["test"].sessions == 0
    assert read_blocks(folder, manifest.splits["test"]).sessions.shape == (0,)


@pytest.mark.parametrize("damage", [lambda content: content[:-8], lambda content: b""])
def test_an_index_that_was_changed_or_is_not_there_is_refused(corpus, damage):
    folder, manifest = corpus
    path = folder / "train-blocks.npy"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=f"{path}: its SHA-256 is not the manifest's"):
        read_blocks(folder, manifest.splits["train"])
    path.unlink()
    with pytest.raises(InputError, match=r"train-blocks\.npy: .*No such file"):
        read_blocks(folder, manifest.splits["train"])
