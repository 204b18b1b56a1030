"""The record of a session: its features, sharded writing, parsing."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
import tensorflow as tf

from dcse_tf.data.dialogue import Session, session_to_dict
from dcse_tf.data.manifest import Shard, Split

_FEATURES = {
    "session": tf.io.FixedLenFeature([], tf.int64),
    "token_ids": tf.io.RaggedFeature(tf.int64),
    "lengths": tf.io.RaggedFeature(tf.int64),
    "utterances": tf.io.RaggedFeature(tf.int64),
}


def _fingerprint64(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


@dataclasses.dataclass(frozen=True)
class TokenizedSession:
    """A session, the token ids of its turns with [CLS] and [SEP], and how many turns were cut."""

    session: Session
    token_ids: tuple[np.ndarray, ...]
    truncated: int


def serialize_session(tokenized: TokenizedSession) -> bytes:
    """The record of a session, a tf.train.Example.

    Besides the token ids it holds fingerprints, 64 bits each: `session` of the session's id, and
    `utterances` of each turn's token ids. Two turns with equal token ids are one text to the
    encoder, so equal fingerprints mark what is encoded once and what cannot be a negative.
    """
    token_ids = tokenized.token_ids
    values = {
        "session": [_fingerprint64(tokenized.session.session_id.encode())],
        "token_ids": np.concatenate(token_ids),
        "lengths": [len(ids) for ids in token_ids],
        "utterances": [_fingerprint64(ids.astype("<i4").tobytes()) for ids in token_ids],
    }
    features = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        for name, value in values.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def parse_session(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """The features of a record.

    Args:
        record: a scalar string that `serialize_session` made.

    Returns:
        session: int64 scalar, fingerprint of the session's id.
        token_ids: int32 `[turns, (tokens)]`, ragged.
        utterances: int64 `[turns]`, fingerprints of the turns' token ids.
    """
    features = tf.io.parse_single_example(record, _FEATURES)
    token_ids = tf.RaggedTensor.from_row_lengths(
        tf.cast(features["token_ids"], tf.int32), features["lengths"]
    )
    return {
        "session": features["session"],
        "token_ids": token_ids,
        "utterances": features["utterances"],
    }


class SplitWriter:
    """Writes the sessions of one split: TFRecord shards, and optionally their texts as JSON Lines.

    Sessions go to the shards in turn, so that all are of a size and any one is a sample.
    """

    def __init__(self, folder: pathlib.Path, split: str, shards: int, texts: bool):
        self._names = [f"{split}-{i:05d}-of-{shards:05d}.tfrecord" for i in range(shards)]
        self._folder = folder
        self._writers = [tf.io.TFRecordWriter(str(folder / name)) for name in self._names]
        self._texts = (
            (folder / f"{split}.jsonl").open("w", encoding="utf-8", newline="\n") if texts else None
        )
        self.sessions = self.utterances = self.tokens = self.truncated = 0

    def write(self, tokenized: TokenizedSession) -> None:
        self._writers[self.sessions % len(self._writers)].write(serialize_session(tokenized))
        if self._texts:
            line = json.dumps(session_to_dict(tokenized.session), ensure_ascii=False)
            self._texts.write(line + "\n")
        self.sessions += 1
        self.utterances += len(tokenized.token_ids)
        self.tokens += sum(len(ids) for ids in tokenized.token_ids)
        self.truncated += tokenized.truncated

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for writer in self._writers:
            writer.close()
        if self._texts:
            self._texts.close()

    def finish(self) -> Split:
        """The split's entry of the manifest; call it after the writer is closed."""
        shards = tuple(Shard(name, (self._folder / name).stat().st_size) for name in self._names)
        return Split(self.sessions, self.utterances, self.tokens, self.truncated, shards)


def shard_paths(folder: pathlib.Path, split: Split) -> Sequence[str]:
    return [str(folder / shard.name) for shard in split.shards]
