"""What editors, exports and accidents make of a text file: it is taken, or refused by its line."""

import json

import numpy as np
import pytest
from bare_lines import read_bare_lines
from dialogue_files import run

from dcse_tf.data.options import PrepareOptions
from dcse_tf.data.prepare import prepare
from dcse_tf.errors import InputError
from dcse_tf.evaluation.retrieval import read_retrieval_set
from dcse_tf.evaluation.sts import read_sts_set

WHOLE = {
    "session_tsv": ["s1\ta\tqué tal", "s1\tb\tit left today", "s2\ta\thi", "s2\tb\tho"],
    "jsonl": [
        json.dumps({"session_id": i, "turns": [{"role": r, "text": "qué"} for r in "ab"]}).replace(
            "\\u00e9", "é"
        )
        for i in "12"
    ],
    "retrieval": ["0\tqué\tx\t1\t2", "1\tb\tx\t\t", "2\tc\ty\t\t"],
    "sts": ["1.5\tqué\tb", "4\tc\td"],
    "sentences": ["qué", "second"],
}
_LONG = "é" * 500_000  # a megabyte


def _encode(lines, encoding="utf-8", end="\n"):
    return (end.join(lines) + end).encode(encoding)


KINDS = {
    "a megabyte": lambda lines: _encode([line.replace("qué", _LONG) for line in lines]),
    "null": lambda lines: _encode([line.replace("qué", "qu\0é") for line in lines]),
    "mark": lambda lines: b"\xef\xbb\xbf" + _encode(lines),
    "CRLF": lambda lines: _encode(lines, end="\r\n"),
    "surrogate": lambda lines: _encode(lines).replace("é".encode(), b"\xed\xa0\x80"),
    "escaped surrogate": lambda lines: _encode(lines).replace("é".encode(), b"\\ud800"),
    "UTF-16": lambda lines: _encode(lines, "utf-16"),
    "Latin-1": lambda lines: _encode(lines, "latin-1"),
    "empty": lambda lines: b"",
}
# Where a kind is refused, and what is said; elsewhere it is taken.
_NOT_UTF8 = r":1: not UTF-8"
REFUSED = {
    **{(k, reader): _NOT_UTF8 for k in ("surrogate", "Latin-1") for reader in WHOLE},
    ("null", "jsonl"): r":1: not JSON: ",
    ("escaped surrogate", "jsonl"): r":1: half of a surrogate pair",
    ("empty", "session_tsv"): "no session of at least 2 turns",
    ("empty", "jsonl"): "no session of at least 2 turns",
    ("empty", "retrieval"): "no query",
    ("empty", "sts"): "expected at least two pairs",
}


def _read(reader, folder, path):
    if reader in ("session_tsv", "jsonl"):
        run(folder, path.read_bytes(), name=path.name, format=reader)
    else:
        read = {"retrieval": read_retrieval_set, "sts": read_sts_set, "sentences": read_bare_lines}
        read[reader](path)


@pytest.mark.parametrize("reader", WHOLE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_taken_or_refused_by_its_line(kind, reader, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(KINDS[kind](WHOLE[reader]))
    if message := REFUSED.get((kind, reader)):
        with pytest.raises(InputError, match=message) as caught:
            _read(reader, tmp_path, path)
        assert str(path) in str(caught.value)
    else:
        _read(reader, tmp_path, path)
    written = {entry.name for entry in tmp_path.iterdir()} - {"text", "vocab"}
    assert written == ({"data"} if not message and reader in ("session_tsv", "jsonl") else set())


def test_marks_and_line_ends_are_no_part_of_a_text(tmp_path):
    path = tmp_path / "text"
    for kind in ("mark", "CRLF"):
        path.write_bytes(KINDS[kind](WHOLE["sts"]))
        assert read_sts_set(path).second == ["b", "d"]
        assert np.array_equal(read_sts_set(path).degrees, [1.5, 4.0])
        path.write_bytes(KINDS[kind](WHOLE["sentences"]))
        assert read_bare_lines(path) == ["qué", "second"]


@pytest.mark.parametrize("read", [read_retrieval_set, read_sts_set, read_bare_lines])
def test_a_folder_in_place_of_a_file_is_named(read, tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}:1: cannot be read: .*Is a directory"):
        read(tmp_path)


@pytest.mark.parametrize("format", ["session_tsv", "jsonl"])
def test_a_vocabulary_is_not_trained_on_nothing(format, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"")
    settings = {"format": format, "input": (str(path),), "vocab_size": 80}
    with pytest.raises(InputError, match=f"`input`={path}: no text to train on"):
        prepare(PrepareOptions(output_dir=str(tmp_path / "data"), **settings), None)
    assert [entry.name for entry in tmp_path.iterdir()] == ["text"]
