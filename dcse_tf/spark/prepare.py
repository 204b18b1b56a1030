"""The job behind `prepare_data --spark_master`: prepares a corpus on a cluster.

The files are read twice: first for the copies of sessions, see `Splitter`, then for the records.
Each task reads a file and tokenises its sessions. The driver counts the sessions of each split in
each file, which gives every session its number in the split. The sessions are then sorted by shard
and number, and each task writes one shard. So the output is byte for byte that of one machine.
Tables are first written to files.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import pathlib
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from dcse_tf.bert.checkpoints import resolve_checkpoint
from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.data.chunks import ChunkSerializer
from dcse_tf.data.corpus import read_files, split_into_chunks
from dcse_tf.data.formats import RawSession
from dcse_tf.data.manifest import SPLITS, BlockCounter, Manifest, Shard, Split, write_blocks
from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.prepare import make_manifest, prepare
from dcse_tf.data.records import SplitCounts, name_index, name_shard
from dcse_tf.data.splits import Findings, content_key
from dcse_tf.errors import InputError
from dcse_tf.files import complete_path
from dcse_tf.spark.cluster import connect, list_inputs
from dcse_tf.spark.tables import gather
from dcse_tf.stores import fetch, is_url, put_file, remove_folder, url_of


def prepare_data(options: PrepareOptions) -> Manifest:
    """Prepares a corpus, on this machine or, with `spark_master`, on a cluster.

    Raises: see `prepare`; InputError also if the cluster cannot be used.
    """
    folder = resolve_checkpoint(options.vocab, "vocab", weights=False) if options.vocab else None
    return (prepare_on_spark if options.spark_master else prepare)(options, folder)


def prepare_on_spark(config: PrepareOptions, vocabulary_folder: pathlib.Path | None) -> Manifest:
    """Prepares a corpus on the cluster of `spark_master`.

    Args, Raises: see `prepare`; InputError also if the cluster cannot be used.
    """
    with connect(config.spark_master, "dcse prepare_data") as session:
        logging.info("progress on the cluster: %s", session.sparkContext.uiWebUrl)
        write = functools.partial(_write_splits, session)
        return prepare(config, vocabulary_folder, write)


class _Record(NamedTuple):
    """A tokenised session: its split, its file, its number within both, and what to write.

    `text` is the session as a line of JSON in dev and test, and "" in train.
    """

    split: str
    file: int
    number: int
    record: bytes
    turns: int
    text: str


@dataclasses.dataclass
class _Summary:
    """What a task reports about a file to the driver; `error` says why it cannot be used."""

    file: int
    counts: dict[str, SplitCounts]
    content: bytes
    findings: Findings
    dropped: collections.Counter[str]
    bad_lines: int
    error: str = ""


class _Written(NamedTuple):
    """A shard that was written: its split, its number, its size in bytes and its blocks."""

    split: str
    number: int
    bytes: int
    blocks: list[list[int]]


def _write_splits(
    session: Any, config: PrepareOptions, folder: pathlib.Path, vocabulary: Vocabulary
) -> Manifest:
    # Tasks cannot see the local copy of an output in a store; they write to the store itself.
    target = url_of(complete_path(folder)) or str(folder.absolute())
    unfinished = f"{target}/{_UNFINISHED}"
    if not is_url(target):
        pathlib.Path(unfinished).mkdir()
    try:
        files = config
        if config.format == "table":
            files = gather(session, config, f"{unfinished}/gathered")
        written, summaries = _write_files(session.sparkContext, files, target, vocabulary)
    finally:
        remove_folder(unfinished)
    splits = {name: _make_split(folder, name, written, summaries) for name in SPLITS}

    dropped: collections.Counter[str] = collections.Counter(short_sessions=0, empty_utterances=0)
    fingerprint, findings = hashlib.sha256(), Findings()
    for summary in summaries:
        dropped.update(summary.dropped)
        findings.add(summary.findings)
        fingerprint.update(summary.content)
    dropped["bad_lines"] = sum(summary.bad_lines for summary in summaries)
    return make_manifest(config, vocabulary, splits, dropped, fingerprint.hexdigest(), findings)


def _write_files(
    context: Any, config: PrepareOptions, target: str, vocabulary: Vocabulary
) -> tuple[list[_Written], list[_Summary]]:
    """Writes the shards and the dialogues of dev and test.

    Returns:
        The shards written and the summaries of the input files.
    """
    from pyspark import StorageLevel

    paths = list_inputs(config.input)
    work = context.broadcast(pickle.dumps((vocabulary, config)))
    files = context.parallelize(list(enumerate(paths)), len(paths))
    first = files.flatMap(lambda file: _read_keys(config, *file)).reduceByKey(_find_first)
    divided = first.filter(lambda item: item[1].divided).collect()
    moved = context.broadcast({key: copy.split for key, copy in divided})
    read = files.flatMap(lambda file: _read_file(work.value, moved.value, *file))
    # Kept on the tasks' disks, because it is used twice: for counting and for writing.
    read = read.persist(StorageLevel.DISK_ONLY)
    found = read.filter(lambda item: isinstance(item, _Summary)).collect()
    summaries = sorted(found, key=lambda summary: summary.file)
    _check(config, summaries)

    shards = {name: config.shards if name == "train" else 1 for name in SPLITS}
    firsts = _number_sessions(summaries)
    places = {
        name: sum(list(shards.values())[:place]) for place, name in enumerate(SPLITS)
    }  # split -> index of its first shard among all shards

    def place(item: _Record) -> tuple[tuple[int, int], _Record]:
        number = firsts[item.split, item.file] + item.number
        return (places[item.split] + number % shards[item.split], number), item

    records = read.filter(lambda item: isinstance(item, _Record)).map(place)
    ordered = records.repartitionAndSortWithinPartitions(sum(shards.values()), lambda key: key[0])
    written = ordered.mapPartitionsWithIndex(
        lambda index, items: _write_shard(target, shards, index, (item for _, item in items))
    ).collect()
    return written, summaries


# Tasks: reading


class _Copy(NamedTuple):
    """The first of some copies: its file and number there, the split that its id gives, and whether
    the ids of the others give another.
    """

    place: tuple[int, int]
    split: str
    divided: bool


def _read_keys(config: PrepareOptions, file: int, path: str) -> Iterator[tuple[int, _Copy]]:
    """Yields the `content_key` of each session of a file whose copies must be found."""
    bad_lines = config.count_bad_lines(named=0)
    with contextlib.suppress(InputError):  # raised again when the records are made
        sessions = read_files([pathlib.Path(fetch(path))], config, bad_lines)
        for number, (session_id, turns, *given) in enumerate(sessions):
            if not given and (key := content_key(turns)) is not None:
                yield key, _Copy((file, number), config.split_of(session_id), False)


def _find_first(one: _Copy, other: _Copy) -> _Copy:
    divided = one.divided or other.divided or one.split != other.split
    return min(one, other)._replace(divided=divided)


@functools.lru_cache(maxsize=1)  # each worker process makes it once
def _make_serializer(work: bytes) -> tuple[ChunkSerializer, PrepareOptions]:
    vocabulary, config = pickle.loads(work)
    return ChunkSerializer(vocabulary, config), config


def _read_file(
    work: bytes, moved: Mapping[int | None, str], file: int, path: str
) -> Iterator[_Record | _Summary]:
    """Yields the records of a file, and finally its summary.

    Args:
        work: see `_make_serializer`.
        moved: the split of copies that their ids would divide, by `content_key`.
        file, path: number and path of the file.
    """
    serialize, config = _make_serializer(work)

    def find_split(session: RawSession) -> str:
        session_id, turns, *given = session
        if given:
            return config.split_of(given[0].dialogue)
        return moved.get(content_key(turns)) or config.split_of(session_id)

    bad_lines = config.count_bad_lines()
    summary = _Summary(
        file, {name: SplitCounts() for name in SPLITS}, b"", Findings(), collections.Counter(), 0
    )
    content = []
    try:
        sessions = read_files([pathlib.Path(fetch(path))], config, bad_lines)
        for chunk in split_into_chunks(sessions, find_split):
            result = serialize(chunk)
            content.append(result.content)
            summary.dropped.update(result.dropped)
            summary.findings.add(result.findings)
            for split, records in result.splits.items():
                counts = summary.counts[split]
                texts = records.texts or [""] * len(records.records)
                rows = zip(records.records, records.turns, texts, strict=True)
                for number, row in enumerate(rows, start=counts.sessions):
                    yield _Record(split, file, number, *row)
                counts.add_records(records)
    except InputError as error:  # returned, because Spark buries exceptions in a Java stack trace
        summary.error = str(error)
    summary.content, summary.bad_lines = b"".join(content), bad_lines.count
    yield summary


def _check(config: PrepareOptions, summaries: Iterable[_Summary]) -> None:
    """Raises InputError if a file was refused, or all files together have too many bad lines."""
    count = 0
    for summary in summaries:
        if summary.error:
            raise InputError(summary.error)
        count += summary.bad_lines
    if count > config.max_bad_lines:
        raise InputError(
            f"`input`={','.join(config.input)}: {count} bad lines in all files together "
            f"(`max_bad_lines`={config.max_bad_lines}); the workers' logs name them"
        )


def _number_sessions(summaries: Iterable[_Summary]) -> dict[tuple[str, int], int]:
    """(split, file) -> the number of the split's sessions in all files before it."""
    firsts, before = {}, dict.fromkeys(SPLITS, 0)
    for summary in summaries:
        for split, counts in summary.counts.items():
            firsts[split, summary.file] = before[split]
            before[split] += counts.sessions
    return firsts


# Tasks: writing


# Folder of incomplete shards and of the files that tables are written to.
_UNFINISHED = "unfinished"


def _write_shard(
    target: str, shards: Mapping[str, int], place: int, records: Iterable[_Record]
) -> Iterator[_Written]:
    """Writes a shard atomically, because a task may run twice or be interrupted."""
    split, number = _find_shard(shards, place)
    name = name_shard(split, number, shards[split])
    blocks, texts = BlockCounter(1), []
    with _place_files(target) as folder:
        with tf.io.TFRecordWriter(str(folder / name)) as writer:
            for item in records:
                writer.write(item.record)
                blocks.add(0, len(item.record), item.turns)
                texts.append(item.text)
        if split != "train":
            (folder / f"{split}.jsonl").write_text("".join(texts), encoding="utf-8")
        size = (folder / name).stat().st_size
    rows = [[number, *row[1:]] for row in blocks.rows()]
    yield _Written(split, number, size, rows)


@contextlib.contextmanager
def _place_files(target: str) -> Iterator[pathlib.Path]:
    """Yields a temporary folder; its files are moved to `target`, a folder or URL, at the end."""
    shared = None if is_url(target) else pathlib.Path(target)
    with tempfile.TemporaryDirectory(dir=shared and shared / _UNFINISHED) as name:
        yield pathlib.Path(name)
        for path in pathlib.Path(name).iterdir():
            if shared:
                path.replace(shared / path.name)
            else:
                put_file(path, f"{target}/{path.name}")


def _find_shard(shards: Mapping[str, int], place: int) -> tuple[str, int]:
    """The split and number of the shard at an index among all shards."""
    for split, count in shards.items():
        if place < count:
            return split, place
        place -= count
    raise IndexError(place)


def _make_split(
    folder: pathlib.Path, name: str, written: Iterable[_Written], summaries: Iterable[_Summary]
) -> Split:
    """Writes the index of a split; returns the split's entry in the manifest."""
    own = sorted((shard for shard in written if shard.split == name), key=lambda s: s.number)
    index = write_blocks(folder / name_index(name), [row for shard in own for row in shard.blocks])
    counts = SplitCounts()
    for summary in summaries:
        counts.add(summary.counts[name])
    shards = (Shard(name_shard(name, shard.number, len(own)), shard.bytes) for shard in own)
    return counts.make_split(tuple(shards), index)
