"""TFRecords of sessions: writing, parsing and sampling them, and finding damaged ones."""

import contextlib
import hashlib
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dcse_tf.data.dialogue import Session
from dcse_tf.data.manifest import Blocks, Manifest, Split
from dcse_tf.errors import InputError, first_line
from dcse_tf.files import hash_file
from dcse_tf.progress import Progress

BLOCK_SESSIONS = 256
_FRAME = 16  # bytes of a TFRecord besides its content: its length and two checksums


def _token_ids(kind: str = "") -> tf.io.RaggedFeature:
    """The token ids of texts, `[texts, (tokens)]`."""
    lengths = [tf.io.RaggedFeature.RowLengths(f"{kind}lengths")]
    return tf.io.RaggedFeature(tf.int64, f"{kind}token_ids", lengths, tf.int64, validate=True)


def _fingerprint(contents: Iterable[bytes]) -> list[int]:
    digests = (hashlib.blake2b(content, digest_size=8).digest() for content in contents)
    return np.frombuffer(b"".join(digests), "<i8").tolist()


def _list_features(texts: Sequence[np.ndarray], kind: str = "") -> dict[str, list[int]]:
    return {
        f"{kind}token_ids": np.concatenate(texts).tolist(),
        f"{kind}lengths": [len(ids) for ids in texts],
        f"{kind}utterances": _fingerprint(ids.astype("<i4").tobytes() for ids in texts),
    }


def serialize_session(
    session: Session, tokens: Sequence[np.ndarray], negatives: Sequence[np.ndarray] = ()
) -> bytes:
    """Serialises a session as a tf.train.Example, with the same bytes in every process.

    `tokens` and `negatives` are the token ids of each turn, and of candidates for the last one, int
    `[tokens]`, with [CLS] and [SEP]. Besides them, the record holds 64-bit fingerprints, see
    `parse_session`. Turns with equal ones of token ids, which the encoder cannot tell apart, are
    encoded only once, and are no negatives of each other.
    """
    roles = [turn.role for turn in session.turns]
    numbers = {role: number for number, role in enumerate(dict.fromkeys(roles))}
    values = {
        "session": _fingerprint([session.dialogue.encode()]),
        **_list_features(tokens),
        "speakers": [numbers[role] for role in roles],
        "roles": _fingerprint(role.encode() for role in numbers),
        **(_list_features(negatives, "given_") if negatives else {}),
    }
    example = tf.train.Example()
    features = example.features.feature
    # Extending the lists in place is twice as fast as passing arrays and messages to protobuf.
    features["session_id"].bytes_list.value.append(session.session_id.encode())
    for name, numbers_of_it in values.items():
        features[name].int64_list.value.extend(numbers_of_it)
    # By default the order of a map's entries differs between processes.
    return example.SerializeToString(deterministic=True)


def parse_session(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses the features of a session's record, a scalar string.

    Returns:
        session: int64 scalar, fingerprint of the id of the session's dialogue.
        token_ids: int32 `[turns, (tokens)]`, ragged, with [CLS] and [SEP].
        utterances: int64 `[turns]`, fingerprints of the turns' token ids.
        speakers: int32 `[turns]`, the speaker of each turn, numbered from 0 in each session.
        roles: int64 `[turns]`, fingerprints of the names of the speakers' roles.
    """
    names = {"session": tf.io.FixedLenFeature([], tf.int64), "token_ids": _token_ids()}
    names |= {x: tf.io.RaggedFeature(tf.int64) for x in ("utterances", "speakers", "roles")}
    found = tf.io.parse_single_example(record, names)
    found["roles"] = tf.gather(found["roles"], found["speakers"])
    return found | {name: tf.cast(found[name], tf.int32) for name in ("token_ids", "speakers")}


def parse_given(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses the candidates that a record gives for its last turn, or none: token_ids, int32
    `[negatives, (tokens)]`, and utterances, int64 `[negatives]`, their fingerprints.
    """
    fingerprints = tf.io.RaggedFeature(tf.int64, "given_utterances")
    names = {"token_ids": _token_ids("given_"), "utterances": fingerprints}
    found = tf.io.parse_single_example(record, names)
    return found | {"token_ids": tf.cast(found["token_ids"], tf.int32)}


def parse_utterances(records: tf.Tensor) -> tf.RaggedTensor:
    """Parses records `[sessions]` to the token ids of all turns: int32 `[utterances, (tokens)]`."""
    token_ids = tf.io.parse_example(records, {"token_ids": _token_ids()})["token_ids"]
    return tf.cast(token_ids.merge_dims(0, 1), tf.int32)


class SessionRecord(NamedTuple):
    """A serialised session, ready to be written."""

    split: str
    record: bytes  # see `serialize_session`
    text: str  # a line of JSON; "" in train
    digest: bytes  # of the content, for the fingerprint of the corpus
    counts: Sequence[int]  # turns, their tokens, truncated turns, negatives


class SplitWriter:
    """Writes the sessions of one split: TFRecord shards, their index, and for dev and test texts.

    The shards get sessions in rotation, so that each is a sample of the whole. `stack` closes the
    files.
    """

    def __init__(self, folder: pathlib.Path, split: str, shards: int, stack: contextlib.ExitStack):
        self._paths = [folder / f"{split}-{n:05d}-of-{shards:05d}.tfrecord" for n in range(shards)]
        writers = (tf.io.TFRecordWriter(str(path)) for path in self._paths)
        self._writers = list(map(stack.enter_context, writers))
        self._texts, self._index = None, folder / f"{split}-blocks.npy"
        if split != "train":
            file = (folder / f"{split}.jsonl").open("w", encoding="utf-8", newline="\n")
            self._texts = stack.enter_context(file)
        self._blocks: list[list[list[int]]] = [[] for _ in range(shards)]  # of each shard
        self._sessions = 0
        self._counts = np.zeros(4, np.int64)  # see `SessionRecord`

    def write(self, session: SessionRecord) -> None:
        """Appends a session."""
        shard = self._sessions % len(self._writers)
        self._writers[shard].write(session.record)
        blocks = self._blocks[shard]
        if not blocks or blocks[-1][3] == BLOCK_SESSIONS:
            blocks.append([shard, sum(blocks[-1][1:3]) if blocks else 0, 0, 0, 0])
        for place, more in enumerate((_FRAME + len(session.record), 1, session.counts[0]), start=2):
            blocks[-1][place] += more
        if self._texts:
            self._texts.write(f"{session.text}\n")
        self._sessions += 1
        self._counts += session.counts

    def finish(self) -> Split:
        """Writes the index and returns the split's entry in the manifest. Call it after closing."""
        shards = [{"name": path.name, "bytes": path.stat().st_size} for path in self._paths]
        rows = [row for blocks in self._blocks for row in blocks]
        table = np.array(rows, np.int64).reshape(-1, len(Blocks._fields))
        np.save(self._index, table, allow_pickle=False)
        index = {"name": self._index.name, "sha256": hash_file(self._index)}
        turns, tokens, truncated, negatives = self._counts.tolist()
        given = {"negatives": negatives} if negatives else None
        return Split(self._sessions, turns, tokens, truncated, shards, index, given)


def shard_paths(folder: pathlib.Path, split: Split) -> Sequence[str]:
    """The paths of a split's shards, in order."""
    return [str(folder / shard["name"]) for shard in split.shards]


def check_records(folder: pathlib.Path, manifest: Manifest) -> None:
    """Reads every record of a prepared corpus, after reading has failed: raises InputError with the
    shard and record that cannot be read, or if the number of records is not the manifest's.
    """
    for name, split in manifest.splits.items():
        sessions = sum(count_records(path) for path in shard_paths(folder, split))
        if sessions != split.sessions:
            told = f"{sessions} records in the shards of split {name}, not {split.sessions}"
            raise InputError(f"{folder}: {told} as its manifest says; run prepare_data again")


def count_records(path: str) -> int:
    """Parses all records of a shard, as `check_records`, and returns how many there are."""
    count = 0
    try:
        for record in tf.data.TFRecordDataset(path):
            session, given = parse_session(record), parse_given(record)
            turns, negatives = session["token_ids"].nrows(), given["token_ids"].nrows()
            lengths = [len(session[name]) for name in ("utterances", "speakers")]
            if lengths != [turns, turns] or len(given["utterances"]) != negatives:
                raise ValueError("a fingerprint and a speaker per turn are missing")
            count += 1
    except (tf.errors.OpError, ValueError) as error:
        # TensorFlow's message quotes the record, which Python cannot decode if it is not UTF-8.
        undecodable = isinstance(error, UnicodeDecodeError)
        reason = "not a record of prepare_data" if undecodable else first_line(error)
        told = f"record {count + 1} cannot be read: {reason}"
        raise InputError(f"{path}: {told}; run prepare_data again") from error
    return count


def sample_utterances(
    folder: pathlib.Path, manifest: Manifest, count: int, seed: int, sessions_at_a_time: int = 256
) -> tf.RaggedTensor:
    """Draws at most `count` distinct utterances of the train split, 0 for all: int32 `[utterances,
    (tokens)]`, with [CLS] and [SEP].

    The utterances with the smallest keys, made of token ids and the seed, are drawn in order of
    their keys. So the first n utterances of a larger sample are the sample of size n. Raises
    InputError if there are fewer than two.
    """
    split = manifest.splits["train"]
    records = tf.data.TFRecordDataset(shard_paths(folder, split))
    records = records.map(parse_session, tf.data.AUTOTUNE, deterministic=True)
    kept: dict[int, np.ndarray] = {}
    progress = Progress("sessions read")
    for batch in records.ragged_batch(sessions_at_a_time).prefetch(1):
        keys = _draw_keys(batch["utterances"].flat_values.numpy(), seed)
        turns = batch["token_ids"].merge_dims(0, 1)
        rows = np.split(turns.values.numpy(), turns.row_splits.numpy()[1:-1])
        # Copies, because a view would keep the whole batch in memory.
        kept |= {key: ids.copy() for key, ids in zip(keys.tolist(), rows, strict=True)}
        if count and len(kept) > 2 * count:  # only occasionally, because it sorts
            kept = {key: kept[key] for key in sorted(kept)[:count]}
        progress.update(progress.done + int(batch["session"].shape[0]), split.sessions)

    chosen = [kept[key] for key in sorted(kept)[: count or None]]
    if len(chosen) < 2:
        few = f"at least two distinct utterances in the train split, found {len(chosen)}"
        raise InputError(f"`data_dir`={folder}: expected {few}")
    return tf.RaggedTensor.from_row_lengths(np.concatenate(chosen), list(map(len, chosen)))


def _draw_keys(fingerprints: np.ndarray, seed: int) -> np.ndarray:
    """Maps each int64 to a pseudo-random uint64, one to one (splitmix64; Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = fingerprints.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
