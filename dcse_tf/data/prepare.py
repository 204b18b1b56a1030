"""The job behind `prepare_data`: files of dialogues to sharded TFRecords with a manifest."""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.atomic import atomic_directory
from dcse_tf.config import PrepareConfig
from dcse_tf.data.corpus import read_sessions
from dcse_tf.data.dialogue import Session, session_to_dict
from dcse_tf.data.manifest import SPLITS, Manifest, write_manifest
from dcse_tf.data.tfrecords import SplitWriter, TokenizedSession
from dcse_tf.data.tokenization import (
    Tokenizer,
    Vocabulary,
    read_vocabulary,
    train_vocabulary,
    write_vocabulary,
)
from dcse_tf.errors import InputError
from dcse_tf.input_files import BadLines

VOCABULARY_FOLDER = "vocabulary"
_CHUNK = 1024  # sessions tokenised at a time


def prepare(config: PrepareConfig, vocabulary_folder: pathlib.Path | None) -> Manifest:
    """Reads, joins, filters, splits, tokenises and writes a corpus.

    Args:
        config: the settings.
        vocabulary_folder: where the checkpoint's vocabulary lies; None to train one.

    Raises:
        InputError: an input cannot be read, has too many bad lines, or leaves no training session.
        FileExistsError: the output exists and may not be replaced.
    """
    output = pathlib.Path(config.output_dir)
    with atomic_directory(output, config.overwrite) as folder:
        if vocabulary_folder is None:
            vocabulary = train_vocabulary(_TrainTexts(config), config.vocab_size, config.lowercase)
            logging.info("trained a vocabulary of %d entries", len(vocabulary.tokens))
        else:
            vocabulary = read_vocabulary(vocabulary_folder)
        (folder / VOCABULARY_FOLDER).mkdir()
        write_vocabulary(folder / VOCABULARY_FOLDER, vocabulary)
        manifest = _write_splits(config, folder, vocabulary)
        write_manifest(folder, manifest)
    return manifest


def assign_split(session_id: str, config: PrepareConfig) -> str:
    """The split of a session: by its id and the seed alone, whatever else is in the corpus."""
    digest = hashlib.blake2b(f"{config.seed}:{session_id}".encode(), digest_size=8).digest()
    position = int.from_bytes(digest, "big") / 2**64
    if position < config.dev_fraction:
        return "dev"
    if position < config.dev_fraction + config.test_fraction:
        return "test"
    return "train"


@dataclasses.dataclass(frozen=True)
class _TrainTexts:
    """The texts of the train split, read anew at every iteration."""

    config: PrepareConfig

    def __iter__(self) -> Iterator[str]:
        # What is left out is counted when the records are written; this keeps the limit alone.
        bad_lines = BadLines(self.config.max_bad_lines, named=0)
        for session in read_sessions(self.config, bad_lines, collections.Counter()):
            if assign_split(session.session_id, self.config) == "train":
                yield from (turn.text for turn in session.turns)


def _write_splits(config: PrepareConfig, folder: pathlib.Path, vocabulary: Vocabulary) -> Manifest:
    bad_lines = BadLines(config.max_bad_lines)
    dropped: collections.Counter[str] = collections.Counter(short_sessions=0, empty_utterances=0)
    fingerprint = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(
                SplitWriter(folder, name, config.shards if name == "train" else 1, name != "train")
            )
            for name in SPLITS
        }
        sessions = read_sessions(config, bad_lines, dropped)
        for tokenized in _tokenize(sessions, Tokenizer(vocabulary), config, dropped):
            session = tokenized.session
            fingerprint.update(json.dumps(session_to_dict(session)).encode())
            writers[assign_split(session.session_id, config)].write(tokenized)
    splits = {name: writer.finish() for name, writer in writers.items()}
    if not splits["train"].sessions:
        raise InputError(
            f"--input={','.join(config.input)}: no session of at least {config.min_turns} turns "
            f"for training ({dropped['short_sessions']} sessions too short, "
            f"{bad_lines.count} bad lines)"
        )
    return Manifest(
        max_sequence_length=config.max_sequence_length,
        corpus_fingerprint=fingerprint.hexdigest(),
        tokenizer_fingerprint=vocabulary.fingerprint(),
        splits=splits,
        dropped={**dropped, "bad_lines": bad_lines.count},
        settings=config.to_dict(),
    )


def _tokenize(
    sessions: Iterable[Session],
    tokenizer: Tokenizer,
    config: PrepareConfig,
    dropped: collections.Counter[str],
) -> Iterator[TokenizedSession]:
    """Tokenises in chunks; drops turns without a token and sessions that are then too short."""
    iterator = iter(sessions)
    while chunk := list(itertools.islice(iterator, _CHUNK)):
        texts = [turn.text for session in chunk for turn in session.turns]
        # One token more than is kept tells which texts are cut.
        ids = tokenizer.tokenize(tf.constant(texts, tf.string), config.max_sequence_length + 1)
        starts = ids.row_splits.numpy()
        rows = iter(np.split(ids.values.numpy(), starts[1:-1]))
        for session in chunk:
            kept = [(turn, row) for turn, row in zip(session.turns, rows) if len(row) > 2]
            dropped["empty_utterances"] += len(session.turns) - len(kept)
            if len(kept) < config.min_turns:
                dropped["short_sessions"] += 1
                continue
            yield _truncate(session.session_id, kept, config.max_sequence_length)


def _truncate(session_id: str, kept: Sequence[tuple], limit: int) -> TokenizedSession:
    token_ids = [
        row if len(row) <= limit else np.append(row[: limit - 1], row[-1]) for _, row in kept
    ]
    truncated = sum(len(row) > limit for _, row in kept)
    session = Session(session_id, tuple(turn for turn, _ in kept))
    return TokenizedSession(session, tuple(token_ids), truncated)
