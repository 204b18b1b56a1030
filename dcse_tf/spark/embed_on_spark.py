"""Embeds a column of texts on a cluster, as a function of a DataFrame and as a job.

Each distinct text is embedded once, and joined to its rows again.
"""

import functools
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dcse_tf.bert.encoder_options import ModelOptions
from dcse_tf.errors import InputError
from dcse_tf.files import atomic_directory
from dcse_tf.search.embed_file import EmbedOptions
from dcse_tf.spark.cluster import URL, connect, list_inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dcse_tf.encoder.sentence_encoder import SentenceEncoder

_AT_A_TIME = 8192  # texts that a process embeds: enough for sorting by length to pay off


def embed_column(
    frame: "DataFrame", column: str, model: str, name: str = "embedding", **options: Any
) -> "DataFrame":
    """Adds the embeddings of a text column to a frame; rows without a text get null.

        turns = spark.read.parquet("turns")
        embed_column(turns, "text", model="/shared/export").write.parquet("embedded")

    Args:
        column: the name of the column with texts.
        model: as for `SentenceEncoder.load`; every worker of the cluster must be able to read it.
        name: the name of the new column, an array of float32.
        **options: further settings of `SentenceEncoder.load`, such as compute_dtype.

    Raises:
        InputError: there is no such column of texts, or the new name is taken.
        OptionError: a setting is unknown or has an invalid value.
    """
    return _embed(frame, column, ModelOptions(model=model, **options), name)


def embed_on_spark(config: EmbedOptions) -> tuple[int, int]:
    """Embeds Parquet or text files to Parquet, on the cluster of `spark_master`; returns the number
    of rows written and the dimension of the embeddings.

    Text files have one column, "text", with a line a row. All workers must see the output's folder.
    """
    from dcse_tf.encoder.sentence_encoder import SentenceEncoder

    encoder = SentenceEncoder.from_options(config)
    with (
        atomic_directory(pathlib.Path(config.output).absolute(), config.overwrite) as folder,
        connect(config.spark_master, "dcse embed") as session,
    ):
        local = [] if URL.match(config.input) else list_inputs(session, [config.input], "")
        paths = [f"file://{path}" for path in local] or [config.input]
        frame = session.read.text(paths).withColumnRenamed("value", "text")
        files = frame.inputFiles()  # perhaps of a folder
        if any(path.endswith(".xz") for path in files):
            raise InputError(f"`input`={config.input}: Spark reads .gz and .bz2, but no .xz")
        if any(path.endswith(".parquet") for path in files):
            frame = session.read.parquet(*paths)
        embedded = _embed(frame, config.text_column, config, "embedding")
        embedded.write.mode("overwrite").parquet(f"file://{folder}")
        return session.read.parquet(f"file://{folder}").count(), encoder.dim


def _embed(frame: "DataFrame", column: str, options: ModelOptions, name: str) -> "DataFrame":
    from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

    kinds = dict(frame.dtypes)
    if kinds.get(column) != "string":
        columns = ", ".join(f"{known} ({kind})" for known, kind in kinds.items())
        raise InputError(f"column {column}: expected one of strings among {columns}")
    if name in kinds:
        raise InputError(f"column {name}: there is one already; expected a new name")
    texts = frame.select(column).where(frame[column].isNotNull()).distinct()
    schema = StructType([*texts.schema.fields, StructField(name, ArrayType(FloatType(), False))])
    if os.path.exists(options.model):  # workers run in another working folder
        options = options.replace(model=os.path.abspath(options.model))
    embed = functools.partial(_embed_rows, options)
    embedded = frame.sparkSession.createDataFrame(texts.rdd.mapPartitions(embed), schema)
    return frame.join(embedded, column, "left")


@functools.lru_cache(maxsize=1)  # each worker process loads it once
def _load(options: ModelOptions) -> "SentenceEncoder":
    from dcse_tf.encoder.sentence_encoder import SentenceEncoder

    # The cluster runs one such process per core.
    os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    return SentenceEncoder.from_options(options)


def _embed_rows(options: ModelOptions, rows: Iterable[Any]) -> Iterator[tuple[str, list[float]]]:
    encoder, source = _load(options), (text for (text,) in rows)
    while texts := list(itertools.islice(source, _AT_A_TIME)):
        yield from zip(texts, encoder.encode(texts).tolist(), strict=True)
