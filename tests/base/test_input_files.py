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
from bare_lines import read_bare_lines

from dcse_tf import input_files
from dcse_tf.errors import InputError
from dcse_tf.input_files import (
    BadLines,
    find_package,
    iterate_bare_lines,
    plain_name,
    read_lines,
    resolve_inputs,
)

ROOT = pathlib.Path(__file__).parents[2]
LINES = ["one", "二二 二", "three"]
CONTENT = "one\n二二 二\nthree\n".encode()


def zip_of(*names: str, content: bytes = CONTENT, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name in names:
            archive.writestr(name, b"" if name.endswith("/") else content)
    return buffer.getvalue()


def write(path: pathlib.Path, content: bytes) -> pathlib.Path:
    if path.suffix == ".gz":
        content = gzip.compress(content)
    if path.suffix == ".zip":
        content = zip_of("plain.txt", content=content)
    path.write_bytes(content)
    return path


def read(path: pathlib.Path, limit: int = 0) -> list[tuple[int, str]]:
    return list(read_lines(path, BadLines(limit)))


@pytest.mark.parametrize("name", ["plain.txt", "packed.txt.gz", "packed.txt.zip"])
def test_lines_come_with_their_numbers(tmp_path, name):
    assert read(write(tmp_path / name, CONTENT)) == [(1, "one"), (2, "二二 二"), (3, "three")]
    assert read_bare_lines(tmp_path / name) == LINES


@pytest.mark.parametrize("content", [CONTENT, CONTENT[:-1], CONTENT.replace(b"\n", b"\r\n")])
def test_the_ends_of_lines_do_not_matter(tmp_path, content):
    path = write(tmp_path / "a.txt", content)
    assert [line for _, line in read(path)] == LINES
    assert read_bare_lines(path) == LINES


def test_white_space_inside_a_line_stays(tmp_path):
    path = write(tmp_path / "a.txt", " one\ttwo \t\n\u3000two\u3000\n".encode())
    assert [line for _, line in read(path)] == [" one\ttwo \t", "\u3000two\u3000"]
    assert read_bare_lines(path) == [" one\ttwo \t", "\u3000two\u3000"]


def test_blank_lines_are_skipped_and_counted(tmp_path):
    path = write(tmp_path / "a.txt", b"one\n\n \t\n\r\ntwo\n")
    assert read(path) == [(1, "one"), (5, "two")]
    assert read_bare_lines(path) == ["one", "", " \t", "", "two"]


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0b", "\x0c", "\r"])
def test_other_separators_do_not_break_a_line(tmp_path, separator):
    text = f"one{separator}two"
    path = write(tmp_path / "a.txt", f"{text}\n".encode())
    assert read(path) == [(1, text)]
    assert read_bare_lines(path) == [text]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.zip"])
def test_a_byte_order_mark_is_removed(tmp_path, name):
    path = write(tmp_path / name, b"\xef\xbb\xbf" + CONTENT)
    assert [line for _, line in read(path)] == LINES
    assert read_bare_lines(path) == LINES


def test_a_line_that_is_not_utf8_is_counted(tmp_path):
    path = write(tmp_path / "a.txt", b"one\n\xd6\xd0\xce\xc4\ntwo\n\xff\n")
    bad_lines = BadLines(2)
    assert list(read_lines(path, bad_lines)) == [(1, "one"), (3, "two")]
    assert bad_lines.count == 2
    with pytest.raises(InputError, match=f"{path}:2: not UTF-8"):
        read_bare_lines(path)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_one_bad_line_more_than_the_limit_stops(tmp_path, limit):
    path = write(tmp_path / "a.txt", b"ok\n" + b"\xff\n" * 3)
    lines = read_lines(path, BadLines(limit))
    assert next(lines) == (1, "ok")
    # Line 1 is good, so bad line number limit + 1 stands on line limit + 2.
    with pytest.raises(InputError) as caught:
        list(lines)
    assert f"{path}:{limit + 2}: not UTF-8" in str(caught.value)
    assert f"`max_bad_lines`={limit}" in str(caught.value)


def test_bad_lines_are_counted_over_all_files(tmp_path):
    bad_lines = BadLines(1)
    first, second = (write(tmp_path / name, b"\xff\nok\n") for name in ("a", "b"))
    assert list(read_lines(first, bad_lines)) == [(2, "ok")]
    with pytest.raises(InputError, match=f"{second}:1"):
        list(read_lines(second, bad_lines))


def test_a_file_cut_off_is_named(tmp_path):
    path = tmp_path / "cut.txt.gz"
    path.write_bytes(gzip.compress(b"line\n" * 5000)[:-12])
    for reader in (read, read_bare_lines):
        with pytest.raises(InputError, match=f"{path}.*cannot be read"):
            reader(path)


def test_a_file_that_is_not_compressed_is_named(tmp_path):
    path = tmp_path / "not.txt.gz"
    path.write_bytes(CONTENT)
    for reader in (read, read_bare_lines):
        with pytest.raises(InputError, match=f"{path}.*cannot be read"):
            reader(path)


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "damaged.txt.gz"
    content = bytearray(gzip.compress(bytes(range(256)) * 200))
    content[40:60] = b"\xff" * 20  # inside the compressed stream
    path.write_bytes(content)
    for reader in (lambda path: read(path, limit=10**6), read_bare_lines):
        with pytest.raises(InputError, match=f"{path}.*cannot be read"):
            reader(path)


def test_of_a_zip_only_what_is_a_file_counts(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(zip_of("data/", "data/a.txt", "__MACOSX/", "__MACOSX/data/._a.txt"))
    assert [line for _, line in read(path)] == LINES
    assert read_bare_lines(path) == LINES


def _encrypted(content: bytes) -> bytes:
    """Sets the flag in the file's own header and in the directory."""
    changed = bytearray(content)
    for start, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        changed[changed.find(start) + flags] |= 1
    return bytes(changed)


def _of_unknown_method(content: bytes) -> bytes:
    changed = bytearray(content)
    for start, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        changed[changed.find(start) + method] = 99
    return bytes(changed)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (CONTENT, "not a zip file"),
        (b"", "not a zip file"),
        (zip_of("a.txt")[:-30], "not a zip file"),
        (zip_of(), "expected one file inside, found 0"),
        (zip_of("data/"), "expected one file inside, found 0"),
        (zip_of("a.txt", "b.txt"), "expected one file inside, found 2"),
        (zip_of("a.txt", method=zipfile.ZIP_STORED).replace(b"one", b"One"), "CRC"),
        (zip_of("a.txt")[:40] + b"\xff" * 5 + zip_of("a.txt")[45:], "(decompressing|CRC)"),
        (_encrypted(zip_of("a.txt")), "encrypted"),
        (_of_unknown_method(zip_of("a.txt")), "compression method"),
    ],
    ids=["no zip", "empty", "cut", "none", "folder", "two", "crc", "bits", "encrypted", "method"],
)
def test_a_zip_that_cannot_be_read_is_named(tmp_path, content, problem):
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    for reader in (read, read_bare_lines):
        with pytest.raises(InputError, match=f"{path}.*cannot be read: .*{problem}"):
            reader(path)


@pytest.mark.parametrize(("named", "warnings"), [(0, 0), (1, 2), (3, 4), (5, 6), (9, 5)])
def test_no_more_bad_lines_are_named_than_asked_for(monkeypatch, named, warnings):
    """5 bad lines: those named, then that there may be more; all of them are counted."""
    said: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: said.append(text % values))
    bad_lines = BadLines(5, named=named)
    for number in range(1, 6):
        bad_lines.report(pathlib.Path("a.tsv"), number, "odd")
    assert bad_lines.count == 5
    assert said[:named] == [
        f"skipped a.tsv:{number}: odd" for number in range(1, min(named, 5) + 1)
    ]
    assert len(said) == warnings
    with pytest.raises(InputError, match=r"a\.tsv:9: odd \(bad line 6; `max_bad_lines`=5\)"):
        bad_lines.report(pathlib.Path("a.tsv"), 9, "odd")


@pytest.mark.parametrize(
    "name", ["../a", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "a\0b", "a\n", None, 3, ["a"]]
)
def test_a_name_that_leads_elsewhere_is_refused(name, tmp_path):
    with pytest.raises(InputError, match=r"list\.json: "):
        plain_name(name, tmp_path / "list.json")


def test_a_plain_name_is_taken(tmp_path):
    assert plain_name("train-00000-of-00002.tfrecord", tmp_path) == "train-00000-of-00002.tfrecord"


def test_a_file_that_is_gone_is_named(tmp_path):
    for reader in (read, read_bare_lines):
        with pytest.raises(InputError, match=f"{tmp_path}/nowhere"):
            reader(tmp_path / "nowhere")


def test_inputs_come_in_the_order_given_and_globs_sorted(tmp_path):
    for name in ("b.tsv", "d.tsv", "a.tsv", "c.txt", "e.tsv", "c.tsv"):
        write(tmp_path / name, CONTENT)
    (tmp_path / "folder.tsv").mkdir()
    patterns = [f"{tmp_path}/c.txt", f"{tmp_path}/*.tsv"]
    expected = ["c.txt", *(f"{letter}.tsv" for letter in "abcde")]
    assert [path.name for path in resolve_inputs(patterns)] == expected


def test_a_file_is_found_whose_name_looks_like_a_glob(tmp_path):
    path = write(tmp_path / "chat[1].tsv", CONTENT)
    assert resolve_inputs([str(path)]) == [path]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere.tsv", "no such file"),
        ("*.tsv", "no such file"),
        (".", "is a folder; name its files"),
    ],
)
def test_an_input_that_names_no_file_is_refused(tmp_path, name, problem):
    write(tmp_path / "a.txt", CONTENT)
    pattern = f"{tmp_path}/{name}"
    with pytest.raises(InputError) as caught:
        resolve_inputs([f"{tmp_path}/a.txt", pattern])
    assert f"`input`={pattern}: {problem}" in str(caught.value)


def test_a_file_inside_an_installed_package():
    (path,) = resolve_inputs(["package:chitchat_dataset/dataset.json"])
    assert path.is_file()
    assert path == find_package("chitchat_dataset") / "dataset.json"


@pytest.mark.parametrize(
    "pattern",
    [
        "package:no_such_package/a.tsv",
        "package:chitchat_dataset/no.json",
        "package:../a",
        "package:",
    ],
)
def test_a_package_or_its_file_that_is_missing_is_named(pattern):
    with pytest.raises(InputError) as caught:
        resolve_inputs([pattern])
    assert pattern.split("/")[0] in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_a_file_without_text_has_no_lines(tmp_path, content):
    assert read_bare_lines(write(tmp_path / "a.txt", content)) == []
    assert read_bare_lines(write(tmp_path / "a.txt", content + b"\n")) == [""]


def test_lines_come_before_the_rest_is_read(tmp_path):
    lines = iterate_bare_lines(write(tmp_path / "a.txt", b"one\r\ntwo\n\xff\n"))
    assert [next(lines), next(lines)] == ["one", "two"]
    with pytest.raises(InputError, match=f"{tmp_path}/a.txt:3: not UTF-8"):
        next(lines)


@pytest.mark.parametrize("name", ["plain.txt", "packed.txt.gz", "packed.txt.zip"])
@pytest.mark.parametrize("reader", [read, read_bare_lines])
def test_a_line_longer_than_any_text_is_named(tmp_path, monkeypatch, name, reader):
    longest = b"x" * (1 << 20)
    fine = write(tmp_path / f"fine-{name}", b"one\n" + longest + b"\n" + longest)
    path = write(tmp_path / name, b"one\n" + longest + b"x\ntwo\n")
    assert len(reader(path)) == 3
    monkeypatch.setattr(input_files, "_LONGEST_LINE", 1)
    assert len(reader(fine)) == 3
    with pytest.raises(
        InputError, match=f"^{path}:2: longer than 1 MiB, expected one text per line"
    ):
        reader(path)


def test_a_small_file_of_one_endless_line_is_refused_within_bounded_memory(tmp_path):
    """Kilobytes that expand to half a gigabyte, read by a process that may have half of it more."""
    with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
        for _ in range(32):
            file.write(bytes(1 << 24))
    code = (
        "import pathlib, resource, sys; from dcse_tf.input_files import iterate_bare_lines; "
        "used = int(pathlib.Path('/proc/self/statm').read_text().split()[0]) * 4096; "
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), used + (1 << 28))); "
        "list(iterate_bare_lines(pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.gz")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"InputError: {tmp_path}/a.gz:1: longer than 64 MiB" in done.stderr


PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zip": lambda content: zip_of("a", content=content),
}


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("suffix", ["", ".txt", ".gz", ".bz2"])
def test_a_compressed_file_is_known_by_its_content(tmp_path, kind, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACKERS[kind](CONTENT))
    assert read_bare_lines(path) == LINES
    path.write_bytes(PACKERS[kind](b""))
    assert read_bare_lines(path) == []
    path.write_bytes(PACKERS[kind](CONTENT * 9)[:-12])
    with pytest.raises(InputError, match=f"{path}:.*cannot be read"):
        read(path)


@pytest.mark.parametrize("text", ["BZh9 is a prefix", "BZh", "PK\tone"])
def test_a_text_that_begins_like_a_compressed_file_is_plain(tmp_path, text):
    assert read_bare_lines(write(tmp_path / "a.txt", text.encode())) == [text]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-8-sig"])
def test_a_byte_order_mark_says_the_encoding(tmp_path, encoding):
    """Also where characters lie across the blocks that are read."""
    text = "x" + "".join(LINES) * 9000
    content = ("\ufeff" if encoding == "utf-16-be" else "") + f"{text}\r\n二\n"
    path = write(tmp_path / "a.txt.gz", content.encode(encoding))
    assert read_bare_lines(path) == [text, "二"]
    assert read(path) == [(1, text), (2, "二")]


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16-le", "big5"])
def test_an_encoding_that_is_named(tmp_path, encoding):
    path = write(tmp_path / "a.txt", CONTENT.decode().encode(encoding))
    assert [line for _, line in read_lines(path, BadLines(0, encoding=encoding))] == LINES


def test_a_line_that_is_not_in_the_encoding_is_counted(tmp_path):
    path = write(tmp_path / "a.txt", "一\n".encode("gbk") + b"\xff\xff\nok\n")
    bad_lines = BadLines(1, encoding="gbk")
    assert list(read_lines(path, bad_lines)) == [(1, "一"), (3, "ok")]
    assert bad_lines.count == 1
    with pytest.raises(InputError, match=r"a\.txt:2: not GBK; `encoding` names another"):
        list(read_lines(path, BadLines(0, encoding="gbk")))
    cut = write(tmp_path / "b.txt", "one\ntwo".encode("utf-16")[:-1])
    with pytest.raises(InputError, match=r"b\.txt:\d: cannot be read: not UTF-16"):
        read_bare_lines(cut)
