"""The job `prepare_data`: converts files of dialogues to sharded TFRecords with a manifest."""

import collections
import contextlib
import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Mapping

from absl import logging

from dcse_tf.bert.tokenizer import read_vocabulary
from dcse_tf.bert.unknown import warn_of_unknown
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.bert.wordpiece import SPECIAL_TOKENS, train_vocabulary
from dcse_tf.data.chunks import ChunkSerializer
from dcse_tf.data.corpus import (
    describe_dropped,
    join_session,
    read_raw_sessions,
    split_into_chunks,
)
from dcse_tf.data.manifest import SPLITS, Manifest, Split, write_manifest
from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.processes import map_in_order
from dcse_tf.data.records import SplitWriter
from dcse_tf.data.splits import Findings, Splitter
from dcse_tf.errors import InputError
from dcse_tf.files import atomic_directory
from dcse_tf.processors import available_processors

# Only the first process reads and writes. That is about a fifth of the work, so it cannot keep more
# workers busy.
_MOST_WORKERS = 6
VOCABULARY_FOLDER = "vocabulary"
# About 130,000 turns or two seconds of work. Anything less is done before a worker has started.
_FEW_CHUNKS = 32


# Writes the splits of a corpus into a folder; returns their manifest.
WriteSplits = Callable[[PrepareOptions, pathlib.Path, Vocabulary], Manifest]


def prepare(
    config: PrepareOptions,
    vocabulary_folder: pathlib.Path | None,
    write_splits: WriteSplits | None = None,
) -> Manifest:
    """Reads, joins, filters, splits, tokenises and writes a corpus.

    Args:
        config: the options of the job.
        vocabulary_folder: folder of the checkpoint's vocabulary; None to train a vocabulary.
        write_splits: does the work; by default processes on this machine.

    Raises:
        InputError: an input cannot be read, has too many bad lines, or leaves no training session;
            or the prefix leaves no room for a text.
        FileExistsError: the output exists and may not be replaced.
    """
    output = pathlib.Path(config.output_dir)
    with atomic_directory(output, config.overwrite) as folder:
        if vocabulary_folder is None:
            vocabulary: Vocabulary = train_vocabulary(
                _TrainTexts(config), config.vocab_size, config.lowercase
            )
            if len(vocabulary.tokens) <= len(SPECIAL_TOKENS):
                raise InputError(f"`input`={','.join(config.input)}: no text to train on")
            logging.info("trained a vocabulary of %d entries", len(vocabulary.tokens))
        else:
            vocabulary = read_vocabulary(vocabulary_folder)
        if config.prefix:
            vocabulary = vocabulary.with_prefix(config.prefix)
        vocabulary.require_room(config.max_sequence_length)
        (folder / VOCABULARY_FOLDER).mkdir()
        vocabulary.write(folder / VOCABULARY_FOLDER)
        manifest = (write_splits or _write_splits)(config, folder, vocabulary)
        write_manifest(folder, manifest)
    return manifest


@dataclasses.dataclass(frozen=True)
class _TrainTexts:
    """The texts of the train split, read from the files again at every iteration."""

    config: PrepareOptions

    def __iter__(self) -> Iterator[str]:
        # Enforces the limit only; what is left out is reported when the records are written.
        bad_lines = self.config.count_bad_lines(named=0)
        find_split = Splitter(self.config)
        for raw in read_raw_sessions(self.config, bad_lines):
            if find_split(raw) == "train":
                session = join_session(raw, self.config, collections.Counter())
                yield from (turn.text for turn in session.turns)


def _write_splits(config: PrepareOptions, folder: pathlib.Path, vocabulary: Vocabulary) -> Manifest:
    bad_lines = config.count_bad_lines()
    dropped: collections.Counter[str] = collections.Counter(short_sessions=0, empty_utterances=0)
    fingerprint, findings = hashlib.sha256(), Findings()
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(
                SplitWriter(folder, name, config.shards if name == "train" else 1, name != "train")
            )
            for name in SPLITS
        }
        chunks = split_into_chunks(read_raw_sessions(config, bad_lines), Splitter(config))
        workers = config.workers or min(available_processors(), _MOST_WORKERS)
        results = map_in_order(
            ChunkSerializer, (vocabulary, config), chunks, workers, _FEW_CHUNKS, folder
        )
        for result in stack.enter_context(contextlib.closing(results)):
            fingerprint.update(result.content)
            dropped.update(result.dropped)
            findings.add(result.findings)
            for name, records in result.splits.items():
                writers[name].write(records)
    splits = {name: writer.finish() for name, writer in writers.items()}
    dropped["bad_lines"] = bad_lines.count
    return make_manifest(config, vocabulary, splits, dropped, fingerprint.hexdigest(), findings)


def make_manifest(
    config: PrepareOptions,
    vocabulary: Vocabulary,
    splits: dict[str, Split],
    dropped: Mapping[str, int],
    fingerprint: str,
    findings: Findings,
) -> Manifest:
    """Makes the manifest of a corpus whose splits have been written, and warns of what was found.

    Args:
        config, vocabulary: the options and the vocabulary that the corpus was made with.
        splits: the splits as written.
        dropped: number of items left out, by reason, including "bad_lines".
        fingerprint: the fingerprint of the corpus.
        findings: what was found in all sessions.

    Raises:
        InputError: there is no session to train on, or only some sessions have scores.
    """
    _check_given(config, splits)
    if not splits["train"].sessions:
        held_out = sum(split.sessions for split in splits.values())
        raise InputError(
            f"`input`={','.join(config.input)}: no session of at least {config.min_turns} turns "
            f"for training ({held_out} sessions held out, "
            f"{describe_dropped(dropped, dropped['bad_lines'])})"
        )
    settings = config.to_dict()
    for name in ("workers", "spark_master"):  # the output does not depend on them
        del settings[name]
    found = findings.count()
    warn_of_unknown(found["unknown_tokens"], found["tokens"], vocabulary.special.unk)
    if found["held_out_copies"]:
        logging.warning(
            "%d of the %d sessions of dev and test have the texts of a session of train, which may "
            "make the scores on them too high",
            found["held_out_copies"],
            splits["dev"].sessions + splits["test"].sessions,
        )
    return Manifest(
        max_sequence_length=config.max_sequence_length,
        corpus_fingerprint=fingerprint,
        tokenizer_fingerprint=vocabulary.fingerprint(),
        splits=splits,
        dropped=dict(dropped),
        settings=settings,
        found=found,
    )


def _check_given(config: PrepareOptions, splits: Mapping[str, Split]) -> None:
    """Rejects a corpus in which only some files have scores; readers check within each file."""
    given = [split.given for split in splits.values() if split.given]
    scored = sum(each.scored for each in given)
    sessions = sum(split.sessions for split in splits.values() if split.given)
    if scored not in (0, sessions):
        raise InputError(
            f"`input`={','.join(config.input)}: {scored} of {sessions} groups have scores; "
            "expected all or none"
        )
