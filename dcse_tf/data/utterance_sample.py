"""Samples distinct utterances of a prepared corpus by a hash."""

import pathlib

import numpy as np
import tensorflow as tf

from dcse_tf.data.manifest import Manifest
from dcse_tf.data.records import parse_session, shard_paths
from dcse_tf.progress import Progress


def sample_utterances(
    folder: pathlib.Path, manifest: Manifest, count: int, seed: int, sessions_at_a_time: int = 256
) -> tf.RaggedTensor:
    """Draws at most `count` distinct utterances of the train split, 0 for all: int32 `[utterances,
    (tokens)]`, with [CLS] and [SEP].

    Every distinct utterance has a key, computed from its token ids and the seed. The utterances
    with the smallest keys are drawn, in order of their keys. So the first n utterances of a larger
    sample are the sample of size n.
    """
    split = manifest.splits["train"]
    records = tf.data.TFRecordDataset(shard_paths(folder, split)).map(
        parse_session, tf.data.AUTOTUNE, deterministic=True
    )

    kept: dict[int, np.ndarray] = {}
    limit = np.uint64(2**64 - 1)
    progress = Progress("sessions read")
    for batch in records.ragged_batch(sessions_at_a_time).prefetch(1):
        keys = _draw_keys(batch["utterances"].flat_values.numpy(), seed)
        turns = batch["token_ids"].merge_dims(0, 1)
        ids, splits = turns.values.numpy(), turns.row_splits.numpy()
        for place in np.flatnonzero(keys <= limit):
            # A copy, because a view would keep the whole batch in memory.
            found = ids[splits[place] : splits[place + 1]].copy()
            kept.setdefault(int(keys[place]), found)
        if count and len(kept) > 2 * count:  # only occasionally, because it sorts
            kept = {key: kept[key] for key in sorted(kept)[:count]}
            limit = np.uint64(max(kept))
        progress.update(progress.done + int(batch["session"].shape[0]), split.sessions)

    chosen = [kept[key] for key in sorted(kept)[: count or None]]
    values = np.concatenate([np.zeros(0, np.int32), *chosen])
    lengths = np.array([len(ids) for ids in chosen], np.int64)
    return tf.RaggedTensor.from_row_lengths(values, lengths)


def _draw_keys(fingerprints: np.ndarray, seed: int) -> np.ndarray:
    """Maps each int64 to a pseudo-random uint64, one to one (splitmix64; Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = fingerprints.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
