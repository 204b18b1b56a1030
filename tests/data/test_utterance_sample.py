import lettered_corpus
import numpy as np
import pytest
from written_dialogues import json_lines

from dcse_tf.data.manifest import read_manifest
from dcse_tf.data.records import sample_utterances

TURNS = [3, 5, 8, 2, 4] * 8


def prepare(folder, **settings):
    folder.mkdir()
    lettered_corpus.prepare_sessions(folder, TURNS, words=2, **settings)
    return folder / "data"


def sample(data_dir, count, seed=0):
    return sample_utterances(data_dir, read_manifest(data_dir), count, seed).to_list()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("sample") / "a")


@pytest.fixture(scope="module")
def every():
    return [
        lettered_corpus.turn_ids(session, turn, 2)
        for session, count in enumerate(TURNS)
        for turn in range(count)
    ]


def test_all_utterances_are_there_once(data_dir, every):
    found = sample(data_dir, 0)
    assert sorted(found) == sorted(every)
    assert found != sorted(found)  # in random order


@pytest.mark.parametrize("count", [2, 7, 60, 10_000])
def test_a_sample_is_the_beginning_of_a_larger_one(data_dir, count):
    # With three sessions at a time, what is kept is cut often.
    few = sample_utterances(data_dir, read_manifest(data_dir), count, 0, sessions_at_a_time=3)
    assert few.to_list() == sample(data_dir, 0)[:count]


def test_shards_do_not_decide_what_is_drawn_but_the_seed_does(data_dir, tmp_path):
    assert sample(prepare(tmp_path / "b", shards=7), 20) == sample(data_dir, 20)
    assert sample(data_dir, 20, seed=1) != sample(data_dir, 20)


def test_repeated_utterances_count_once(tmp_path):
    path = tmp_path / "one.jsonl"  # twenty sessions of two turns that all say the same
    path.write_text(json_lines({f"{n}": [("a", "s0 t0"), ("b", "s1 t1")] for n in range(20)}))
    lettered_corpus.prepare_sessions(tmp_path, [2] * 20, input=(str(path),))
    rows = sample(tmp_path / "data", 0)
    assert len(rows) == len({tuple(row) for row in rows}) < 20


def test_every_utterance_is_as_likely_as_any_other(data_dir, every):
    """Samples of a third by 20 seeds: 7 times each in the mean, with a deviation of 2."""
    drawn = [row for seed in range(20) for row in sample(data_dir, len(every) // 3, seed)]
    counts = np.array([drawn.count(row) for row in every])
    assert 1 <= counts.min() <= counts.max() <= 16
