"""Windows of blocks: what is in them, and that nothing before the first one is read."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from lettered_corpus import prepare_sessions

from dcse_tf.data import records, stream
from dcse_tf.data.manifest import read_blocks
from dcse_tf.data.records import parse_session, parse_utterances
from dcse_tf.data.stream import Stream, draw_windows, make_dataset, repeat_epochs

pytestmark = pytest.mark.slow

Corpus = collections.namedtuple("Corpus", "folder manifest")
TURNS = [2 + number % 5 for number in range(60)]  # 240 utterances
BATCH = {"sessions": 7, "utterances": 9}  # 8 and 26 steps an epoch
WINDOW = {"sessions": 10, "utterances": 50}  # so that an epoch has several
STEPS = {"sessions": 8, "utterances": 26}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """60 sessions in blocks of 4, in 3 shards."""
    folder = tmp_path_factory.mktemp("corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "BLOCK_SESSIONS", 4)
        manifest = prepare_sessions(folder, TURNS, words=6)
    return Corpus(folder / "data", manifest)


def read(corpus, samples, first_step, count, seed=1, window=0):
    """(step, epoch, index, element) of the first elements."""
    features = {
        "session_id": tf.io.FixedLenFeature([], tf.string),
        "lengths": tf.io.RaggedFeature(tf.int64),
    }

    def elements(records):
        parsed = tf.io.parse_example(records, features)
        ids, turns = parsed["session_id"], parsed["lengths"].row_lengths()
        return ids if samples == "sessions" else tf.repeat(ids, turns)

    chosen = Stream(BATCH[samples], seed, first_step, window=window or WINDOW[samples])
    split = corpus.manifest.splits["train"]
    dataset = repeat_epochs(corpus.folder, split, samples, elements, chosen).take(count)
    return [tuple(part.numpy() for part in element) for element in dataset]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    window=st.integers(1, 50),
    seed=st.integers(0, 1000),
)
def test_windows_hold_every_block_once_and_are_as_large_as_asked(sizes, window, seed):
    windows = draw_windows(tf.constant(sizes, tf.int64), window, tf.constant([seed, 0], tf.int64))
    dealt = windows.blocks.to_list()
    assert sorted(block for own in dealt for block in own) == list(range(len(sizes)))
    held = [sum(sizes[block] for block in own) for own in dealt]
    assert windows.ends.numpy().tolist() == np.cumsum(held).tolist()
    assert all(1 <= size < window + max(sizes) for size in held)
    # As few as that allows: two neighbours together fill more than one, up to a block.
    assert all(one + other + max(sizes) > window for one, other in itertools.pairwise(held))


def test_another_seed_draws_other_windows():
    sizes = tf.ones([50], tf.int64)
    drawn = {
        tuple(draw_windows(sizes, 10, tf.constant([seed, 0], tf.int64)).blocks.values.numpy())
        for seed in range(5)
    }
    assert len(drawn) == 5


@pytest.mark.parametrize("samples", ["sessions", "utterances"])
def test_an_epoch_has_every_element_once_whatever_the_windows(corpus, samples):
    """But for those that fill no batch, others in every epoch."""
    per_epoch = STEPS[samples] * BATCH[samples]
    found = read(corpus, samples, 0, 3 * per_epoch)
    left_out = set()
    times = TURNS if samples == "utterances" else [1] * len(TURNS)
    for epoch in range(3):
        own = found[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert [index for _, _, index, _ in own] == list(range(per_epoch))
        counts = collections.Counter(element for *_, element in own)
        missing = {
            session: times[session] - counts[f"id {session}".encode()]
            for session in range(len(TURNS))
        }
        assert all(count >= 0 for count in missing.values())
        left_out.add(tuple(missing.values()))
    assert len(left_out) == 3


@pytest.mark.parametrize("samples", ["sessions", "utterances"])
def test_any_first_step_goes_on_where_it_would_have_been(corpus, samples):
    """Before, at and behind the ends of windows and epochs."""
    batch, steps = BATCH[samples], STEPS[samples]
    whole = read(corpus, samples, 0, batch * 2 * steps)
    end = 2 if samples == "sessions" else 6  # the first windows end in the step before
    for first in (end - 1, end, steps - 1, steps, steps + 1):
        assert read(corpus, samples, first, 2 * batch) == whole[first * batch :][: 2 * batch]
    assert [step for step, *_ in whole] == np.repeat(np.arange(2 * steps), batch).tolist()


def test_the_elements_of_a_window_are_from_all_over_the_corpus(corpus):
    """10 sessions or a few more of 60, which were dealt to three shards in turn."""
    spans = []
    for seed in range(10):
        ids = [int(element[3:]) for *_, element in read(corpus, "sessions", 0, 8, seed)]
        spans.append(max(ids) - min(ids))
    assert np.mean(spans) > 30


def test_what_lies_before_the_first_step_is_not_read(corpus, tmp_path):
    """Blocks of sessions that came before are damaged, and nobody notices."""
    folder, split = corpus.folder, corpus.manifest.splits["train"]
    late = STEPS["sessions"] - 1
    whole = read(corpus, "sessions", 0, late * 7)
    expected = read(corpus, "sessions", late, 7)
    index = read_blocks(folder, split)
    shards = [bytearray((folder / shard["name"]).read_bytes()) for shard in split.shards]
    first_window = {element for *_, element in whole[:7]}
    damaged = 0
    for shard, offset, size in zip(index.shard, index.offset, index.bytes, strict=True):
        content = bytes(shards[shard][offset : offset + size])
        if any(b"\n" + bytes([len(name)]) + name in content for name in first_window):
            shards[shard][offset] ^= 1
            damaged += 1
    assert damaged
    copy = tmp_path / "data"
    copy.mkdir()
    (copy / split.index["name"]).write_bytes((folder / split.index["name"]).read_bytes())
    for shard, content in zip(split.shards, shards, strict=True):
        (copy / shard["name"]).write_bytes(content)
    assert read(Corpus(copy, corpus.manifest), "sessions", late, 7) == expected
    with pytest.raises(tf.errors.DataLossError):
        read(Corpus(copy, corpus.manifest), "sessions", 0, 7)


def test_the_utterances_of_records_are_their_turns_in_order(corpus):
    folder, split = corpus.folder, corpus.manifest.splits["train"]
    records = list(tf.data.TFRecordDataset(str(folder / split.shards[1]["name"])).take(5))
    one_by_one = [row for record in records for row in parse_session(record)["token_ids"].to_list()]
    assert parse_utterances(tf.stack(records)).to_list() == one_by_one


def test_every_window_is_shuffled_in_its_own_way(corpus):
    """A window is one block here, 4 sessions; theirs are numbers 3 apart, as they were dealt."""
    ids = [int(element[3:]) for *_, element in read(corpus, "sessions", 0, 56, window=1)]
    windows = [ids[start : start + 4] for start in range(0, 56, 4)]
    assert all(max(own) - min(own) == 9 for own in windows)
    assert len({tuple(np.argsort(own)) for own in windows}) > 3


def test_samples_are_drawn_anew_in_every_epoch(corpus, monkeypatch):
    class Seeds:
        samples = "sessions"
        draw = staticmethod(lambda record, seed: {"seed": seed})
        make_step = staticmethod(lambda samples, *_: samples)

    monkeypatch.setattr(stream, "make_batches", lambda step, *_: [step])
    split = corpus.manifest.splits["train"]
    batches = make_dataset(corpus.folder, split, Seeds(), dict, Stream(7, seed=1)).take(16)
    seeds = [tuple(seed) for batch in batches for seed in batch["seed"].numpy()]
    assert len(seeds) == len({*seeds}) == 7 * 16  # two epochs
