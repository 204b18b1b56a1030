"""Lines of plain and compressed files in any encoding; bad lines; names of inputs."""

import bz2
import gzip
import io
import lzma
import pathlib
import subprocess
import sys
import zipfile

import pytest
from absl import logging

from dcse_tf import input_files
from dcse_tf.errors import InputError
from dcse_tf.input_files import (
    BadLines,
    find_package,
    iterate_bare_lines,
    parse_json,
    plain_name,
    read_lines,
    resolve_inputs,
)

ROOT = pathlib.Path(__file__).parents[2]
LINES = ["one", " 二二\t二\u2028\x85\x0b三 ", "", "th\rree"]
CONTENT = "\n".join([*LINES, ""]).encode()


def zip_of(*names: str, content: bytes = CONTENT) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, b"" if name.endswith("/") else content)
    return buffer.getvalue()


PACKERS = {
    "plain": lambda content: content,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zip": lambda content: zip_of("data/", "data/a", "__MACOSX/._a", content=content),
}


def bare(path: pathlib.Path) -> list[str]:
    return list(iterate_bare_lines(path))


def read(path: pathlib.Path, limit: int = 0, **settings: str) -> list[tuple[int, str]]:
    return list(read_lines(path, BadLines(limit, **settings)))


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_lines_come_with_their_numbers(tmp_path, packer, encoding):
    """What a file is shows in its first bytes, whatever its name; lines end only at line feeds."""
    path = tmp_path / "a.txt"
    path.write_bytes(PACKERS[packer](CONTENT.decode().encode(encoding)))
    numbered = [(number, line) for number, line in enumerate(LINES, start=1) if line]
    assert (read(path), bare(path)) == (numbered, LINES)
    text = CONTENT.decode().replace("\n", "\r\n")
    path.write_bytes(PACKERS[packer](text.encode(encoding)))
    assert (read(path), bare(path)) == (numbered, LINES)
    path.write_bytes(PACKERS[packer](b""))
    assert bare(path) == []


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b"line\n" * 5000)[:-12],
        lzma.compress(CONTENT)[:-12],
        zip_of("a")[:-30],
        zip_of(),
        zip_of("a", "b"),
        zip_of("a")[:40] + b"\xff" * 5 + zip_of("a")[45:],
        "one\ntwo".encode("utf-16")[:-1],
    ],
    ids=["gzip cut", "xz cut", "zip cut", "no file", "two files", "damaged", "half a character"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    for reader in (read, bare):
        with pytest.raises(InputError, match=f"{path}:.*cannot be read"):
            reader(path)
    for name in ("none.txt", "not.gz"):
        (tmp_path / "not.gz").write_bytes(CONTENT)
        with pytest.raises(InputError, match=f"{tmp_path}/{name}:1: cannot be read"):
            bare(tmp_path / name)


def test_lines_in_another_encoding_are_bad(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("一\n".encode("gbk") + b"\xff\xff\nok\n")
    assert read(path, limit=1, encoding="gbk") == [(1, "一"), (3, "ok")]
    with pytest.raises(InputError, match=r"a\.txt:2: not GBK; `encoding` names another"):
        read(path, encoding="gbk")
    with pytest.raises(InputError, match=r"a\.txt:2: not UTF-8"):
        bare(path)


def test_bad_lines_are_named_counted_over_files_and_limited(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: said.append(text % values))
    bad_lines = BadLines(3, named=2)
    for name in "ab":
        (tmp_path / name).write_bytes(b"ok\n\xff\n\xfe\n")
    assert list(read_lines(tmp_path / "a", bad_lines)) == [(1, "ok")]
    with pytest.raises(InputError, match=r"b:3: not UTF-8 \(bad line 4; `max_bad_lines`=3\)"):
        list(read_lines(tmp_path / "b", bad_lines))
    assert (bad_lines.count, len(said)) == (4, 3)
    assert said[0] == f"skipped {tmp_path}/a:2: not UTF-8"
    assert said[2] == "further bad lines are counted but not named"


@pytest.mark.slow
def test_a_small_file_of_one_endless_line_is_refused_within_bounded_memory(tmp_path):
    """Kilobytes that expand to half a gigabyte, read by a process that may have as much more."""
    with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
        for _ in range(32):
            file.write(bytes(1 << 24))
    code = (
        "import pathlib, resource, sys; from dcse_tf.input_files import iterate_bare_lines; "
        "used = int(pathlib.Path('/proc/self/statm').read_text().split()[0]) * 4096; "
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), used + (1 << 29))); "
        "list(iterate_bare_lines(pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.gz")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"InputError: {tmp_path}/a.gz:1: longer than 64 MiB" in done.stderr


def test_a_line_longer_than_any_text_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "_LONGEST_LINE", 1)
    longest = b"x" * (1 << 20)
    (tmp_path / "a").write_bytes(b"one\n" + longest + b"\n" + longest)
    assert len(bare(tmp_path / "a")) == 3
    (tmp_path / "a").write_bytes(b"one\n" + longest + b"x\ntwo\n")
    with pytest.raises(InputError, match=r"a:2: longer than 1 MiB"):
        bare(tmp_path / "a")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '"\\ud83d"'])
def test_json_that_cannot_be_used_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the messages are those of others
        parse_json(text)
    assert parse_json('{"\\u4e00": "\\ud83d\\ude00"}') == {"一": "😀"}


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "..", ".", "", "a\\b", "a\0b", None, 3])
def test_a_name_that_leads_elsewhere_is_refused(name, tmp_path):
    with pytest.raises(InputError, match=r"list\.json: "):
        plain_name(name, tmp_path / "list.json")
    assert plain_name("train-0.tfrecord", tmp_path) == "train-0.tfrecord"


def test_inputs_come_in_the_order_given_and_globs_sorted(tmp_path):
    for name in ("b.tsv", "a.tsv", "c.txt", "c.tsv", "chat[1].tsv"):
        (tmp_path / name).touch()
    (tmp_path / "folder.tsv").mkdir()
    patterns = [f"{tmp_path}/c.txt", f"{tmp_path}/?.tsv", f"{tmp_path}/chat[1].tsv"]
    expected = ["c.txt", "a.tsv", "b.tsv", "c.tsv", "chat[1].tsv"]
    assert [path.name for path in resolve_inputs(patterns)] == expected
    (path,) = resolve_inputs(["package:chitchat_dataset/dataset.json"])
    assert path == find_package("chitchat_dataset") / "dataset.json"


@pytest.mark.parametrize(
    "pattern", ["nowhere.tsv", "*.tsv", ".", "package:no_such/a", "package:chitchat_dataset/no"]
)
def test_an_input_that_names_no_file_is_refused(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        resolve_inputs([pattern])
    assert pattern.split("/")[0] in str(caught.value)
