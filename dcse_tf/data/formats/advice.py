"""Says which settings read a file that the chosen format cannot read."""

import csv
import pathlib
import re
from typing import Any

from dcse_tf.data.formats import messages
from dcse_tf.data.formats.table import DELIMITERS
from dcse_tf.input_files import UNREADABLE, open_text, parse_json

_HEAD = 1 << 20  # bytes
_NAME = re.compile(r"[^\W\d][\w .\-]{0,39}")
_LINES = ("jsonl", "messages", "candidates")  # the formats with a JSON value a line


def advise(path: pathlib.Path, format: str, encoding: str) -> str:
    """Looks at how a file begins.

    Args:
        path: a file that was refused.
        format: the format that it was read as.
        encoding: its encoding.

    Returns:
        The settings for what the file seems to be, or "" if it seems to be of that format or is not
        known.
    """
    try:
        with open_text(path, encoding) as file:
            head = file.read(_HEAD).decode(errors="replace").lstrip()
    except UNREADABLE:
        return ""
    if head.startswith("PAR1"):
        advice = (
            "`format`=table reads Parquet with a turn a row, `format`=messages with a list of turns"
        )
        return "" if format in ("table", "messages") else advice
    line = head.partition("\n")[0].strip()
    if line.startswith(("{", "[")):
        return _advise_on_json(line, format)
    if "__eou__" in line and format in ("session_tsv", "jsonl", "table"):
        return "`format`=messages with `alternate_roles` reads lines of turns that end in __eou__"
    fits = format == "session_tsv" and line.count("\t") == 2
    return _advise_on_table(line) if format in ("session_tsv", *_LINES) and not fits else ""


def _advise_on_json(line: str, format: str) -> str:
    try:
        value: Any = parse_json(line)
    except (ValueError, RecursionError):
        value = None
    if line.startswith("["):
        fits = format in ("messages", "sgd")
        return "" if fits else "`format`=messages reads JSON arrays of dialogues"
    if value is None:
        pretty = format in _LINES and len(line) < 100
        return (
            "each line must be a whole JSON object, as jq -c . FILE writes them" if pretty else ""
        )
    if "session_id" in value and "turns" in value:
        return "" if format in _LINES else "`format`=jsonl reads it"
    if any(isinstance(value.get(key), list) for key in messages.KEYS["turns"]):
        return "" if format == "messages" else "`format`=messages reads it"
    return ""


def _advise_on_table(line: str) -> str:
    """If the line seems to be a header."""
    headers = (next(csv.reader([line], delimiter=sign), []) for sign in DELIMITERS.values())
    header = max(headers, key=len)
    if len(header) < 2 or len(set(header)) < len(header) or not all(map(_NAME.fullmatch, header)):
        return ""
    return (
        "`format`=table `columns`=session_id:COLUMN,role:COLUMN,text:COLUMN reads a table; the "
        f"columns here are {', '.join(header)[:300]}"
    )
