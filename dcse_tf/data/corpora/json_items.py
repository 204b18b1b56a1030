"""The members of one large JSON value, one at a time."""

import pathlib
from collections.abc import Iterator
from typing import Any

import ijson

from dcse_tf.errors import InputError
from dcse_tf.input_files import UNREADABLE, open_input

_FAULTS = (ijson.JSONError, UnicodeDecodeError, *UNREADABLE)


def read_members(path: pathlib.Path) -> Iterator[tuple[int, str, Any]]:
    """Yields (number from 1, key, value) of the members of a file's one JSON object.

    Raises:
        InputError: the file is not one JSON object, or cannot be read.
    """
    _expect(path, b"{", "object")
    number = 0
    try:
        with open_input(path) as file:
            for key, value in ijson.kvitems(file, "", use_float=True):
                number += 1
                yield number, key, value
    except _FAULTS as error:
        raise InputError(f"{path}: expected one JSON object: {_after(number, error)}") from error


def read_elements(path: pathlib.Path) -> Iterator[tuple[int, Any]]:
    """Yields (number from 1, value) of the elements of a file's one JSON array.

    Raises:
        InputError: the file is not one JSON array, or cannot be read.
    """
    _expect(path, b"[", "array")
    number = 0
    try:
        with open_input(path) as file:
            for value in ijson.items(file, "item", use_float=True):
                number += 1
                yield number, value
    except _FAULTS as error:
        raise InputError(f"{path}: expected one JSON array: {_after(number, error)}") from error


def _expect(path: pathlib.Path, start: bytes, kind: str) -> None:
    """ijson finds nothing in a value of another kind, and says nothing."""
    try:
        with open_input(path) as file:
            head = file.read(1024).lstrip()
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not head.startswith(start):
        raise InputError(f"{path}: expected one JSON {kind}, found {head[:20]!r}")


def _after(number: int, error: Exception) -> str:
    text = error.args[0] if error.args else ""
    if isinstance(text, bytes):  # as yajl words it
        text = text.decode(errors="replace")
    reason = str(text).strip().splitlines()
    return f"after {number} member(s): {reason[0] if reason else type(error).__name__}"
