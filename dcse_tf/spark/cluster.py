"""Connects to a Spark cluster, turns its failures into clear errors, and gathers its tables."""

import contextlib
import functools
import glob
import os
import pathlib
import re
import socket
import sys
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dcse_tf.data.corpus import PrepareOptions
from dcse_tf.data.formats.reading import choose_columns, parse_time
from dcse_tf.errors import InputError, first_line, name_input, require
from dcse_tf.input_files import resolve_inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

URL = re.compile("[a-z][a-z0-9+.-]*://.")  # which Spark reads and Python does not
_SECONDS = 5.0  # to reach a master
_FILES = 64  # that tables are gathered into; also the number of tasks that read them


@contextlib.contextmanager
def connect(master: str, name: str) -> Iterator[Any]:
    """Yields a SparkSession of a master, and stops it afterwards unless the program had it before;
    InputError if the master cannot be reached, its workers lack the package, or a task failed.
    """
    sql = require("pyspark.sql", "spark", "`spark_master`")
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    # Spark itself would wait for a minute for the master of a standalone cluster.
    if found := re.fullmatch(r"spark://([^:/]+):(\d+)", master):
        with name_input(f"`spark_master`={master}: no master answers", OSError):
            socket.create_connection((found[1], int(found[2])), _SECONDS).close()
    # Workers on this machine run this Python; on others, PYSPARK_PYTHON says which to run.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = sql.SparkSession.builder.appName(name).master(master)
    builder = builder.config("spark.ui.showConsoleProgress", "false")  # the jobs show their own
    own = sql.SparkSession.getActiveSession()
    with name_input(f"`spark_master`={master}", Exception):
        session = own or builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    except (Py4JError, PySparkException) as error:
        raise InputError(f"`spark_master`={master}: {explain_fault(error)}") from error
    finally:
        if not own:
            session.stop()


def explain_fault(error: Exception) -> str:
    """What a failed task said, in one line."""
    text = str(error)
    if missing := re.search(r"No module named '(\w+)", text):
        remedy = "install dcse_tf there, or name a Python that has it by PYSPARK_PYTHON"
        return f"its workers have no {missing[1]}: {remedy}"
    said = re.findall(r"^(?:: |Caused by: )?(?:\w+\.)*(\w*(?:Error|Exception): .*)$", text, re.M)
    # Of nested errors, the innermost Python error is the cause; Java's end in "Exception".
    python = [line for line in said if "Exception: " not in line]
    return [first_line(error), *said, *python[:1]][-1]


def list_inputs(session: "SparkSession", patterns: Sequence[str], folder: str) -> list[str]:
    """Resolves files and globs to absolute paths that every machine can use. Of URLs, the cluster
    puts copies, each below 2 GB, into a `folder` that all workers see.
    """
    found: list[str] = []
    for pattern in patterns:
        if URL.match(pattern):
            files = session.sparkContext.binaryFiles(pattern)
            found += sorted(files.map(functools.partial(_copy, folder)).collect())
        else:
            found += [str(path.absolute()) for path in resolve_inputs([pattern])]
    return list(dict.fromkeys(found))


def _copy(folder: str, file: tuple[str, bytes]) -> str:
    path = pathlib.Path(folder, urllib.parse.quote(file[0], safe=""))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file[1])
    return str(path)


def gather_tables(session: "SparkSession", config: PrepareOptions, folder: str) -> PrepareOptions:
    """Turns tables, whose rows are unordered, into files with whole sessions, sorted by id, in a
    `folder` that all workers see; returns the settings that read them.

    Together the files depend only on the rows, not on how a table is stored or on the size of the
    cluster. Within a session, rows are sorted by time, and those of one time by role and text.
    """
    from pyspark.sql.functions import col, udf

    require("pyarrow", "parquet", "`format`=table")
    read_time = udf(lambda text: text and float(parse_time(text)[1]), "double", useArrow=False)
    selected = []
    for name in config.input:
        table = _read(session, name)
        chosen = choose_columns(table.columns, config.column_names(), f"`input`={name}")
        if "time" not in chosen:
            raise InputError(
                f"`input`={name}: its rows are unordered; expected the column that sorts a "
                "session's turns, by `columns`=time:COLUMN"
            )
        columns = {known: col(f"`{column}`") for known, column in chosen.items()}
        columns["session_id"] = columns["session_id"].cast("string")
        if dict(table.dtypes)[chosen["time"]] == "string":  # of which Spark puts 10 before 9
            columns["time"] = read_time(columns["time"])
        names = [known for known in ("session_id", "time", "role", "text") if known in columns]
        selected.append(table.select(*(columns[known].alias(known) for known in names)))
    rows = functools.reduce(lambda above, below: above.unionByName(below), selected)
    if row := rows.where(rows.time.isNull()).first():
        raise InputError(f"`columns`=time: null in a row of session {row[0]!r}")
    by_session = rows.repartitionByRange(_FILES, "session_id").sortWithinPartitions(*rows.columns)
    # A cluster may be configured to start a new file after some number of rows, within a session.
    by_session.drop("time").write.option("maxRecordsPerFile", 0).parquet(f"file://{folder}")
    return config.replace(input=(f"{folder}/*.parquet",), columns=())


def _read(session: "SparkSession", name: str) -> "DataFrame":
    """Reads files (.orc as ORC, others in Spark's default format), or a table by its name."""
    from pyspark.errors import AnalysisException

    found = [name] if os.path.exists(name) else sorted(glob.glob(name, recursive=True))
    paths = [name] if URL.match(name) else [f"file://{os.path.abspath(path)}" for path in found]
    try:
        if not paths:
            return session.read.table(name)
        is_orc = all(path.endswith(".orc") for path in paths)
        return session.read.load(paths, format="orc" if is_orc else None)
    except AnalysisException as error:
        reason = first_line(error).replace("`", "")
        raise InputError(f"`input`={name}: neither a file nor a Spark table: {reason}") from error
