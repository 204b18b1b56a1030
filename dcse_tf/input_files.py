"""Reads input files: resolves names, reads plain or compressed lines, counts bad lines."""

import bz2
import codecs
import contextlib
import functools
import glob
import gzip
import importlib.util
import io
import json
import lzma
import pathlib
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from absl import logging

from dcse_tf.errors import InputError

# A .gz file of a few kilobytes may hold a line that does not fit into memory.
_LONGEST_LINE = 64  # MiB, without the line's end

# How a compressed file begins, by the suffix that it should have.
_PACKED = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".bz2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    ".xz": re.compile(rb"\xfd7zXZ\0"),
    ".zip": re.compile(rb"PK(?:\x03\x04|\x05\x06)"),
}
_UNPACKERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
# How a text in an encoding other than plain UTF-8 may begin; that of UTF-32 begins with UTF-16's.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}

# Errors that reading a file, compressed or not, can raise.
UNREADABLE = (*(OSError, EOFError, UnicodeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile),)
# Errors that reading a NumPy file can raise: its header is a Python expression, and an archive may
# have a form that zipfile does not support.
UNREADABLE_ARRAY = (
    *UNREADABLE,
    *(ValueError, TypeError, AttributeError, RuntimeError),
    *(SyntaxError, OverflowError, tokenize.TokenError),
)


class BadLines:
    """Counts and logs the lines that had to be skipped, and stops the job above a limit.

    Attributes:
        encoding: the encoding that lines are expected in.
        count: how many were skipped.
    """

    def __init__(
        self, limit: int, named: int = 20, option: str = "max_bad_lines", encoding: str = ""
    ):
        """Args:
        limit: how many bad lines may be skipped; one more raises InputError.
        named: how many of them to log.
        option: the option that sets the limit, for the message; "" if there is none.
        encoding: the value of the option `encoding`; "" for UTF-8, in a job without the option.
        """
        self.encoding = encoding or "utf-8"
        self.count = 0
        self._limit = limit
        self._named = named
        self._option = option
        self._optional = bool(encoding)

    def again(self) -> "BadLines":
        """A new count for a second reading of the same lines, which are not named again."""
        return BadLines(self._limit, 0, self._option, self.encoding if self._optional else "")

    @property
    def not_encoded(self) -> str:
        """What is wrong with a line that is not in the encoding."""
        advice = "; `encoding` names another" if self._optional else ""
        return f"not {self.encoding.upper()}{advice}"

    def report(self, path: pathlib.Path, line: int, problem: str) -> None:
        """Counts one bad line.

        Raises:
            InputError: the limit is exceeded.
        """
        self.count += 1
        # The problem may quote the file, such as a session's id with a line break in it.
        message = f"{path}:{line}: {' '.join(problem.splitlines())}"
        if self.count > self._limit:
            allowed = (
                f" (bad line {self.count}; `{self._option}`={self._limit})" if self._option else ""
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

    A line that is not in the encoding is bad. Lines end only at "\\n", so that other separators
    inside a text do not break it.

    Raises:
        InputError: the file cannot be read, a line is longer than 64 MiB, or there are too many
            bad lines.
    """
    for number, line in _split_lines(path, bad_lines.encoding):
        if not is_encodable(line):
            bad_lines.report(path, number, bad_lines.not_encoded)
            continue
        line = line.rstrip("\r\n")
        if line.strip():
            yield number, line


def iterate_bare_lines(path: pathlib.Path) -> Iterator[str]:
    """Yields all lines of a text file, including blank ones, reading the file lazily.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or has a line longer than 64 MiB.
    """
    for number, line in _split_lines(path, "utf-8"):
        if not is_encodable(line):
            raise InputError(f"{path}:{number}: not UTF-8")
        yield line.removesuffix("\n").removesuffix("\r")


def _split_lines(path: pathlib.Path, encoding: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line with its end); raises as `iterate_bare_lines`."""
    number, limit = 0, _LONGEST_LINE << 20
    try:
        with open_text(path, encoding, newline="\n") as file:
            lines = iter(functools.partial(file.readline, limit + 1), "")
            for number, line in enumerate(lines, start=1):
                if len(line) > limit and not line.endswith("\n"):
                    raise InputError(
                        f"{path}:{number}: longer than {_LONGEST_LINE} MiB, expected one text per "
                        "line"
                    )
                yield number, line
    except UNREADABLE as error:
        raise InputError(f"{path}:{number + 1}: cannot be read: {error}") from error


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can encode a text: it has no halves of surrogate pairs, see `open_text`."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


@contextlib.contextmanager
def open_text(
    path: pathlib.Path, encoding: str = "utf-8", newline: str = ""
) -> Iterator[io.TextIOWrapper]:
    """Opens a file, plain or compressed, to read text.

    A file that begins with a byte-order mark has the encoding of the mark. Bytes that are not in
    the encoding become halves of surrogate pairs, which `is_encodable` finds.

    Raises:
        One of UNREADABLE; reading the yielded file can raise them too.
    """
    with open_input(path) as file:
        head = file.read(4)
        mark = next((mark for mark in _MARKS if head.startswith(mark)), b"")
        file.seek(len(mark))
        yield io.TextIOWrapper(
            file, _MARKS.get(mark, encoding), errors="surrogateescape", newline=newline
        )


@contextlib.contextmanager
def open_input(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a file to read bytes: plain, gzip, bzip2, xz, or zip with one file inside.

    What a file is shows in its first bytes, whatever its name.

    Raises:
        One of UNREADABLE; reading the yielded file can raise them too.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        head = file.peek(16)
        # A file with a suffix that does not begin as it should is damaged, not plain.
        kind = next((name for name, start in _PACKED.items() if start.match(head)), path.suffix)
        if kind in _UNPACKERS:
            yield stack.enter_context(_UNPACKERS[kind](file))
            return
        if kind != ".zip":
            yield file
            return
        try:
            archive = stack.enter_context(zipfile.ZipFile(file))
            names = [n for n in archive.namelist() if not n.endswith("/") and "__MACOSX" not in n]
            if len(names) != 1:
                raise zipfile.BadZipFile(f"expected one file inside, found {len(names)}")
            member = stack.enter_context(archive.open(names[0]))
        # What zipfile raises for archives that it does not support, or that are damaged.
        except (RuntimeError, ValueError, struct.error) as error:
            raise zipfile.BadZipFile(str(error)) from error
        # Buffered, because zipfile's own readline is several times slower.
        yield io.BufferedReader(member)  # type: ignore[type-var]


def parse_json(text: str | bytes) -> Any:
    """`json.loads`, but every value that cannot be used raises ValueError.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or spells half of a surrogate pair,
            which UTF-8 cannot encode.
    """
    try:
        value = json.loads(text)
        if "\\u" in text if isinstance(text, str) else b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a surrogate pair: {error.reason}") from error
    return value


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
