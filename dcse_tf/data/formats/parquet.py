"""Rows of Parquet files, for the formats `table` and `messages`."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dcse_tf.errors import InputError, require
from dcse_tf.input_files import BadLines

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 1024  # read at a time
_BUFFER = 1 << 20  # bytes of a column read at a time; without it, its whole row group is read
_MAGIC = b"PAR1"


def is_parquet(path: pathlib.Path) -> bool:
    """Whether a file is Parquet, or by its name should be.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC or path.suffix == ".parquet"
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def read_schema(path: pathlib.Path) -> "pa.Schema":
    """Reads the names and types of the columns; raises as `read_rows`."""
    parquet = require("pyarrow.parquet", "parquet", f"reading {path}")
    pyarrow = require("pyarrow", "parquet", f"reading {path}")
    try:
        return parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def read_rows(
    path: pathlib.Path, wanted: Sequence[str], bad_lines: BadLines
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yields (row number from 1, the row's values of the wanted columns).

    Times become microseconds. A row that is not UTF-8 is bad.

    Raises:
        InputError: the file is not Parquet, or pyarrow is not installed.
    """
    pyarrow = require("pyarrow", "parquet", f"reading {path}")
    parquet = require("pyarrow.parquet", "parquet", f"reading {path}")
    number = 0
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
            for batch in file.iter_batches(_ROWS, columns=wanted, use_threads=False):
                for values in _decode(batch, wanted):
                    number += 1
                    if values is None:
                        bad_lines.report(path, number, "not UTF-8")
                    else:
                        yield number, values
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: pathlib.Path, error: Exception) -> InputError:
    return InputError(f"{path}: cannot be read as Parquet: {' '.join(str(error).split())}")


def _decode(batch: Any, wanted: Sequence[str]) -> Iterator[tuple | None]:
    """Yields the values of each row, None for one that is not UTF-8."""
    try:
        columns = [_to_numbers(batch.column(name)).to_pylist() for name in wanted]
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            yield None
        else:
            for place in range(batch.num_rows):
                yield from _decode(batch.slice(place, 1), wanted)
    else:
        yield from zip(*columns, strict=True)


def _to_numbers(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return column


def is_list(kind: Any) -> bool:
    """Whether a column's type is a list."""
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind)
