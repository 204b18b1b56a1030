import json
import os
import pathlib
import subprocess
import sys

import pytest

from dcse_tf.data.manifest import Manifest, Split, read_manifest, write_manifest
from dcse_tf.errors import InputError

ROOT = pathlib.Path(__file__).parents[2]
SHARDS = {"train-0": b"0123456789", "train-1": b"", "dev-0": b"012"}
WRITE = """
import pathlib, sys
from dcse_tf.data.manifest import Manifest, write_manifest
write_manifest(pathlib.Path(sys.argv[1]), Manifest(5, "c", "t", {}, {}, {"input": ["\\u5bf9"]}))
"""


@pytest.fixture
def folder(tmp_path):
    for name, content in SHARDS.items():
        (tmp_path / name).write_bytes(content)
    write_manifest(tmp_path, make_manifest())
    return tmp_path


def make_manifest():
    def split(sessions, *names):
        shards = [{"name": name, "bytes": len(SHARDS[name])} for name in names]
        counts = sessions, sessions * 5, sessions * 60, 1
        return Split(*counts, shards, {"name": "blocks", "sha256": "5ha"})

    return Manifest(
        max_sequence_length=50,
        corpus_fingerprint="corpus",
        tokenizer_fingerprint="tokenizer",
        splits={"train": split(4, "train-0", "train-1"), "dev": split(1, "dev-0")},
        dropped={"bad_lines": 2},
        settings={"input": ["对话.tsv"], "prefix": "query: "},
    )


def change(folder, **changes):
    path = folder / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content = {k: v for k, v in {**content, **changes}.items() if v is not None}
    path.write_text(json.dumps(content))


def test_a_manifest_survives_its_file_and_another_tokenizer_is_refused(folder):
    assert read_manifest(folder) == make_manifest()
    assert read_manifest(folder, "tokenizer") == make_manifest()
    with pytest.raises(InputError, match=r"manifest\.json: .*casing or prefix \('query: '\)"):
        read_manifest(folder, "other")


def test_a_folder_without_manifest_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=f"{folder}/manifest.json: no such file"):
            read_manifest(folder)


def test_another_version_of_the_format_is_refused(folder):
    change(folder, format_version=1, labels={})  # which version 5 has not
    with pytest.raises(InputError, match="format version 1, expected 5"):
        read_manifest(folder)


@pytest.mark.parametrize(("name", "content"), [
    ("train-0", None), ("dev-0", None), ("train-0", b"012345678"), ("train-0", b"0123456789x"),
    ("train-0", b""),
])  # fmt: skip
def test_a_shard_that_is_missing_or_of_another_size_is_named(folder, name, content):
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    found = "no such file" if content is None else f"{len(content)} bytes"
    message = f"{folder}/{name}: {found}, expected {len(SHARDS[name])} bytes"
    with pytest.raises(InputError, match=message):
        read_manifest(folder)


@pytest.mark.parametrize("changes", [
    {"format_version": None}, {"splits": None}, {"splits": []}, {"corpus_fingerprint": None},
    {"splits": {"train": {"sessions": 1}}}, {"tempo": 1},
    b"", b"{", b"[]", b"null", b'{"format_version": "\xff"}',
])  # fmt: skip
def test_what_is_not_a_manifest_is_refused(folder, changes):
    if isinstance(changes, bytes):
        (folder / "manifest.json").write_bytes(changes)
    else:
        change(folder, **changes)
    with pytest.raises(InputError, match=f"{folder}/manifest.json: not a manifest"):
        read_manifest(folder)


def test_the_locale_does_not_matter(tmp_path):
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", WRITE, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **ascii_only}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert read_manifest(tmp_path).settings == {"input": ["对"]}
