"""Turns tables of dialogues, whose rows are unordered, into files with complete sessions.

The files hold the sessions sorted by id, as one machine reads them from a table. Together they
depend only on the rows, not on how a table is stored or on the size of the cluster.
"""

import functools
import glob
import os
from typing import TYPE_CHECKING

from dcse_tf.data.formats.table import choose_columns, has_turns
from dcse_tf.data.options import PrepareOptions
from dcse_tf.errors import InputError, first_line, require
from dcse_tf.spark.cluster import list_inputs
from dcse_tf.stores import is_url

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FILES = 64  # also the number of tasks that read them


def gather(session: "SparkSession", config: PrepareOptions, target: str) -> PrepareOptions:
    """Writes the rows of tables to Parquet files, sorted by session and by time within it.

    Args:
        session: the session of the cluster.
        config: the settings, with `format`=table.
        target: the folder to write, visible to all workers, or a URL.

    Returns:
        The settings that read the files.

    Raises:
        InputError: a table does not exist or lacks a column, or a row's time is null.
    """
    require("pyarrow", "parquet", "`format`=table")
    tables = [_select(session, config, name) for name in config.input]
    for name, table in zip(config.input, tables):
        if table.dtypes != tables[0].dtypes:
            raise InputError(
                f"`input`={name}: expected columns as of {config.input[0]}, {tables[0].dtypes}; "
                f"found {table.dtypes}"
            )
    rows = functools.reduce(lambda above, below: above.union(below), tables)
    time = config.column_names().get("time", "time")
    if time in rows.columns and (row := rows.where(_column(time).isNull()).first()):
        raise InputError(f"`columns`=time:{time}: null in a row of session {row[0]!r}")

    keys = [_column(name) for name in rows.columns]
    kept = [_column(name) for name in rows.columns if name != time]
    sorted_rows = rows.repartitionByRange(_FILES, keys[0]).sortWithinPartitions(*keys).select(*kept)
    # A cluster may be configured to start a new file after some number of rows, within a session.
    writer = sorted_rows.write.option("maxRecordsPerFile", 0)
    writer.parquet(target if is_url(target) else f"file://{target}")
    return config.replace(
        input=tuple(list_inputs([f"{target}/*.parquet"])),
        columns=tuple(entry for entry in config.columns if not entry.startswith("time:")),
    )


def _select(session: "SparkSession", config: PrepareOptions, name: str) -> "DataFrame":
    """Selects the columns of a table that are needed, with the sort keys first.

    Ties in time are broken by role and text, so that all runs give the same result.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    table = _read(session, name)
    columns = config.column_names()
    schema = to_arrow_schema(table.schema)
    if has_turns({field.name: field.type for field in schema}, columns):
        if "time" in columns:
            config.refuse("columns", f"{name} has its sessions' turns in order")
        session_id, *wanted = (columns.get(known, known) for known in ("session_id", "turns"))
        if session_id not in table.columns:
            raise InputError(f"`input`={name}: no column {session_id!r} for session_id")
    else:
        chosen = choose_columns(table.columns, columns, f"`input`={name}")
        if "time" not in chosen:
            raise InputError(
                f"`input`={name}: its rows are unordered; expected the column that sorts a "
                "session's turns, by `columns`=time:COLUMN"
            )
        session_id, *wanted = (chosen[known] for known in ("session_id", "time", "role", "text"))
    own = _column(session_id).cast("string").alias(session_id)
    return table.select(own, *map(_column, wanted))


def _read(session: "SparkSession", name: str) -> "DataFrame":
    """Reads files (.orc as ORC, others in Spark's default format), or a table by its name."""
    from pyspark.errors import AnalysisException

    found = [name] if os.path.exists(name) else sorted(glob.glob(name))
    paths = [name] if is_url(name) else [f"file://{os.path.abspath(path)}" for path in found]
    try:
        if not paths:
            return session.read.table(name)
        is_orc = all(path.endswith(".orc") for path in paths)
        return session.read.load(paths, format="orc" if is_orc else None)
    except AnalysisException as error:
        reason = first_line(error).replace("`", "")
        raise InputError(f"`input`={name}: neither a file nor a Spark table: {reason}") from error


def _column(name: str) -> "Column":
    """A column by its name, which may contain dots."""
    from pyspark.sql import functions

    return functions.col(f"`{name}`")
