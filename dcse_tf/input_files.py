"""Reads input files: resolves names, reads plain or compressed lines, counts bad lines."""

import bz2
import codecs
import contextlib
import glob
import gzip
import importlib.util
import io
import json
import lzma
import pathlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from absl import logging

from dcse_tf.errors import InputError, name_input

_UNPACKERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# How a text in an encoding other than plain UTF-8 may begin; that of UTF-32 begins with UTF-16's.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}

# Errors that reading a file, compressed or not, can raise.
UNREADABLE = (OSError, EOFError, UnicodeError, zlib.error, lzma.LZMAError)
# What reading a NumPy file can raise: its header is a Python expression.
UNREADABLE_ARRAY = Exception


class BadLines:
    """Counts lines that had to be skipped, logs some (`named`), and stops the job above a limit.

    The limit is the value of `max_bad_lines`; None in a job without it, where no line may be bad.
    `encoding` is the value of the option of this name; "" for UTF-8, in a job without it.
    """

    def __init__(self, limit: int | None = None, named: int = 20, encoding: str = ""):
        self.count = 0
        self.encoding = encoding or "utf-8"
        advice = "; `encoding` names another" if encoding else ""
        self.not_encoded = f"not {self.encoding.upper()}{advice}"
        self._limit, self._named = limit, named

    def report(self, path: pathlib.Path, line: int, problem: str) -> None:
        """Counts one bad line; raises InputError above the limit."""
        self.count += 1
        # The problem may quote the file, such as a session's id with a line break in it.
        message = f"{path}:{line}: {' '.join(problem.splitlines())}"
        if self.count > (self._limit or 0):
            allowed = f" (bad line {self.count}; `max_bad_lines`={self._limit})"
            raise InputError(message if self._limit is None else message + allowed)
        if self.count <= self._named:
            logging.warning("skipped %s", message)
        if self.count == self._named:
            logging.warning("further bad lines are counted but not named")


def resolve_inputs(patterns: Sequence[str], option: str = "input") -> list[pathlib.Path]:
    """Resolves files, globs and `package:NAME/FILE` to paths, those of a glob sorted; each once.
    InputError: a pattern of the `option` matches no file.
    """
    paths: list[pathlib.Path] = []
    for pattern in patterns:
        if pattern.startswith("package:"):
            name, _, file = pattern.removeprefix("package:").partition("/")
            found = [str(find_package(name) / file)]
        else:
            # A file's own name may contain brackets.
            is_name = pathlib.Path(pattern).is_file()
            found = [pattern] if is_name else sorted(glob.glob(pattern, recursive=True))
        files = [pathlib.Path(name) for name in found if pathlib.Path(name).is_file()]
        if not files:
            why = "a folder; name its files" if pathlib.Path(pattern).is_dir() else "no such file"
            raise InputError(f"`{option}`={pattern}: {why}")
        if odd := [name for name in found if not is_encodable(name)]:
            raise InputError(f"`{option}`={pattern}: the file's name {odd[0]!a} is not UTF-8")
        paths.extend(files)
    return list(dict.fromkeys(paths))  # a file that two patterns match counts once


def find_package(name: str) -> pathlib.Path:
    """The folder of an installed Python package, without importing it; else InputError."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"package:{name}: no installed Python package of this name")
    return pathlib.Path(spec.submodule_search_locations[0])


def read_lines(
    path: pathlib.Path, bad_lines: BadLines, blank: bool = False
) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end); unless asked for, no `blank` lines.

    A line that is not in the encoding is bad. Lines end only at "\\n", so that other separators
    inside a text do not break it.
    """
    number = 0
    try:
        with open_text(path, bad_lines.encoding, newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if not is_encodable(line):
                    bad_lines.report(path, number, bad_lines.not_encoded)
                elif blank or line.strip():
                    yield number, line.removeprefix("\ufeff").rstrip("\r\n")
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
    """
    with open_input(path) as file:
        head = file.read(4)
        mark = next((mark for mark in _MARKS if head.startswith(mark)), b"")
        file.seek(len(mark))
        yield io.TextIOWrapper(
            file, _MARKS.get(mark, encoding), errors="surrogateescape", newline=newline
        )


def open_input(path: pathlib.Path) -> IO[bytes]:
    """Opens a file to read bytes: plain or, by its suffix, .gz, .bz2 or .xz; see UNREADABLE."""
    if path.suffix == ".zip":
        raise OSError("an archive; unpack it first")
    return _UNPACKERS.get(path.suffix, open)(path, "rb")


def parse_json(text: str | bytes) -> Any:
    """`json.loads`, but whatever cannot be used raises ValueError: what is no JSON, is nested too
    deeply, or spells half of a surrogate pair, which UTF-8 cannot encode.
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


def read_json_object(
    path: pathlib.Path, what: str = "a JSON object", optional: bool = False
) -> dict[str, Any]:
    """Reads a small JSON file; raises InputError if it is not `what`, which is an object. A file
    that need not be there, `optional`, is empty if it is not.
    """
    if optional and not path.is_file():
        return {}
    other, unread = f"{path}: not {what}", f"{path}: cannot be read"
    with name_input(other, ValueError), name_input(unread, OSError):
        content = parse_json(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise InputError(f"{other}: found {content!r:.40}")
    return content
