"""TFRecords of sessions: written in shards, read back, and checked when they do not parse."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from types import TracebackType
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
from dcse_tf.data.options import PrepareOptions
from dcse_tf.errors import InputError, OutputError
from dcse_tf.files import hash_number

_SESSION_ID = "session_id"
_FEATURES = {
    "session": tf.io.FixedLenFeature([], tf.int64),
    "token_ids": tf.io.RaggedFeature(tf.int64),
    "lengths": tf.io.RaggedFeature(tf.int64),
    "utterances": tf.io.RaggedFeature(tf.int64),
    "speakers": tf.io.RaggedFeature(tf.int64),
}
# Only where a corpus gives candidates.
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
    """Of token ids one after another, a fingerprint a text."""
    content = token_ids.astype("<i4").tobytes()
    ends = [4 * end for end in itertools.accumulate(lengths)]
    return _integers([_digest64(content[start:end]) for start, end in zip([0, *ends], ends)])


class GivenTokens(NamedTuple):
    """The candidates of a session, tokenised.

    Attributes:
        dialogue: as in `GivenCandidates`.
        token_ids: int `[tokens]`, of all negatives one after another, with [CLS] and [SEP].
        lengths: number of tokens of each.
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
    """The record of a session, a tf.train.Example; the same bytes in every process.

    Besides the token ids it holds fingerprints of 64 bits each: `session` is that of the session's
    id, or of its dialogue's if that is given; `utterances` are those of each turn's token ids. To
    the encoder, turns with equal token ids are one text. Equal fingerprints therefore mark what is
    encoded only once, and what cannot be a negative. `speakers` numbers the roles of a session in
    the order in which they first speak.

    Args:
        session_id: the session's id.
        token_ids: int `[tokens]`, of all turns one after another, with [CLS] and [SEP].
        lengths: number of tokens of each turn.
        roles: who speaks each turn.
        given: candidates for the last turn, if the corpus gives any.
    """
    dialogue = given.dialogue if given else session_id
    example = tf.train.Example()
    features = example.features.feature
    # Extending lists in place is twice as fast as passing arrays and messages to protobuf.
    features[_SESSION_ID].bytes_list.value.append(session_id.encode())
    features["session"].int64_list.value.extend(_integers([_digest64(dialogue.encode())]))
    features["token_ids"].int64_list.value.extend(token_ids.tolist())
    features["lengths"].int64_list.value.extend(lengths)
    fingerprints = _fingerprint_texts(token_ids, lengths)
    features["utterances"].int64_list.value.extend(fingerprints)
    numbers = {role: number for number, role in enumerate(dict.fromkeys(roles))}
    features["speakers"].int64_list.value.extend([numbers[role] for role in roles])
    if given:
        fingerprints = _fingerprint_texts(given.token_ids, given.lengths)
        features["given_token_ids"].int64_list.value.extend(given.token_ids.tolist())
        features["given_lengths"].int64_list.value.extend(given.lengths)
        features["given_utterances"].int64_list.value.extend(fingerprints)
        features["given_scores"].float_list.value.extend(given.scores)

    # Otherwise the order of a map's entries would differ between processes.
    return example.SerializeToString(deterministic=True)


def parse_session(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """The features of a record.

    Args:
        record: a scalar string that `serialize_session` made.

    Returns:
        session: int64 scalar, fingerprint of the session's id.
        token_ids: int32 `[turns, (tokens)]`, ragged.
        utterances: int64 `[turns]`, fingerprints of the turns' token ids.
        speakers: int32 `[turns]`, who speaks, numbered from 0.
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
    }


def parse_given(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """The candidates that a record gives for its last turn.

    Args:
        record: a scalar string that `serialize_session` made.

    Returns:
        token_ids: int32 `[negatives, (tokens)]`, ragged; no rows where the record gives none.
        utterances: int64 `[negatives]`, fingerprints of the token ids.
        scores: float32 `[1 + negatives]`, a teacher's, of the last turn and then of each negative;
            empty where there are none.
    """
    features = tf.io.parse_single_example(record, _GIVEN_FEATURES)
    token_ids = tf.cast(features["given_token_ids"], tf.int32)
    return {
        "token_ids": tf.RaggedTensor.from_row_lengths(token_ids, features["given_lengths"]),
        "utterances": features["given_utterances"],
        "scores": features["given_scores"],
    }


def parse_utterances(records: tf.Tensor) -> tf.RaggedTensor:
    """The token ids of all turns of all records `[sessions]`: int32 `[utterances, (tokens)]`."""
    features = {name: _FEATURES[name] for name in ("token_ids", "lengths")}
    parsed = tf.io.parse_example(records, features)
    lengths = parsed["lengths"]
    tokens = tf.cast(parsed["token_ids"].row_lengths(), tf.int64)
    tf.debugging.assert_equal(tf.reduce_sum(lengths, axis=1), tokens, "turns and tokens differ")
    return tf.RaggedTensor.from_row_lengths(
        tf.cast(parsed["token_ids"].values, tf.int32), lengths.values
    )


def parse_session_ids(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The ids of sessions and their numbers of turns; training itself needs no ids.

    Args:
        records: strings `[sessions]`.

    Returns:
        strings `[sessions]` and int64 `[sessions]`, the number of turns.
    """
    feature = {_SESSION_ID: tf.io.FixedLenFeature([], tf.string), "lengths": _FEATURES["lengths"]}
    parsed = tf.io.parse_example(records, feature)
    return parsed[_SESSION_ID], tf.cast(parsed["lengths"].row_lengths(), tf.int64)


@dataclasses.dataclass
class SplitRecords:
    """Some sessions of one split, ready to be written.

    Attributes:
        records: the record of each session.
        texts: each session as a line of JSON; None for a split whose texts are not written.
        turns: number of turns of each session.
        tokens, truncated: counts over all sessions, as in `Split`.
        negatives: number of negatives of each session that gives any.
        scored: how many of these have a teacher's scores.
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
            token_ids: int `[tokens]`, of all turns one after another, with [CLS] and [SEP].
            lengths: number of tokens of each turn.
            truncated: number of turns that were cut.
            given: candidates for the last turn, if the corpus gives any.
        """
        roles = [turn.role for turn in session.turns]
        self.records.append(serialize_session(session.session_id, token_ids, lengths, roles, given))
        if given:
            self.negatives.append(len(given.lengths))
            self.scored += bool(given.scores)
        if self.texts is not None:
            self.texts.append(json.dumps(session_to_dict(session), ensure_ascii=False) + "\n")
        self.turns.append(len(lengths))
        self.tokens += len(token_ids)
        self.truncated += truncated


@dataclasses.dataclass
class SplitCounts:
    """What the manifest says of a split, see `Split` and `Given`, while it is counted."""

    sessions: int = 0
    utterances: int = 0
    tokens: int = 0
    truncated: int = 0
    negatives: int = 0
    most: int = 0
    scored: int = 0

    def add_records(self, records: SplitRecords) -> None:
        """Counts further sessions."""
        of_sessions = len(records.records), sum(records.turns), records.tokens, records.truncated
        of_given = sum(records.negatives), max(records.negatives, default=0), records.scored
        self.add(SplitCounts(*of_sessions, *of_given))

    def add(self, other: "SplitCounts") -> None:
        """Adds what was counted elsewhere."""
        self.sessions += other.sessions
        self.utterances += other.utterances
        self.tokens += other.tokens
        self.truncated += other.truncated
        self.negatives += other.negatives
        self.most = max(self.most, other.most)
        self.scored += other.scored

    def make_split(self, shards: tuple[Shard, ...], index: Index) -> Split:
        """The split's entry of the manifest."""
        given = Given(self.negatives, self.most, self.scored) if self.negatives else None
        counts = self.sessions, self.utterances, self.tokens, self.truncated
        return Split(*counts, shards, index, given)


def name_shard(split: str, number: int, shards: int) -> str:
    """The file of a split's shard."""
    return f"{split}-{number:05d}-of-{shards:05d}.tfrecord"


def name_index(split: str) -> str:
    """The file of a split's index."""
    return f"{split}-blocks.npy"


class SplitWriter:
    """Writes the sessions of one split: TFRecord shards, their index, optionally JSON Lines.

    Sessions are dealt to the shards in turn, so that all shards have about the same size and each
    is a sample of the whole.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.ExitStack() as stack:  # closes all, even if closing one of them fails
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
        """Writes the index, once all is closed; returns the split's entry of the manifest."""
        shards = tuple(Shard(name, (self._folder / name).stat().st_size) for name in self._names)
        index = write_blocks(self._folder / self._index_name, self._blocks.rows())
        return self._counts.make_split(shards, index)


def shard_paths(folder: pathlib.Path, split: Split) -> Sequence[str]:
    """The paths of a split's shards, in their order."""
    return [str(folder / shard.name) for shard in split.shards]


def assign_split(dialogue: str, config: PrepareOptions) -> str:
    """The split of a dialogue. It depends only on the id and the seed, not on other dialogues."""
    position = hash_number(f"{config.seed}:{dialogue}") / 2**64
    if position < config.dev_fraction:
        return "dev"
    if position < config.dev_fraction + config.test_fraction:
        return "test"
    return "train"


def check_records(folder: pathlib.Path, manifest: Manifest) -> None:
    """Reads every record of a prepared corpus, to say what is damaged once reading it has failed.

    Raises:
        InputError: a shard is missing, a record cannot be read, or the number of records of a
            split is not that of the manifest. The message names shard and record.
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
                    f"{path}: record {count + 1}: not one fingerprint and score a candidate"
                )
            turns = {session[name].shape[0] for name in ("utterances", "speakers")}
            if turns != {int(session["token_ids"].nrows())}:
                raise InputError(
                    f"{path}: record {count + 1}: not one fingerprint and speaker a turn"
                )
            count += 1
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        # TensorFlow's message quotes the record, which may not be text: then Python cannot decode
        # it, and there is no message.
        lines = getattr(error, "message", "").strip().splitlines()
        reason = lines[0] if lines else "not a record of prepare_data"
        raise InputError(
            f"{path}: record {count + 1} cannot be read: {reason}; run prepare_data again"
        ) from error
    return count
