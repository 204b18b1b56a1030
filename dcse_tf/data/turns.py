"""The turns of a prepared corpus as columns, with each distinct text stored once."""

import collections
import dataclasses
import pathlib

import numpy as np
import tensorflow as tf

from dcse_tf.data.manifest import Split
from dcse_tf.data.records import parse_session, parse_session_ids, shard_paths
from dcse_tf.progress import Progress

_SESSIONS_AT_A_TIME = 256


@dataclasses.dataclass(frozen=True)
class Turns:
    """The turns of a split, session by session. They take about 150 bytes of memory per turn.

    Attributes:
        session_ids: the id of each session.
        session_splits: int64 `[sessions + 1]`, where the turns of each session begin.
        dialogue: int64 `[turns]`, fingerprint of the session, or of the dialogue it is from.
        speaker: int32 `[turns]`, the speaker, numbered within each session by order of speaking.
        text: int64 `[turns]`, index of the turn's text among the distinct texts.
        fingerprints: int64 `[texts]`, fingerprints of the distinct texts, ascending.
        token_ids: int32 `[tokens]`, all distinct texts concatenated, each with [CLS] and [SEP].
        token_splits: int64 `[texts + 1]`, where the tokens of each text begin.
    """

    session_ids: list[str]
    session_splits: np.ndarray
    dialogue: np.ndarray
    speaker: np.ndarray
    text: np.ndarray
    fingerprints: np.ndarray
    token_ids: np.ndarray
    token_splits: np.ndarray

    def __len__(self) -> int:
        return len(self.text)

    def around(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the texts before and after each turn, each int64 `[turns]`; -1 for none."""
        before, after = np.full([2, len(self)], -1, np.int64)
        before[1:], after[:-1] = self.text[:-1], self.text[1:]
        before[self.session_splits[:-1]] = after[self.session_splits[1:] - 1] = -1
        return before, after

    def tokens_of(self, text: int) -> np.ndarray:
        """The token ids of a text, int32 `[tokens]`."""
        return self.token_ids[self.token_splits[text] : self.token_splits[text + 1]]

    def read_texts(self, start: int, stop: int) -> tf.RaggedTensor:
        """The token ids of texts `start` to `stop` - 1, int32 `[stop - start, (tokens)]`."""
        splits = self.token_splits[start : stop + 1]
        ids = self.token_ids[splits[0] : splits[-1]]
        return tf.RaggedTensor.from_row_splits(ids, splits - splits[0])

    def locate(self, turn: int) -> tuple[str, int]:
        """The id of a turn's session, and the turn's index in the session, from 0."""
        session = int(np.searchsorted(self.session_splits, turn, side="right")) - 1
        return self.session_ids[session], turn - int(self.session_splits[session])


def read_turns(folder: pathlib.Path, split: Split) -> Turns:
    """Reads the turns of a split of a prepared corpus."""

    def parse(record: tf.Tensor) -> dict:
        return {"id": parse_session_ids(record[None])[0][0], **parse_session(record)}

    records = tf.data.TFRecordDataset(shard_paths(folder, split))
    sessions = records.map(parse, tf.data.AUTOTUNE, deterministic=True)
    ids: list[str] = []
    columns: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    with Progress("sessions read", split.sessions) as progress:
        for batch in sessions.ragged_batch(_SESSIONS_AT_A_TIME).prefetch(1):
            ids += [name.decode("utf-8", "replace") for name in batch["id"].numpy()]
            turns = batch["utterances"].row_lengths()
            texts = batch["token_ids"].merge_dims(0, 1)
            found = {
                "turns": turns,
                "dialogue": tf.repeat(batch["session"], turns),
                "speaker": batch["speakers"].flat_values,
                "fingerprints": batch["utterances"].flat_values,
                "lengths": texts.row_lengths(),
                "tokens": texts.values,
            }
            for name, values in found.items():
                columns[name].append(values.numpy())
            progress.update(len(ids))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    distinct, first, text = np.unique(
        joined["fingerprints"], return_index=True, return_inverse=True
    )
    return Turns(
        ids,
        _splits(joined["turns"]),
        joined["dialogue"],
        joined["speaker"],
        text,
        distinct,
        *_select(joined["tokens"], joined["lengths"], first),
    )


def _splits(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _select(
    tokens: np.ndarray, lengths: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Selects rows of a ragged array, given as values and lengths; returns values and splits."""
    splits = _splits(lengths[rows])
    # How far each selected row's values lie from their new position.
    shift = _splits(lengths)[rows] - splits[:-1]
    return tokens[np.arange(splits[-1]) + np.repeat(shift, lengths[rows])], splits
