"""Prepares a corpus on a Spark cluster: its tasks read, filter and tokenise a file each.

The files are read twice: first for the copies of sessions, see `Splitter`, then for the records,
which the driver writes in the order of the files: byte for byte the output of one machine.
"""

import contextlib
import functools
import pathlib
import pickle
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

from absl import logging

from dcse_tf.bert.vocabulary import Vocabulary
from dcse_tf.data.corpus import Paths, PrepareOptions, Splitter, content_key, read_files
from dcse_tf.data.manifest import Manifest
from dcse_tf.data.prepare import ChunkRecords, ChunkSerializer, prepare, split_into_chunks
from dcse_tf.errors import InputError
from dcse_tf.files import MARK
from dcse_tf.input_files import BadLines
from dcse_tf.spark.cluster import connect, gather_tables, list_inputs


def prepare_on_spark(config: PrepareOptions) -> Manifest:
    """Prepares a corpus on the cluster of `spark_master`."""
    parent = pathlib.Path(config.output_dir).absolute().parent  # which all workers see
    parent.mkdir(parents=True, exist_ok=True)
    with (
        connect(config.spark_master, "dcse prepare_data") as session,
        tempfile.TemporaryDirectory(prefix=MARK, dir=parent) as folder,
    ):
        logging.info("progress on the cluster: %s", session.sparkContext.uiWebUrl)
        return prepare(config, tokenise=functools.partial(_tokenise, session, f"{folder}/sessions"))


def _tokenise(
    session: Any, folder: str, config: PrepareOptions, vocabulary: Vocabulary, bad_lines: BadLines
) -> Generator[ChunkRecords]:
    """See `Tokenise`; `folder` is for sessions of tables and copies."""
    from pyspark import StorageLevel

    if config.format == "table":
        config = gather_tables(session, config, folder)
    context = session.sparkContext
    paths = [*map(pathlib.Path, list_inputs(session, config.input, f"{folder}/copies"))]
    files = context.parallelize(range(len(paths)), len(paths))
    copies = files.flatMap(lambda file: _read_keys(config, paths, file)).reduceByKey(
        lambda one, other: (*min(one[:2], other[:2]), one[2] | other[2])
    )
    divided = copies.filter(lambda item: len(item[1][2]) > 1)  # whose ids give several splits
    moved = {key: split for key, (_, split, _) in divided.collect()}
    work = context.broadcast(pickle.dumps((vocabulary, config, moved, paths)))
    # All files are worked on at once, and their records wait on the tasks' disks to be fetched.
    read = files.flatMap(lambda file: _read_file(work.value, file))
    read.persist(StorageLevel.DISK_ONLY).count()
    for result in read.toLocalIterator():
        if isinstance(result, str):
            raise InputError(result)
        if isinstance(result, bytes):
            yield pickle.loads(result)
            continue
        bad_lines.count += result
        if bad_lines.count > config.max_bad_lines:
            raise InputError(
                f"`input`={','.join(config.input)}: {bad_lines.count} bad lines in all files "
                f"together (`max_bad_lines`={config.max_bad_lines}); the workers' logs name them"
            )


# The place of the first of some copies, its file and number there; the split that its id gives; and
# the splits that the ids of all of them give.
Copy = tuple[tuple[int, int], str, frozenset[str]]


def _read_keys(config: PrepareOptions, paths: Paths, file: int) -> Iterator[tuple[int, Copy]]:
    """Yields the `content_key` of each session whose copies must be found."""
    sessions = read_files([paths[file]], config, config.count_bad_lines(named=0), paths)
    with contextlib.suppress(InputError):  # told when the records are made
        for number, session in enumerate(sessions):
            if not session.given and (key := content_key(session.turns)) is not None:
                split = config.split_of(session.dialogue)
                yield key, ((file, number), split, frozenset([split]))


@functools.lru_cache(maxsize=1)  # each worker process makes it once
def _make_serializer(work: bytes) -> tuple[ChunkSerializer, *tuple[Any, ...]]:
    vocabulary, *rest = pickle.loads(work)
    return ChunkSerializer(vocabulary, rest[0]), *rest


def _read_file(work: bytes, file: int) -> Iterator[bytes | int | str]:
    """Yields a file's pickled `ChunkRecords`, then its number of bad lines; an error as a text, as
    Spark buries exceptions in a Java stack trace.
    """
    serialize, config, moved, paths = _make_serializer(work)
    bad_lines = config.count_bad_lines()
    try:
        sessions = read_files([paths[file]], config, bad_lines, paths)
        for chunk in split_into_chunks(sessions, Splitter(config, moved)):
            yield pickle.dumps(serialize(chunk))
    except InputError as error:
        yield str(error)
    yield bad_lines.count
