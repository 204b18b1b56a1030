"""Reads input files: resolves names, reads plain or compressed lines, counts bad lines."""

import contextlib
import functools
import glob
import gzip
import importlib.util
import io
import json
import lzma
import pathlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeVar

from absl import logging

from dcse_tf.errors import InputError

T = TypeVar("T")

# A .gz file of a few kilobytes may hold a line that does not fit into memory.
_LONGEST_LINE = 64  # MiB, without the line's end

# Errors that reading a file, compressed or not, can raise.
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
# Errors that reading a NumPy file can raise: its header is a Python expression, and an archive may
# have a form that zipfile does not support.
UNREADABLE_ARRAY = (
    *UNREADABLE,
    *(ValueError, TypeError, AttributeError, RuntimeError),
    *(SyntaxError, OverflowError, tokenize.TokenError),
)


class BadLines:
    """Counts and logs the lines that had to be skipped, and stops the job above a limit."""

    def __init__(self, limit: int, named: int = 20, option: str = "max_bad_lines"):
        """Starts with a count of zero.

        Args:
            limit: how many bad lines may be skipped; one more raises InputError.
            named: how many of them to log; 0 if the same lines are read a second time.
            option: the option that sets the limit, for the message; "" if there is none.
        """
        self.limit = limit
        self._named = named
        self._option = option
        self.count = 0

    def report(self, path: pathlib.Path, line: int, problem: str) -> None:
        """Counts one bad line.

        Raises:
            InputError: the limit is exceeded.
        """
        self.count += 1
        # The problem may quote the file, such as a session's id with a line break in it.
        message = f"{path}:{line}: {' '.join(problem.splitlines())}"
        if self.count > self.limit:
            allowed = (
                f" (bad line {self.count}; `{self._option}`={self.limit})" if self._option else ""
            )
            raise InputError(f"{message}{allowed}")
        if self.count <= self._named:
            logging.warning("skipped %s", message)
        if self.count == self._named:
            logging.warning("further bad lines are counted but not named")


def resolve_inputs(patterns: Sequence[str], option: str = "input") -> list[pathlib.Path]:
    """Resolves files, globs and `package:NAME/FILE` to paths without duplicates.

    The paths are in the order of the patterns; those of a glob are sorted.

    Args:
        patterns: the patterns.
        option: the option that gave them, for the message.

    Raises:
        InputError: a pattern matches no file.
    """
    paths: list[pathlib.Path] = []
    for pattern in patterns:
        if pattern.startswith("package:"):
            name, _, file = pattern.removeprefix("package:").partition("/")
            found = [str(find_package(name) / file)]
        else:
            # A file's own name may contain brackets.
            found = [pattern] if pathlib.Path(pattern).is_file() else sorted(glob.glob(pattern))
        files = [pathlib.Path(name) for name in found if pathlib.Path(name).is_file()]
        if not files:
            folder = pathlib.Path(pattern).is_dir()
            found_there = "is a folder; name its files" if folder else "no such file"
            raise InputError(f"`{option}`={pattern}: {found_there}")
        paths.extend(files)
    return list(dict.fromkeys(paths))  # a file that two patterns match counts once


def plain_name(name: object, source: pathlib.Path) -> str:
    """Checks a file name that was read from a file: it must stay in the same folder.

    Args:
        name: the value to check.
        source: the file it was read from, for the message.

    Raises:
        InputError: it is not the name of a file in the same folder.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or not name.isprintable():
        raise InputError(f"{source}: {name!r} is not a file name")
    if pathlib.PurePath(name).name != name or "\\" in name:
        raise InputError(f"{source}: {name!r}: expected a file in the same folder")
    return name


def find_package(name: str) -> pathlib.Path:
    """Finds the folder of an installed Python package without importing it.

    Raises:
        InputError: the package is not installed.
    """
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"package:{name}: no installed Python package of this name")
    return pathlib.Path(spec.submodule_search_locations[0])


def read_lines(path: pathlib.Path, bad_lines: BadLines) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end), skipping blank lines.

    A line that is not UTF-8 is reported as bad; a byte-order mark is removed. Lines end only at
    "\\n", so that other separators inside a text do not break it.

    Raises:
        InputError: the file cannot be read, a line is longer than 64 MiB, or there are too many
            bad lines.
    """
    number = 0
    try:
        with open_input(path) as file:
            for number, raw in _split_lines(file, path):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    bad_lines.report(path, number, f"not UTF-8: {error.reason}")
                    continue
                line = line.rstrip("\r\n")
                if line.strip():
                    yield number, line
    except UNREADABLE as error:
        raise InputError(f"{path}:{number + 1}: cannot be read: {error}") from error


def iterate_bare_lines(path: pathlib.Path) -> Iterator[str]:
    """Yields all lines of a text file, including blank ones, reading the file lazily.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or has a line longer than 64 MiB.
    """
    number = 0
    try:
        with open_input(path) as file:
            for number, raw in _split_lines(file, path):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(f"{path}:{number}: not UTF-8: {error.reason}") from error
                if line:  # a file may hold a byte-order mark and nothing else
                    yield line.removesuffix("\n").removesuffix("\r")
    except UNREADABLE as error:
        raise InputError(f"{path}:{number + 1}: cannot be read: {error}") from error


def _split_lines(file: IO[bytes], path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
    """Yields (line number from 1, line with its end)."""
    limit = _LONGEST_LINE << 20
    for number, raw in enumerate(iter(functools.partial(file.readline, limit + 1), b""), start=1):
        if len(raw) > limit and not raw.endswith(b"\n"):
            raise InputError(
                f"{path}:{number}: longer than {_LONGEST_LINE} MiB, expected one text per line"
            )
        yield number, raw


@contextlib.contextmanager
def open_input(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a file to read bytes: plain, .gz, or .zip with one file inside.

    Raises:
        One of UNREADABLE; reading the yielded file can raise them too.
    """
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as file:
            yield file  # type: ignore[misc]
    elif path.suffix == ".zip":
        with _refusing(lambda: zipfile.ZipFile(path)) as archive:
            names = [n for n in archive.namelist() if not n.endswith("/") and "__MACOSX" not in n]
            if len(names) != 1:
                raise zipfile.BadZipFile(f"expected one file inside, found {len(names)}")
            # Buffered, because zipfile's own readline is several times slower.
            with _refusing(lambda: archive.open(names[0])) as member:
                yield io.BufferedReader(member)  # type: ignore[type-var]
    else:
        with path.open("rb") as file:
            yield file


def _refusing(open_member: Callable[[], T]) -> T:
    """Calls `open_member`; zipfile's errors for unsupported or damaged files become BadZipFile."""
    try:
        return open_member()
    except (RuntimeError, ValueError, struct.error) as error:
        raise zipfile.BadZipFile(str(error)) from error


def parse_json(text: str | bytes) -> Any:
    """`json.loads`, but a text that is nested too deeply raises ValueError.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json_object(path: pathlib.Path, what: str = "a JSON object") -> dict[str, Any]:
    """Reads a small JSON file that must be one object.

    Args:
        path: the file.
        what: what the file should be, for the message.

    Raises:
        InputError: the file cannot be read, or is not a JSON object.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not {what}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not {what}: found {content!r:.40}")
    return content
