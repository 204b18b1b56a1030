"""From what a reader gave to what the files of a prepared corpus hold, a chunk at a time."""

import collections
import hashlib
import json
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dcse_tf.config import PrepareConfig
from dcse_tf.data.chunks import Chunk
from dcse_tf.data.corpus import join_session
from dcse_tf.data.dialogue import Session, session_to_dict
from dcse_tf.data.manifest import SPLITS
from dcse_tf.data.tfrecords import SplitRecords
from dcse_tf.data.tokenization import Tokenizer, Vocabulary


def assign_split(session_id: str, config: PrepareConfig) -> str:
    """The split of a session: by its id and the seed alone, whatever else is in the corpus."""
    digest = hashlib.blake2b(f"{config.seed}:{session_id}".encode(), digest_size=8).digest()
    position = int.from_bytes(digest, "big") / 2**64
    if position < config.dev_fraction:
        return "dev"
    if position < config.dev_fraction + config.test_fraction:
        return "test"
    return "train"


class ChunkRecords(NamedTuple):
    """What is written of a chunk.

    Attributes:
        splits: the records of each split, in the order of the sessions.
        content: the JSON of the sessions kept, whatever their split, for the corpus's fingerprint.
        dropped: sessions and utterances left out, and why.
    """

    splits: dict[str, SplitRecords]
    content: bytes
    dropped: collections.Counter[str]


class ChunkSerializer:
    """Joins, filters, tokenises and serialises the sessions of a chunk, each by itself alone."""

    def __init__(self, vocabulary: Vocabulary, config: PrepareConfig):
        self._config = config
        tokenizer = Tokenizer(vocabulary)
        # One token more than is kept tells which texts are cut.
        longest = config.max_sequence_length + 1
        self._tokenize = tf.function(
            lambda texts: tokenizer.tokenize(texts, longest),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )

    def __call__(self, chunk: Chunk) -> ChunkRecords:
        dropped: collections.Counter[str] = collections.Counter()
        sessions = [join_session(raw, self._config, dropped) for raw in chunk.sessions()]
        texts = [turn.text for session in sessions for turn in session.turns]
        token_ids, lengths, cut = self._cut(self._tokenize(tf.constant(texts, tf.string)))
        places = np.concatenate([[0], np.cumsum(lengths)])
        splits = {name: SplitRecords(texts=None if name == "train" else []) for name in SPLITS}
        content = []
        end = 0
        for session in sessions:
            start, end = end, end + len(session.turns)
            kept, kept_lengths = _drop_unread(session, lengths[start:end].tolist())
            dropped["empty_utterances"] += len(session.turns) - len(kept.turns)
            if len(kept.turns) < self._config.min_turns:
                dropped["short_sessions"] += 1
                continue
            content.append(json.dumps(session_to_dict(kept)).encode())
            splits[assign_split(kept.session_id, self._config)].add(
                kept,
                token_ids[places[start] : places[end]],
                kept_lengths,
                int(cut[start:end].sum()),
            )
        return ChunkRecords(splits, b"".join(content), dropped)

    def _cut(self, ids: tf.RaggedTensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is kept of the tokens `[turns, (tokens)]`.

        Returns:
            int32 `[tokens]`, the token ids of all turns;
            int64 `[turns]`, their numbers, 0 for a turn that has nothing between [CLS] and [SEP];
            bool `[turns]`, whether the turn is cut.
        """
        splits, limit = ids.row_splits.numpy(), self._config.max_sequence_length
        lengths = np.diff(splits)
        read, cut = lengths > 2, lengths > limit
        kept = np.repeat(read, lengths)
        kept[splits[1:][cut] - 2] = False  # the token before [SEP]
        return ids.values.numpy()[kept], np.where(read, np.minimum(lengths, limit), 0), cut


def _drop_unread(session: Session, lengths: list[int]) -> tuple[Session, list[int]]:
    """The session without the turns that have no token."""
    if 0 not in lengths:
        return session, lengths
    turns = tuple(turn for turn, length in zip(session.turns, lengths) if length)
    return Session(session.session_id, turns), [length for length in lengths if length]
