"""What the readers of several formats share: lines, JSON, tables and Parquet."""

import contextlib
import csv
import functools
import io
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from dcse_tf.data.dialogue import Utterance
from dcse_tf.errors import InputError, require
from dcse_tf.input_files import (
    UNREADABLE,
    BadLines,
    is_encodable,
    open_text,
    parse_json,
    read_lines,
)

T = TypeVar("T")
R = TypeVar("R")
Sessions = Iterator[tuple[str, list[Utterance]]]

_LONGEST_FIELD = 64 << 20  # characters, of a field and of a line of it
csv.field_size_limit(_LONGEST_FIELD)  # Python's own limit is 128 KiB, less than some e-mails


def convert(
    values: Iterable[tuple[int, T]],
    parse: Callable[[int, T], R],
    path: pathlib.Path,
    bad_lines: BadLines,
) -> Iterator[R]:
    """Yields `parse(number, value)` of each; if it raises ValueError, that line is bad, which says
    why.
    """
    for number, value in values:
        try:
            result = parse(number, value)
        except (ValueError, RecursionError) as error:
            bad_lines.report(path, number, str(error))
        else:
            yield result


def convert_lines(
    path: pathlib.Path, bad_lines: BadLines, parse: Callable[[int, str], R]
) -> Iterator[R]:
    """`convert` for the lines of a text file."""
    return convert(read_lines(path, bad_lines), parse, path, bad_lines)


def read_json_lines(
    path: pathlib.Path, bad_lines: BadLines, parse: Callable[[int, Any], R]
) -> Iterator[R]:
    """`convert` for the JSON values of a file with one a line."""
    return convert_lines(path, bad_lines, lambda number, line: parse(number, parse_json(line)))


def read_json_members(
    path: pathlib.Path, bad_lines: BadLines, kind: Any, parse: Callable[[int, Any], R]
) -> Iterator[R]:
    """`convert` for the elements of a file that is one JSON array (kind list), or the items of one
    that is an object (dict); another file raises InputError.
    """
    try:
        with open_text(path, bad_lines.encoding) as file:
            text = file.read()
        if not is_encodable(text):
            raise ValueError(bad_lines.not_encoded)
        value: Any = parse_json(text)
        if not isinstance(value, kind):
            raise ValueError(f"found {text[:20]!r}")
    except (ValueError, *UNREADABLE) as error:
        name = "array" if kind is list else "object"
        raise InputError(f"{path}: expected one JSON {name}: {error}") from error
    members = value.items() if kind is dict else value
    return convert(enumerate(members, start=1), parse, path, bad_lines)


def get_field(value: Any, name: str, kind: type[T], *default: T) -> T:
    """A field of a JSON object, of the kind str or list, or the default if there is none;
    ValueError if the value is no object, or its field is missing or of another kind.
    """
    if not isinstance(value, dict):
        raise ValueError(f'expected an object with "{name}", found {value!r:.40}')
    if name not in value and default:
        return default[0]
    if not isinstance(found := value.get(name), kind):
        wanted = "a text" if kind is str else "a list"
        instead = repr(found)[:40] if name in value else f"only {', '.join(value) or 'no field'}"
        raise ValueError(f'expected "{name}" to be {wanted}, found {instead:.200}')
    return found


@contextlib.contextmanager
def open_readable(path: pathlib.Path, bad_lines: BadLines) -> Iterator[io.TextIOWrapper]:
    """`open_text`, where all that opening and reading raise is InputError."""
    try:
        with open_text(path, bad_lines.encoding) as file:
            yield file
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def read_table(
    path: pathlib.Path, bad_lines: BadLines, delimiter: str = ",", quoted: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yields (line where the row ends, its fields) for each row that is not empty.

    Rows with more or fewer fields than the first are bad lines. Quoted fields may hold delimiters
    and line ends, as in CSV; with `quoted` false they may not, as in most TSV files, and quotes
    around a whole field are removed.

    Raises:
        InputError: the file cannot be read, its first row cannot be parsed, or there are too many
            bad lines.
    """
    width = 0
    with open_readable(path, bad_lines) as file:
        lines = iter(functools.partial(file.readline, _LONGEST_FIELD), "")
        rows = csv.reader(
            lines,
            delimiter=delimiter,
            quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
            strict=True,
        )
        while True:
            row, problem = [""], ""
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                problem = f"not a table: {error}"
            if not is_encodable("".join(row)):
                problem = bad_lines.not_encoded
            elif not problem and width and len(row) not in (0, width):
                problem = f"expected {width} field(s), found {len(row)}"
            if problem and not width:  # the next row is no header
                raise InputError(f"{path}:{rows.line_num}: {problem}")
            if problem:
                bad_lines.report(path, rows.line_num, problem)
            elif row:
                width = len(row)
                yield rows.line_num, row if quoted else list(map(unquote, row))


def unquote(field: str) -> str:
    """Removes quotes around a whole field, as programs that write CSV put them."""
    stripped = field.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] == '"':
        inside = stripped[1:-1].replace('""', "\0")
        if '"' not in inside:  # otherwise the outer quotes belong to two separate quotations
            return inside.replace("\0", '"').strip()
    return field


# Parquet

_ROWS = 1024  # read at a time
_BUFFER = 1 << 20  # bytes of a column read at a time; without it, its whole row group is read


def is_parquet(path: pathlib.Path) -> bool:
    """Whether a file is Parquet, or by its name should be."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1" or path.suffix == ".parquet"
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def read_parquet(
    path: pathlib.Path, choose: Callable[[list[str]], Mapping[str, str]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, values by name) for each row; times become microseconds. `choose` maps
    the names of values to the columns to read, of all columns.

    Raises:
        InputError: pyarrow is not installed, or the file is not Parquet.
    """
    pa = require("pyarrow", "parquet", f"reading {path}")
    parquet = require("pyarrow.parquet", "parquet", f"reading {path}")
    number = 0
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
            chosen = choose([field.name for field in file.schema_arrow])
            names = list(chosen.values())
            for batch in file.iter_batches(_ROWS, columns=names, use_threads=False):
                columns = [
                    column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
                    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
                    else column
                    for column in map(batch.column, names)
                ]
                for row in pa.RecordBatch.from_arrays(columns, list(chosen)).to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as Parquet: {reason}") from error
