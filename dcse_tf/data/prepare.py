"""The job `prepare_data`: converts files of dialogues to sharded TFRecords with a manifest.

Sessions are read, divided into splits and cut into chunks, each of which is joined, filtered,
tokenised and serialised together, on a cluster by Spark's tasks (`dcse_tf.spark`). The records are
written in the order of the sessions, so the output does not depend on the chunks.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from dcse_tf.bert.checkpoints import resolve_checkpoint
from dcse_tf.bert.token_rows import warn_of_unknown
from dcse_tf.bert.tokenizer import read_vocabulary, train_vocabulary
from dcse_tf.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from dcse_tf.data import corpus
from dcse_tf.data.corpus import PrepareOptions, Splitter
from dcse_tf.data.dialogue import Session
from dcse_tf.data.manifest import SPLITS, Manifest, write_manifest
from dcse_tf.data.records import SessionRecord, SplitWriter, serialize_session
from dcse_tf.errors import InputError, name_output
from dcse_tf.files import atomic_directory
from dcse_tf.input_files import BadLines

VOCABULARY_FOLDER = "vocabulary"
# A chunk ends with the session that reaches one of these limits. This many turns make the overhead
# of calling the tokenizer negligible; the limit on characters bounds memory if turns are long.
_TURNS = 4096
_CHARACTERS = 1 << 20
Chunk = list[tuple[str, Session]]  # sessions in order, each with its split
Texts = Sequence[np.ndarray]  # the token ids of each


class ChunkRecords(NamedTuple):
    """The records of the kept sessions of a chunk, in order."""

    records: list[SessionRecord]
    found: collections.Counter[str]  # tokens, without those of every text; unknown ones
    dropped: collections.Counter[str]  # sessions, utterances and negatives, by reason


# Tokenises a corpus: yields the records of its sessions in order, and counts its bad lines.
Tokenise = Callable[[PrepareOptions, Vocabulary, BadLines], Generator[ChunkRecords]]


def prepare(config: PrepareOptions, tokenise: Tokenise | None = None) -> Manifest:
    """Reads, joins, filters, splits, tokenises and writes a corpus.

    `tokenise` makes the records, by default in this process.

    Raises:
        InputError: an input cannot be read, has too many bad lines, or leaves no training session;
            or the prefix leaves no room for a text.
        FileExistsError: the output exists and may not be replaced.
    """
    with atomic_directory(pathlib.Path(config.output_dir), config.overwrite) as folder:
        vocabulary: Vocabulary
        if config.vocab:
            vocabulary = read_vocabulary(resolve_checkpoint(config.vocab, "vocab", weights=False))
        else:
            vocabulary = train_vocabulary(_TrainTexts(config), config.vocab_size, config.lowercase)
            if len(vocabulary.tokens) <= len(SPECIAL_TOKENS):
                raise InputError(f"`input`={','.join(config.input)}: no text to train on")
            logging.info("trained a vocabulary of %d entries", len(vocabulary.tokens))
        if config.prefix:
            vocabulary = vocabulary.with_prefix(config.prefix)
        vocabulary.require_room(config.max_sequence_length)
        (folder / VOCABULARY_FOLDER).mkdir()
        vocabulary.write(folder / VOCABULARY_FOLDER)
        manifest = _write_splits(config, folder, vocabulary, tokenise or _tokenise_here)
        write_manifest(folder, manifest)
    return manifest


@dataclasses.dataclass(frozen=True)
class _TrainTexts:
    """The texts of the train split, read from the files again at every iteration."""

    config: PrepareOptions

    def __iter__(self) -> Iterator[str]:
        # Enforces the limit only; what is left out is reported when the records are written.
        bad_lines, find_split = self.config.count_bad_lines(named=0), Splitter(self.config)
        for raw in corpus.read_raw_sessions(self.config, bad_lines):
            if find_split(raw) == "train":
                session = corpus.join_session(raw, self.config, collections.Counter())
                yield from (turn.text for turn in session.turns)


def _write_splits(
    config: PrepareOptions, folder: pathlib.Path, vocabulary: Vocabulary, tokenise: Tokenise
) -> Manifest:
    """Writes the splits into a folder, warns of what deserves attention, and counts it."""
    bad_lines = config.count_bad_lines()
    dropped = collections.Counter(short_sessions=0, empty_utterances=0)
    found, fingerprint = collections.Counter(tokens=0, unknown_tokens=0), hashlib.sha256()
    with name_output(folder, tf.errors.OpError), contextlib.ExitStack() as stack:
        writers = {
            name: SplitWriter(folder, name, config.shards if name == "train" else 1, stack)
            for name in SPLITS
        }
        results = tokenise(config, vocabulary, bad_lines)
        for result in stack.enter_context(contextlib.closing(results)):
            dropped.update(result.dropped)
            found.update(result.found)
            for session in result.records:
                fingerprint.update(session.digest)
                writers[session.split].write(session)
    splits = {name: writer.finish() for name, writer in writers.items()}
    dropped["bad_lines"] = bad_lines.count

    if not splits["train"].sessions:
        held_out = splits["dev"].sessions + splits["test"].sessions
        left = f"{held_out} sessions held out, {corpus.describe_dropped(dropped)}"
        told = f"no session of at least {config.min_turns} turns for training ({left})"
        raise InputError(f"`input`={','.join(config.input)}: {told}")
    warn_of_unknown(found["unknown_tokens"], found["tokens"], vocabulary.special.unk)
    settings = config.to_dict()
    del settings["spark_master"]  # the output does not depend on it
    return Manifest(
        max_sequence_length=config.max_sequence_length,
        corpus_fingerprint=fingerprint.hexdigest(),
        tokenizer_fingerprint=vocabulary.fingerprint(),
        splits=splits,
        dropped=dict(dropped),
        settings=settings,
        found=dict(found),
    )


def _tokenise_here(
    config: PrepareOptions, vocabulary: Vocabulary, bad_lines: BadLines
) -> Generator[ChunkRecords]:
    chunks = split_into_chunks(corpus.read_raw_sessions(config, bad_lines), Splitter(config))
    yield from map(ChunkSerializer(vocabulary, config), chunks)


def split_into_chunks(
    sessions: Iterable[Session], find_split: Callable[[Session], str]
) -> Iterator[Chunk]:
    """Divides sessions, with the split of each, into chunks."""
    chunk: Chunk = []
    texts = characters = 0
    for session in sessions:
        chunk.append((find_split(session), session))
        own = session.list_texts()
        texts += 1 + len(own)
        characters += sum(map(len, own))
        if texts >= _TURNS or characters >= _CHARACTERS:
            yield chunk
            chunk, texts, characters = [], 0, 0
    if chunk:
        yield chunk


class ChunkSerializer:
    """Joins, filters, tokenises and serialises the sessions of a chunk, each by itself."""

    def __init__(self, vocabulary: Vocabulary, config: PrepareOptions):
        self._config, self._unk_id = config, vocabulary.unk_id
        self._tokenizer = vocabulary.make_tokenizer()
        self._tokenize = self._tokenizer.as_graph(config.max_sequence_length)
        self._empty = 2 + vocabulary.count_prefix()  # tokens, with [CLS] and [SEP], of no text

    def __call__(self, chunk: Chunk) -> ChunkRecords:
        dropped: collections.Counter[str] = collections.Counter()
        sessions = [corpus.join_session(raw, self._config, dropped) for _, raw in chunk]
        # One call for all texts, because the overhead of a call outweighs many texts.
        texts = [text for session in sessions for text in session.list_texts()]
        ragged, was_cut = self._tokenize(tf.constant(texts, tf.string))
        ids, splits, cut = (x.numpy() for x in (ragged.values, ragged.row_splits, was_cut))
        # The token ids of each text, none if there is nothing to read.
        tokens = [
            ids[start:end] if end - start > self._empty else ids[:0]
            for start, end in itertools.pairwise(splits)
        ]
        read = [own for own in tokens if len(own)]
        found = collections.Counter(
            tokens=sum(map(len, read)) - self._empty * len(read),
            unknown_tokens=sum(int(np.count_nonzero(own == self._unk_id)) for own in read),
        )
        records, end = list[SessionRecord](), 0
        for session, (split, _) in zip(sessions, chunk, strict=True):
            start, middle = end, end + len(session.turns)
            end += len(session.list_texts())
            own, negatives = tokens[start:middle], list[np.ndarray]()
            if session.given and session.given.negatives:
                kept = _choose_negatives(own[-1:], tokens[middle:end], dropped)
                if not kept:
                    continue
                negatives = [tokens[middle + number] for number in kept]
                left = tuple(session.given.negatives[number] for number in kept)
                session = dataclasses.replace(session, given=session.given._replace(negatives=left))
            # Turns in which the tokenizer finds nothing are dropped.
            turns = tuple(turn for turn, of_turn in zip(session.turns, own) if len(of_turn))
            own = list(filter(len, own))
            dropped["empty_utterances"] += len(session.turns) - len(turns)
            if len(turns) < self._config.min_turns:
                dropped["short_sessions"] += 1
                continue
            session = dataclasses.replace(session, turns=turns)
            record = serialize_session(session, own, negatives)
            text = "" if split == "train" else json.dumps(session.to_dict(), ensure_ascii=False)
            truncated = int(np.count_nonzero(cut[start:middle]))
            counts = len(turns), sum(map(len, own)), truncated, len(negatives)
            content = {k: v for k, v in session.to_dict().items() if k != "dialogue"}
            content |= {"given": session.given} if session.given else {}
            digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=16).digest()
            records.append(SessionRecord(split, record, text, digest, counts))
        return ChunkRecords(records, found, dropped)


def _choose_negatives(response: Texts, negatives: Texts, dropped: corpus.Dropped) -> list[int]:
    """Which negatives the encoder can tell from the response, if it has tokens, and each other."""
    if not any(map(len, response)):
        dropped["sessions_without_response"] += 1
        return []
    seen, kept = {response[0].tobytes()}, []
    for place, ids in enumerate(negatives):
        if not len(ids):
            dropped["empty_negatives"] += 1
        elif ids.tobytes() in seen:
            dropped["repeated_negatives"] += 1
        else:
            seen.add(ids.tobytes())
            kept.append(place)
    dropped["sessions_without_negative"] += not kept
    return kept
