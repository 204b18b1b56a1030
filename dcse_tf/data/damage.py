"""Which record of which shard cannot be read."""

import pathlib

import tensorflow as tf

from dcse_tf.data.manifest import Manifest, Split
from dcse_tf.data.tfrecords import parse_session, shard_paths
from dcse_tf.errors import InputError


def raise_damage(folder: pathlib.Path, manifest: Manifest) -> None:
    """Reads every record of a prepared corpus, as slow as that is: something in it is damaged.

    Raises:
        InputError: a shard is missing, a record cannot be read, or a split has another number of
            records than its manifest says; the message names shard and record, and what to do.
    """
    for name, split in manifest.splits.items():
        sessions = sum(count_records(path) for path in shard_paths(folder, split))
        _check_count(folder, name, split, sessions)


def count_records(path: str) -> int:
    """Records of a shard, each of them parsed.

    Raises:
        InputError: the shard is missing, or a record cannot be read; the message names both.
    """
    if not pathlib.Path(path).is_file():
        raise InputError(f"{path}: no such file any more; put it back, or run prepare_data again")
    count = 0
    try:
        for record in tf.data.TFRecordDataset(path):
            session = parse_session(record)
            if session["utterances"].shape[0] != session["token_ids"].nrows():
                raise InputError(f"{path}: record {count + 1}: not a fingerprint for each turn")
            count += 1
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        # TensorFlow's message quotes the record, and fails where that is no text.
        said = getattr(error, "message", "").strip().splitlines()
        reason = said[0] if said else "not a record of prepare_data"
        raise InputError(
            f"{path}: record {count + 1} cannot be read: {reason}; run prepare_data again"
        ) from error
    return count


def _check_count(folder: pathlib.Path, name: str, split: Split, sessions: int) -> None:
    if sessions != split.sessions:
        raise InputError(
            f"{folder}: the shards of split {name} have {sessions} records, the manifest says "
            f"{split.sessions}; run prepare_data again"
        )
