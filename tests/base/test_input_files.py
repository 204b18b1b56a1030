"""Lines of plain and compressed files in any encoding; bad lines; names of inputs."""

import bz2
import gzip
import lzma
import pathlib

import pytest
from absl import logging

from dcse_tf import input_files
from dcse_tf.errors import InputError

LINES = ["one", " 二二\t二\u2028\x85\x0b三 ", "", "th\rree"]
CONTENT = "\n".join([*LINES, ""]).encode()

PACKERS = {"plain": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def bare(path: pathlib.Path) -> list[str]:
    return [line for _, line in input_files.read_lines(path, input_files.BadLines(), blank=True)]


def read(path: pathlib.Path, limit: int = 0, **settings: str) -> list[tuple[int, str]]:
    return list(input_files.read_lines(path, input_files.BadLines(limit, **settings)))


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_lines_come_with_their_numbers(tmp_path, packer, encoding):
    """Its suffix says how a file is compressed; lines end only at line feeds."""
    path = tmp_path / f"a.{packer}"
    path.write_bytes(PACKERS[packer](CONTENT.decode().encode(encoding)))
    numbered = [(number, line) for number, line in enumerate(LINES, start=1) if line]
    assert (read(path), bare(path)) == (numbered, LINES)
    text = CONTENT.decode().replace("\n", "\r\n")
    path.write_bytes(PACKERS[packer](text.encode(encoding)))
    assert (read(path), bare(path)) == (numbered, LINES)
    path.write_bytes(PACKERS[packer](b""))
    assert bare(path) == []


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".gz", gzip.compress(b"line\n" * 5000)[:-12]), (".gz", CONTENT),
        (".xz", lzma.compress(CONTENT)[:-12]), (".zip", CONTENT),
        (".txt", "one\ntwo".encode("utf-16")[:-1]),
    ],
    ids=["cut", "plain", "xz cut", "zip", "half a character"],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(tmp_path, suffix, content):
    path = tmp_path / f"a{suffix}"
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
    path.write_text("\ufeffa\n\ufeffb\n", encoding="utf-8")  # of two files that were joined
    assert bare(path) == ["a", "b"]


def test_bad_lines_are_named_counted_over_files_and_limited(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: said.append(text % values))
    bad_lines = input_files.BadLines(3, named=2)
    for name in "ab":
        (tmp_path / name).write_bytes(b"ok\n\xff\n\xfe\n")
    assert list(input_files.read_lines(tmp_path / "a", bad_lines)) == [(1, "ok")]
    with pytest.raises(InputError, match=r"b:3: not UTF-8 \(bad line 4; `max_bad_lines`=3\)"):
        list(input_files.read_lines(tmp_path / "b", bad_lines))
    assert (bad_lines.count, len(said)) == (4, 3)
    assert said[0] == f"skipped {tmp_path}/a:2: not UTF-8"
    assert said[2] == "further bad lines are counted but not named"


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '"\\ud83d"'])
def test_json_that_cannot_be_used_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the messages are those of others
        input_files.parse_json(text)
    assert input_files.parse_json('{"\\u4e00": "\\ud83d\\ude00"}') == {"一": "😀"}


def test_inputs_come_in_the_order_given_and_globs_sorted(tmp_path):
    for name in ("b.tsv", "a.tsv", "c.txt", "c.tsv", "chat[1].tsv"):
        (tmp_path / name).touch()
    (tmp_path / "folder.tsv/in/it").mkdir(parents=True)
    (tmp_path / "folder.tsv/in/it/deep.log").touch()
    patterns = [f"{tmp_path}/{x}" for x in ("c.txt", "?.tsv", "chat[1].tsv", "**/*.log")]
    expected = ["c.txt", "a.tsv", "b.tsv", "c.tsv", "chat[1].tsv", "deep.log"]
    assert [path.name for path in input_files.resolve_inputs(patterns)] == expected
    (path,) = input_files.resolve_inputs(["package:chitchat_dataset/dataset.json"])
    assert path == input_files.find_package("chitchat_dataset") / "dataset.json"


@pytest.mark.parametrize(
    "pattern", ["nowhere.tsv", "*.tsv", ".", "package:no_such/a", "package:chitchat_dataset/no"]
)
def test_an_input_that_names_no_file_is_refused(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        input_files.resolve_inputs([pattern])
    assert pattern.split("/")[0] in str(caught.value)
    pathlib.Path("\udce4.tsv").touch()
    with pytest.raises(InputError, match=r"'\\udce4\.tsv' is not UTF-8"):
        input_files.resolve_inputs(["*.tsv"])
