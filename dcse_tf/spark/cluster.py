"""Connects to a Spark cluster, and turns its failures into clear errors."""

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from dcse_tf.errors import InputError, first_line, require
from dcse_tf.input_files import resolve_inputs
from dcse_tf.stores import is_url, list_files

_SECONDS = 5.0  # to reach a master


@contextlib.contextmanager
def connect(master: str, name: str) -> Iterator[Any]:
    """Yields a SparkSession, and stops it afterwards.

    Args:
        master: spark://HOST:PORT, local[N], yarn or k8s://...
        name: the application's name, shown by the cluster.

    Raises:
        InputError: the master cannot be reached, its workers lack the package, or a task failed.
    """
    sql = require("pyspark.sql", "spark", "`spark_master`")
    find_master(master)
    # Workers on this machine run this Python; on others, PYSPARK_PYTHON says which to run.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = sql.SparkSession.builder.appName(name).master(master)
    builder = builder.config("spark.ui.showConsoleProgress", "false")  # the jobs show their own
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise InputError(f"`spark_master`={master}: {first_line(error)}") from error
    session.sparkContext.setLogLevel("OFF")
    try:
        with name_faults(master):
            yield session
    finally:
        session.stop()


def find_master(master: str) -> None:
    """Checks that the master of a standalone cluster answers; Spark would wait for a minute.

    Raises:
        InputError: no master answers at the address.
    """
    found = re.fullmatch(r"spark://([^:/]+):(\d+)", master)
    if not found:
        return
    try:
        socket.create_connection((found[1], int(found[2])), _SECONDS).close()
    except OSError as error:
        raise InputError(f"`spark_master`={master}: no master answers there: {error}") from error


def list_inputs(patterns: Sequence[str]) -> list[str]:
    """Resolves files and globs to absolute paths or URLs that every machine can use.

    Raises:
        InputError: a pattern matches no file.
    """
    found: list[str] = []
    for pattern in patterns:
        if is_url(pattern):
            found += list_files(pattern)
        else:
            found += [str(path.absolute()) for path in resolve_inputs([pattern])]
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def name_faults(master: str) -> Iterator[None]:
    """Turns the error of a failed task into a one-line message.

    Raises:
        InputError: a task failed.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        text = str(error)
        if missing := re.search(r"No module named '(\w+)", text):
            raise InputError(
                f"`spark_master`={master}: its workers have no {missing[1]}: install dcse_tf "
                "there, or name a Python that has it by PYSPARK_PYTHON"
            ) from error
        said = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception): .*)$", text, re.MULTILINE)
        # Of nested errors, the innermost Python error is the cause; Java's end in "Exception".
        reason = next((line for line in said if "Exception: " not in line), None)
        raise InputError(f"`spark_master`={master}: {reason or first_line(error)}") from error
