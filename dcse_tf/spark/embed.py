"""Embeds a column of texts on a cluster, as a function of a DataFrame and as a job.

Each distinct text is embedded once, with one model per Python process of the cluster, and joined
to its rows again. The job splits the texts into parts by a hash of the text. When it resumes, it
skips the parts that are done.
"""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dcse_tf.encoder.options import ModelOptions
from dcse_tf.errors import InputError
from dcse_tf.files import (
    MADE_FROM_FILE,
    MARK,
    MadeFrom,
    hash_bytes,
    lock_output,
    replace_folder,
    resumable,
)
from dcse_tf.processors import limit_threads
from dcse_tf.progress import Progress
from dcse_tf.search.search_options import EmbedOptions
from dcse_tf.spark.cluster import connect, list_inputs
from dcse_tf.stores import exists, fetch, is_url, put_file, remove_folder, sign_file

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from dcse_tf.encoder.sentence_encoder import SentenceEncoder

# Texts that a process embeds at a time: enough for sorting by length to pay off.
_AT_A_TIME = 8192
_PARTS = 32
_PART = "part"
_DONE = "_SUCCESS"  # Spark's marker file in a folder that it has written completely


def embed_column(
    frame: "DataFrame", column: str, model: str, name: str = "embedding", **options: Any
) -> "DataFrame":
    """Adds the embeddings of a text column to a frame; rows without a text get null.

        turns = spark.read.parquet("turns")
        embed_column(turns, "text", model="/shared/export").write.parquet("embedded")

    Args:
        frame: any frame.
        column: the name of the column with texts.
        model: as for `SentenceEncoder.load`; every worker of the cluster must be able to read it.
        name: the name of the new column, an array of float32.
        **options: further settings of `SentenceEncoder.load`, such as compute_dtype.

    Raises:
        InputError: there is no such column of texts, or the new name is taken.
        OptionError: a setting is unknown or has an invalid value.
    """
    _check_column(frame, column, name)
    texts = frame.select(column).where(frame[column].isNotNull()).distinct()
    embedded = _embed_texts(texts, ModelOptions(model=model, **options), name)
    return frame.join(embedded, column, "left")


@dataclasses.dataclass(frozen=True)
class Embedded:
    """What `embed` wrote.

    Attributes:
        path: the NumPy file , or with `spark_master` the folder of
            Parquet files.
        rows: the number of rows written.
        dim: the dimension of the embeddings.
    """

    path: pathlib.Path
    rows: int
    dim: int


def embed(options: EmbedOptions) -> Embedded:
    """Embeds the sentences of a file, on this machine or, with `spark_master`, on a cluster.

    Raises: see `embed_on_spark` and `dcse_tf.search.embed.embed`.
    """
    output = pathlib.Path(options.output)
    if options.spark_master:
        return Embedded(output, *embed_on_spark(options))
    from dcse_tf.search import embed as job

    return Embedded(output, *job.embed(options))


def embed_on_spark(config: EmbedOptions) -> tuple[int, int]:
    """Embeds Parquet or text files to Parquet, on the cluster of `spark_master`.

    Args:
        config: the settings. Text files have one column, "text", with one line per row.

    Returns:
        The number of rows written and the dimension of the embeddings.

    Raises:
        InputError: the model, the input or the cluster cannot be used, or the interrupted job to
            resume had other settings.
        FileExistsError: the output exists and may not be replaced.
        LockedError: another job is writing it.
    """
    from dcse_tf.encoder.sentence_encoder import SentenceEncoder

    with _lock(config.output, config.overwrite):
        encoder = SentenceEncoder.from_options(config)
        paths = list_inputs([config.input])
        signed = [(path, sign_file(path)) for path in paths]
        made_from = MadeFrom(
            {
                "`input`": f"{len(paths)} files",
                # Not their contents: hashing would need another pass over large files.
                "names, sizes and times of `input`": hash_bytes(repr(signed).encode()),
                "`text_column`": config.text_column,
                "contents of `model`": encoder.fingerprint(),
                **{f"`{name}`": value for name, value in encoder.settings.items()},
            }
        )
        resume = _resume_in_store if is_url(config.output) else _resume_in_folder
        with (
            connect(config.spark_master, "dcse embed") as session,
            resume(config.output, made_from, config.overwrite) as (work, target),
        ):
            frame = _read(session, paths)
            truncated = session.sparkContext.accumulator(0)
            rows = _embed_by_parts(session, frame, config, work, target, truncated)
            encoder.warn_of_truncated(truncated.value, "distinct texts")
    return rows, encoder.dim


@contextlib.contextmanager
def _lock(output: str, overwrite: bool) -> Iterator[None]:
    """Locks an output for this job, except in a store, which has no locks.

    Raises:
        FileExistsError: the output exists and may not be replaced.
        LockedError: another job is writing it.
    """
    with contextlib.ExitStack() as stack:
        if not is_url(output):
            pathlib.Path(output).absolute().parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_output(pathlib.Path(output)))
        if exists(output) and not overwrite:
            raise FileExistsError(f"{output} already exists; give another folder, or `overwrite`")
        yield


@contextlib.contextmanager
def _resume_in_folder(
    output: str, made_from: MadeFrom, overwrite: bool
) -> Iterator[tuple[str, str]]:
    """Yields the folder of the finished parts, and the folder to write the rows to."""
    path = pathlib.Path(output).absolute()
    with resumable(path, made_from, overwrite) as work:
        yield str(work), str(work / "rows")
        replace_folder(work / "rows", path)


@contextlib.contextmanager
def _resume_in_store(
    output: str, made_from: MadeFrom, overwrite: bool
) -> Iterator[tuple[str, str]]:
    """Does the same in a store. Stores cannot rename, so only _SUCCESS marks complete rows."""
    work = f"{output.rstrip('/')}{MARK}partial"
    begun = f"{work}/{MADE_FROM_FILE}"
    if exists(begun) and not overwrite:
        before = MadeFrom.read(pathlib.Path(fetch(begun)))
        remedy = "give the same, or `overwrite` to start anew"
        before.require(made_from, f"{work}: begun with other settings or files", remedy)
    else:
        remove_folder(work)
        with tempfile.TemporaryDirectory() as folder:
            made_from.write(pathlib.Path(folder, MADE_FROM_FILE))
            put_file(pathlib.Path(folder, MADE_FROM_FILE), begun)
    yield work, output
    remove_folder(work)


def _read(session: "SparkSession", paths: Sequence[str]) -> "DataFrame":
    if all(path.endswith(".parquet") for path in paths):
        return session.read.parquet(*paths)
    return session.read.text(list(paths)).withColumnRenamed("value", "text")


def _embed_by_parts(
    session: "SparkSession",
    frame: "DataFrame",
    config: EmbedOptions,
    work: str,
    target: str,
    truncated: "Accumulator[int]",
) -> int:
    """Embeds the texts part by part in `work`; writes all rows to `target`, returns their count.
    Adds the number of truncated texts to an accumulator.
    """
    from pyspark.sql import functions

    column, name = config.text_column, "embedding"
    _check_column(frame, column, name)
    texts = f"{work}/texts"
    if not exists(f"{texts}/{_DONE}"):
        part = functions.pmod(functions.xxhash64(column), functions.lit(_PARTS))
        distinct = frame.select(column).where(frame[column].isNotNull()).distinct()
        parted = distinct.withColumn(_PART, part).repartition(_PART)
        parted.write.mode("overwrite").partitionBy(_PART).parquet(texts)

    parallel = session.sparkContext.defaultParallelism
    found: list[str] = []
    with Progress("parts of the texts", _PARTS) as progress:
        for number in range(_PARTS):
            own, done = f"{texts}/{_PART}={number}", f"{work}/embedded-{number:05d}"
            if exists(own):  # a part without texts has no folder
                found.append(done)
                if not exists(f"{done}/{_DONE}"):
                    part_texts = session.read.parquet(own).repartition(parallel)
                    embedded = _embed_texts(part_texts, config, name, truncated)
                    embedded.write.mode("overwrite").parquet(done)
            progress.update(number + 1, _PARTS)

    if not found:
        raise InputError(f"`input`={config.input}: no text in the column {column}")
    joined = frame.join(session.read.parquet(*found), column, "left")
    joined.write.mode("overwrite").parquet(target)
    return session.read.parquet(target).count()


def _check_column(frame: "DataFrame", column: str, name: str) -> None:
    kinds = dict(frame.dtypes)
    if kinds.get(column) != "string":
        columns = ", ".join(f"{known} ({kind})" for known, kind in kinds.items())
        raise InputError(f"column {column}: expected one of strings among {columns}")
    if name in kinds:
        raise InputError(f"column {name}: there is one already; expected a new name")


# Tasks


def _embed_texts(
    texts: "DataFrame",
    options: ModelOptions,
    name: str,
    truncated: "Accumulator[int] | None" = None,
) -> "DataFrame":
    """Adds the embeddings, as column `name`, to a frame whose only column is texts.

    The number of truncated texts is added to the accumulator; without one, the workers log it.
    """
    from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

    schema = StructType([*texts.schema.fields, StructField(name, ArrayType(FloatType(), False))])
    model = pathlib.Path(options.model)
    if model.exists():  # workers run in another working folder
        options = options.replace(model=str(model.absolute()))
    embed = functools.partial(_embed_rows, options, truncated)
    return texts.sparkSession.createDataFrame(texts.rdd.mapPartitions(embed), schema)


@functools.lru_cache(maxsize=1)  # each worker process loads it once
def _load(options: ModelOptions) -> "SentenceEncoder":
    from dcse_tf.encoder.sentence_encoder import SentenceEncoder

    # The cluster runs one such process per core.
    limit_threads(1, 1)
    return SentenceEncoder.from_options(options)


def _embed_rows(
    options: ModelOptions, truncated: "Accumulator[int] | None", rows: Iterable[Any]
) -> Iterator[tuple[str, list[float]]]:
    encoder, source = _load(options), (text for (text,) in rows)
    while texts := list(itertools.islice(source, _AT_A_TIME)):
        embeddings, cut = encoder.encode_and_mark(texts)
        if truncated is None:
            encoder.warn_of_truncated(int(cut.sum()), "distinct texts")
        else:
            truncated.add(int(cut.sum()))
        yield from zip(texts, embeddings.tolist(), strict=True)
