import hashlib
import json

import numpy as np
import tensorflow as tf

from dcse_tf.data.dialogue import Session, Utterance
from dcse_tf.data.manifest import Shard, read_blocks
from dcse_tf.data.records import (
    SplitRecords,
    SplitWriter,
    parse_session,
    serialize_session,
    shard_paths,
)


def serialize(session_id, *rows, dtype=np.int32):
    token_ids, lengths = np.concatenate(rows).astype(dtype), list(map(len, rows))
    return serialize_session(
        session_id, token_ids, lengths, ["ab"[i % 2] for i in range(len(rows))]
    )


def parse(session_id, *rows):
    return parse_session(tf.constant(serialize(session_id, *rows)))


def make(session_id, *rows, truncated=0, texts=None):
    """The records of one session, whose turns are texts of their token ids."""
    turns = tuple(Utterance("ab"[i % 2], f"您 {ids}") for i, ids in enumerate(rows))
    records = SplitRecords(texts)
    token_ids = np.concatenate(rows).astype(np.int32)
    records.add(Session(session_id, turns), token_ids, list(map(len, rows)), truncated)
    return records


def read(path):
    return [parse_session(record) for record in tf.data.TFRecordDataset(str(path))]


def fingerprint(content):
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def test_a_record_gives_back_the_tokens_of_every_turn():
    rows = [[2, 5, 3], [2, 21127, 7, 8, 9, 3], [2, 5, 3]]
    features = parse("s", *rows)
    assert features["token_ids"].to_list() == rows
    assert features["token_ids"].dtype == tf.int32
    assert features["session"].shape == ()
    assert features["utterances"].shape == (3,)


def test_a_session_of_one_turn():
    assert parse("s", [2, 5, 3])["token_ids"].to_list() == [[2, 5, 3]]


def test_fingerprints_are_of_the_id_and_of_the_token_ids():
    features = parse("对话 1", [2, 5, 3], [2, 300, 3])
    assert int(features["session"]) == fingerprint("对话 1".encode())
    # Little-endian 32-bit integers: 300 = 44 + 256.
    first = b"\x02\0\0\0\x05\0\0\0\x03\0\0\0"
    second = b"\x02\0\0\0\x2c\x01\0\0\x03\0\0\0"
    assert features["utterances"].numpy().tolist() == [fingerprint(first), fingerprint(second)]


def test_roles_are_known_by_their_names_and_speakers_by_who_spoke_first():
    token_ids, lengths = np.array([2, 3] * 4, np.int32), [2] * 4
    said = ["client", "agent", "client", "Agent"]
    features = parse_session(tf.constant(serialize_session("s", token_ids, lengths, said)))
    assert features["speakers"].numpy().tolist() == [0, 1, 0, 2]
    assert features["roles"].numpy().tolist() == [fingerprint(role.encode()) for role in said]


def test_equal_tokens_are_one_utterance_and_other_tokens_another():
    one = parse("one", [2, 5, 3], [2, 6, 3])["utterances"].numpy()
    two = parse("two", [2, 6, 3], [2, 5, 3], [2, 5, 6, 3])["utterances"].numpy()
    assert one.tolist() == two[[1, 0]].tolist()
    assert len({*one, *two}) == 3


def test_fingerprints_do_not_depend_on_the_width_of_the_integers():
    assert serialize("s", [2, 5, 3]) == serialize("s", [2, 5, 3], dtype=np.int64)


def test_a_record_is_an_example_with_its_features_in_order():
    """protobuf writes the entries of a map in an order of the process's own, if it may."""
    record = serialize("s", [2, 21127, 3], [2, 3])
    names = sorted(tf.train.Example.FromString(record).features.feature)
    assert names == [
        *("lengths", "roles", "session", "session_id", "speakers", "token_ids", "utterances"),
    ]
    places = [record.index(name.encode()) for name in names]
    assert places == sorted(places)


def test_sessions_go_to_the_shards_in_turn(tmp_path):
    with SplitWriter(tmp_path, "train", shards=3, texts=False) as writer:
        for number in range(8):
            writer.write(make(f"s{number}", [2, 10 + number, 3], [2, 3], truncated=number % 2))
    split = writer.finish()
    paths = shard_paths(tmp_path, split)
    names = [f"train-0000{i}-of-00003.tfrecord" for i in range(3)]
    assert paths == [str(tmp_path / name) for name in names]
    found = [[int(session["token_ids"][0, 1]) - 10 for session in read(path)] for path in paths]
    assert found == [[0, 3, 6], [1, 4, 7], [2, 5]]
    # 8 sessions of 2 utterances of 3 + 2 tokens; every second session has one that was cut.
    counts = (split.sessions, split.utterances, split.tokens, split.truncated_utterances)
    assert counts == (8, 16, 40, 4)
    sizes = tuple(Shard(name, (tmp_path / name).stat().st_size) for name in names)
    assert split.shards == sizes
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "train-blocks.npy"]
    assert split.index.name == "train-blocks.npy"
    assert read_blocks(tmp_path, split).sessions.tolist() == [3, 3, 2]


def test_more_shards_than_sessions_leave_some_empty(tmp_path):
    with SplitWriter(tmp_path, "dev", shards=3, texts=False) as writer:
        writer.write(make("s", [2, 3], [2, 3]))
    split = writer.finish()
    assert [len(read(path)) for path in shard_paths(tmp_path, split)] == [1, 0, 0]


def test_texts_are_written_beside_the_records(tmp_path):
    sessions = [make("单\u20281", [2, 5, 3], [2, 6, 3], texts=[]), make("2", [2, 3], texts=[])]
    with SplitWriter(tmp_path, "dev", shards=1, texts=True) as writer:
        for session in sessions:
            writer.write(session)
    lines = (tmp_path / "dev.jsonl").read_bytes().decode().split("\n")
    assert json.loads(lines[0]) == {
        "session_id": "单\u20281",
        "turns": [{"role": "a", "text": "您 [2, 5, 3]"}, {"role": "b", "text": "您 [2, 6, 3]"}],
    }
    assert json.loads(lines[1])["session_id"] == "2"
    assert lines[2:] == [""]
