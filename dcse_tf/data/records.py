"""TFRecords of sessions: writing them in shards, parsing them, and finding damaged ones."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from dcse_tf.data.dialogue import Session, session_to_dict
from dcse_tf.data.manifest import (
    BlockCounter,
    Given,
    Index,
    Manifest,
    Shard,
    Split,
    write_blocks,
)
from dcse_tf.errors import InputError, OutputError

_SESSION_ID = "session_id"
_FEATURES = {
    "session": tf.io.FixedLenFeature([], tf.int64),
    "token_ids": tf.io.RaggedFeature(tf.int64),
    "lengths": tf.io.RaggedFeature(tf.int64),
    "utterances": tf.io.RaggedFeature(tf.int64),
    "speakers": tf.io.RaggedFeature(tf.int64),
    "roles": tf.io.RaggedFeature(tf.int64),
}
# Present only if the corpus gives candidates.
_GIVEN_FEATURES = {
    "given_token_ids": tf.io.RaggedFeature(tf.int64),
    "given_lengths": tf.io.RaggedFeature(tf.int64),
    "given_utterances": tf.io.RaggedFeature(tf.int64),
    "given_scores": tf.io.RaggedFeature(tf.float32),
}


def _digest64(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def _integers(digests: Sequence[bytes]) -> list[int]:
    return np.frombuffer(b"".join(digests), "<i8").tolist()


def _fingerprint_texts(token_ids: np.ndarray, lengths: Sequence[int]) -> list[int]:
    """A fingerprint for each text, given the concatenated token ids and the texts' lengths."""
    content = token_ids.astype("<i4").tobytes()
    ends = [4 * end for end in itertools.accumulate(lengths)]
    return _integers([_digest64(content[start:end]) for start, end in zip([0, *ends], ends)])


class GivenTokens(NamedTuple):
    """The tokenised candidates of a session.

    Attributes:
        dialogue: as in `GivenCandidates`.
        token_ids: int `[tokens]`, all negatives concatenated, each with [CLS] and [SEP].
        lengths: number of tokens of each negative.
        scores: as in `GivenCandidates`.
    """

    dialogue: str
    token_ids: np.ndarray
    lengths: Sequence[int]
    scores: Sequence[float]


def serialize_session(
    session_id: str,
    token_ids: np.ndarray,
    lengths: Sequence[int],
    roles: Sequence[str],
    given: GivenTokens | None = None,
) -> bytes:
    """Serialises a session as a tf.train.Example, with the same bytes in every process.

    Besides the token ids, the record holds 64-bit fingerprints. `session` is the fingerprint of the
    session's id, or of its dialogue's id if candidates are given; `utterances` are those of each
    turn's token ids. The encoder cannot tell turns with equal token ids apart, so turns with equal
    fingerprints are encoded only once, and are no negatives of each other. `roles` are those of the
    names of the session's roles, in the order in which they first speak, and `speakers` the index
    of each turn's role among them.

    Args:
        session_id: the session's id.
        token_ids: int `[tokens]`, all turns concatenated, each with [CLS] and [SEP].
        lengths: number of tokens of each turn.
        roles: the speaker of each turn.
        given: candidates for the last turn, if the corpus gives any.
    """
    dialogue = given.dialogue if given else session_id
    example = tf.train.Example()
    features = example.features.feature
    # Extending the lists in place is twice as fast as passing arrays and messages to protobuf.
    features[_SESSION_ID].bytes_list.value.append(session_id.encode())
    features["session"].int64_list.value.extend(_integers([_digest64(dialogue.encode())]))
    features["token_ids"].int64_list.value.extend(token_ids.tolist())
    features["lengths"].int64_list.value.extend(lengths)
    fingerprints = _fingerprint_texts(token_ids, lengths)
    features["utterances"].int64_list.value.extend(fingerprints)
    numbers = {role: number for number, role in enumerate(dict.fromkeys(roles))}
    features["speakers"].int64_list.value.extend([numbers[role] for role in roles])
    names = _integers([_digest64(role.encode()) for role in numbers])
    features["roles"].int64_list.value.extend(names)
    if given:
        fingerprints = _fingerprint_texts(given.token_ids, given.lengths)
        features["given_token_ids"].int64_list.value.extend(given.token_ids.tolist())
        features["given_lengths"].int64_list.value.extend(given.lengths)
        features["given_utterances"].int64_list.value.extend(fingerprints)
        features["given_scores"].float_list.value.extend(given.scores)

    # By default the order of a map's entries differs between processes.
    return example.SerializeToString(deterministic=True)


def parse_session(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses the features of a session's record.

    Args:
        record: scalar string, as `serialize_session` returns it.

    Returns:
        session: int64 scalar, fingerprint of the id of the session, or of its dialogue.
        token_ids: int32 `[turns, (tokens)]`, ragged, with [CLS] and [SEP].
        utterances: int64 `[turns]`, fingerprints of the turns' token ids.
        speakers: int32 `[turns]`, the speaker of each turn, numbered from 0.
        roles: int64 `[turns]`, fingerprints of the names of the speakers' roles, which unlike
            the numbers are the same in all sessions.
    """
    features = tf.io.parse_single_example(record, _FEATURES)
    token_ids = tf.RaggedTensor.from_row_lengths(
        tf.cast(features["token_ids"], tf.int32), features["lengths"]
    )
    return {
        "session": features["session"],
        "token_ids": token_ids,
        "utterances": features["utterances"],
        "speakers": tf.cast(features["speakers"], tf.int32),
        "roles": tf.gather(features["roles"], features["speakers"]),
    }


def parse_given(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses the candidates that a record gives for its last turn.

    Args:
        record: scalar string, as `serialize_session` returns it.

    Returns:
        token_ids: int32 `[negatives, (tokens)]`, ragged; without rows if the record gives none.
        utterances: int64 `[negatives]`, fingerprints of the token ids.
        scores: float32 `[1 + negatives]`, a teacher's scores of the last turn and then of each
            negative; empty if there are none.
    """
    features = tf.io.parse_single_example(record, _GIVEN_FEATURES)
    token_ids = tf.cast(features["given_token_ids"], tf.int32)
    return {
        "token_ids": tf.RaggedTensor.from_row_lengths(token_ids, features["given_lengths"]),
        "utterances": features["given_utterances"],
        "scores": features["given_scores"],
    }


def parse_utterances(records: tf.Tensor) -> tf.RaggedTensor:
    """Parses records `[sessions]` to the token ids of all turns: int32 `[utterances, (tokens)]`."""
    features = {name: _FEATURES[name] for name in ("token_ids", "lengths")}
    parsed = tf.io.parse_example(records, features)
    lengths = parsed["lengths"]
    tokens = tf.cast(parsed["token_ids"].row_lengths(), tf.int64)
    tf.debugging.assert_equal(tf.reduce_sum(lengths, axis=1), tokens, "turns and tokens differ")
    return tf.RaggedTensor.from_row_lengths(
        tf.cast(parsed["token_ids"].values, tf.int32), lengths.values
    )


def parse_session_ids(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Parses the sessions' ids and numbers of turns. Training itself needs no ids.

    Args:
        records: strings `[sessions]`.

    Returns:
        The ids, strings `[sessions]`; and the numbers of turns, int64 `[sessions]`.
    """
    feature = {_SESSION_ID: tf.io.FixedLenFeature([], tf.string), "lengths": _FEATURES["lengths"]}
    parsed = tf.io.parse_example(records, feature)
    return parsed[_SESSION_ID], tf.cast(parsed["lengths"].row_lengths(), tf.int64)


@dataclasses.dataclass
class SplitRecords:
    """Serialised sessions of one split, ready to be written.

    Attributes:
        texts: each session as a line of JSON; None for a split whose texts are not written.
        records: the record of each session.
        turns: number of turns of each session.
        tokens, truncated: number of tokens and of truncated utterances in all sessions.
        negatives: number of negatives of each session that has candidates.
        scored: number of sessions with a teacher's scores.
    """

    texts: list[str] | None
    records: list[bytes] = dataclasses.field(default_factory=list)
    turns: list[int] = dataclasses.field(default_factory=list)
    tokens: int = 0
    truncated: int = 0
    negatives: list[int] = dataclasses.field(default_factory=list)
    scored: int = 0

    def add(
        self,
        session: Session,
        token_ids: np.ndarray,
        lengths: Sequence[int],
        truncated: int,
        given: GivenTokens | None = None,
    ) -> None:
        """Adds a session.

        Args:
            session: the session.
            token_ids: int `[tokens]`, all turns concatenated, each with [CLS] and [SEP].
            lengths: number of tokens of each turn.
            truncated: number of turns that were truncated.
            given: candidates for the last turn, if the corpus gives any.
        """
        roles = [turn.role for turn in session.turns]
        self.records.append(serialize_session(session.session_id, token_ids, lengths, roles, given))
        if given:
            self.negatives.append(len(given.lengths))
            self.scored += bool(given.scores)
        if self.texts is not None:
            content = session_to_dict(session)
            if session.given:
                content["dialogue"] = session.dialogue
            self.texts.append(json.dumps(content, ensure_ascii=False) + "\n")
        self.turns.append(len(lengths))
        self.tokens += len(token_ids)
        self.truncated += truncated


@dataclasses.dataclass
class SplitCounts:
    """Running counts of a split for the manifest, see `Split` and `Given`."""

    sessions: int = 0
    utterances: int = 0
    tokens: int = 0
    truncated: int = 0
    negatives: int = 0
    most: int = 0
    scored: int = 0

    def add_records(self, records: SplitRecords) -> None:
        """Adds the counts of serialised sessions."""
        of_sessions = len(records.records), sum(records.turns), records.tokens, records.truncated
        of_given = sum(records.negatives), max(records.negatives, default=0), records.scored
        self.add(SplitCounts(*of_sessions, *of_given))

    def add(self, other: "SplitCounts") -> None:
        """Adds other counts."""
        self.sessions += other.sessions
        self.utterances += other.utterances
        self.tokens += other.tokens
        self.truncated += other.truncated
        self.negatives += other.negatives
        self.most = max(self.most, other.most)
        self.scored += other.scored

    def make_split(self, shards: tuple[Shard, ...], index: Index) -> Split:
        """Makes the split's entry in the manifest."""
        given = Given(self.negatives, self.most, self.scored) if self.negatives else None
        counts = self.sessions, self.utterances, self.tokens, self.truncated
        return Split(*counts, shards, index, given)


def name_shard(split: str, number: int, shards: int) -> str:
    """The file name of a split's shard."""
    return f"{split}-{number:05d}-of-{shards:05d}.tfrecord"


def name_index(split: str) -> str:
    """The file name of a split's index."""
    return f"{split}-blocks.npy"


class SplitWriter:
    """Writes the sessions of one split: TFRecord shards, their index, and optionally JSON Lines.

    Sessions are assigned to the shards in rotation, so that all shards have about the same size and
    each is a sample of the whole.
    """

    def __init__(self, folder: pathlib.Path, split: str, shards: int, texts: bool):
        self._names = [name_shard(split, number, shards) for number in range(shards)]
        self._folder, self._index_name = folder, name_index(split)
        self._blocks = BlockCounter(shards)
        self._writers = [tf.io.TFRecordWriter(str(folder / name)) for name in self._names]
        self._texts = (
            (folder / f"{split}.jsonl").open("w", encoding="utf-8", newline="\n") if texts else None
        )
        self._counts = SplitCounts()

    def write(self, sessions: SplitRecords) -> None:
        with self._named_faults():
            pairs = zip(sessions.records, sessions.turns, strict=True)
            for number, (record, turns) in enumerate(pairs, start=self._counts.sessions):
                shard = number % len(self._writers)
                self._writers[shard].write(record)
                self._blocks.add(shard, len(record), turns)
        if self._texts and sessions.texts:
            self._texts.writelines(sessions.texts)
        self._counts.add_records(sessions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:  # closes all files, even if closing one fails
            if self._texts:
                stack.callback(self._texts.close)
            for writer in self._writers:
                stack.callback(self._close, writer)

    def _close(self, writer: tf.io.TFRecordWriter) -> None:
        with self._named_faults():
            writer.close()

    @contextlib.contextmanager
    def _named_faults(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            raise OutputError(f"{self._folder}: cannot be written: {error.message}") from error

    def finish(self) -> Split:
        """Writes the index and returns the split's entry in the manifest. Call it after closing."""
        shards = tuple(Shard(name, (self._folder / name).stat().st_size) for name in self._names)
        index = write_blocks(self._folder / self._index_name, self._blocks.rows())
        return self._counts.make_split(shards, index)


def shard_paths(folder: pathlib.Path, split: Split) -> Sequence[str]:
    """The paths of a split's shards, in order."""
    return [str(folder / shard.name) for shard in split.shards]


def check_records(folder: pathlib.Path, manifest: Manifest) -> None:
    """Reads every record of a prepared corpus to find what is damaged, after reading has failed.

    Raises:
        InputError: a shard is missing, a record cannot be read, or the number of records in a
            split differs from the manifest's. The message names the shard and the record.
    """
    for name, split in manifest.splits.items():
        sessions = sum(count_records(path) for path in shard_paths(folder, split))
        if sessions != split.sessions:
            raise InputError(
                f"{folder}: the shards of split {name} have {sessions} records, the manifest says "
                f"{split.sessions}; run prepare_data again"
            )


def count_records(path: str) -> int:
    """Parses all records of a shard and returns how many there are.

    Raises:
        InputError: the shard is missing, or a record cannot be read. The message names both.
    """
    if not pathlib.Path(path).is_file():
        raise InputError(f"{path}: the file is gone; put it back, or run prepare_data again")
    count = 0
    try:
        for record in tf.data.TFRecordDataset(path):
            session, given = parse_session(record), parse_given(record)
            negatives = int(given["token_ids"].nrows())
            if len(given["utterances"]) != negatives or len(given["scores"]) not in (
                0,
                1 + negatives,
            ):
                raise InputError(
                    f"{path}: record {count + 1}: expected one fingerprint and score per candidate"
                )
            turns = {session[name].shape[0] for name in ("utterances", "speakers")}
            if turns != {int(session["token_ids"].nrows())}:
                raise InputError(
                    f"{path}: record {count + 1}: expected one fingerprint and speaker per turn"
                )
            count += 1
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        # TensorFlow's message quotes the record. If that is not UTF-8, Python cannot decode the
        # message and raises a UnicodeDecodeError in its place.
        lines = getattr(error, "message", "").strip().splitlines()
        reason = lines[0] if lines else "not a record of prepare_data"
        raise InputError(
            f"{path}: record {count + 1} cannot be read: {reason}; run prepare_data again"
        ) from error
    return count
