import errno
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from dcse_tf.errors import LockedError, OutputError
from dcse_tf.files import (
    atomic_directory,
    atomic_file,
    atomic_version,
    refuse_existing,
    restore_replaced,
)

ROOT = pathlib.Path(__file__).parents[2]

# Replaces a folder, and is killed after the first of two renamings.
KILLED = """
import os, pathlib, signal, sys
from dcse_tf.files import atomic_directory
rename = pathlib.Path.rename
def rename_and_die(*paths):
    rename(*paths)
    os.kill(os.getpid(), signal.SIGKILL)
with atomic_directory(pathlib.Path(sys.argv[1]), overwrite=True) as folder:
    (folder / "new").touch()
    pathlib.Path.rename = rename_and_die
"""


class Broken(Exception):
    pass


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "deep" / "a.txt"
    with atomic_file(path) as partial:
        partial.write_text("half")
        assert not path.exists()
        assert partial.parent == path.parent  # a rename over file systems would not be atomic
        partial.write_text("whole")
    assert path.read_text() == "whole"
    assert names(path.parent) == ["a.txt"]


def test_an_old_file_stays_until_the_block_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_file(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", ["old", None])
@pytest.mark.parametrize("written", ["half", None])
def test_a_block_that_breaks_leaves_everything_as_it_was(tmp_path, error, old, written):
    path = tmp_path / "a.txt"
    if old:
        path.write_text(old)
    before = names(tmp_path)

    def write():
        with atomic_file(path) as partial:
            if written:
                partial.write_text(written)
            raise error

    with pytest.raises(error):
        write()
    assert names(tmp_path) == before
    assert not old or path.read_text() == old


def test_a_file_that_may_not_be_replaced_is_refused_before_the_block(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    entered = False
    with (
        pytest.raises(FileExistsError, match=f"{path} already exists"),
        atomic_file(path, overwrite=False),
    ):
        entered = True
    assert not entered
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_new_file_needs_no_permission_to_overwrite(tmp_path):
    with atomic_file(tmp_path / "a.txt", overwrite=False) as partial:
        partial.write_text("new")
    assert (tmp_path / "a.txt").read_text() == "new"


def test_a_block_that_writes_nothing_fails_and_the_old_file_stays(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), atomic_file(path):
        pass
    assert path.read_text() == "old"


def test_what_a_killed_run_left_is_not_continued(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(Broken), atomic_file(path) as partial:
        raise Broken
    partial.write_text("left by a run that was killed, ")
    with atomic_file(path) as partial, partial.open("a") as file:
        file.write("new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_in_the_place_stays_and_nothing_is_left(tmp_path):
    path = tmp_path / "a"
    path.mkdir()
    (path / "precious.txt").write_text("old")
    entered, said = False, f"{path} is a folder; give the name of a file"
    with pytest.raises(FileExistsError, match=said), atomic_file(path):
        entered = True
    assert not entered  # or the work would be lost
    with pytest.raises(FileExistsError, match=said):
        refuse_existing(path, overwrite=True)
    assert (path / "precious.txt").read_text() == "old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("make", [atomic_file, atomic_directory])
def test_what_is_being_written_is_written_by_one_alone(tmp_path, make):
    path = tmp_path / "a"

    def write(content):
        with make(path, overwrite=True) as partial:
            (partial / "b" if partial.is_dir() else partial).write_text(content)
            if content == "first":
                with pytest.raises(LockedError, match=f"{path}: process .* is working in it"):
                    write("second")

    write("first")
    assert (path / "b" if path.is_dir() else path).read_text() == "first"
    assert names(tmp_path) == ["a"]
    write("third")
    assert (path / "b" if path.is_dir() else path).read_text() == "third"


def start_again(path):
    with atomic_directory(path, overwrite=True):
        raise Broken


def refuse_to_replace(path):
    with atomic_directory(path):
        pass


@pytest.mark.parametrize(
    ("start", "error"),
    [(restore_replaced, None), (start_again, Broken), (refuse_to_replace, FileExistsError)],
)
def test_a_folder_that_was_being_replaced_when_its_writer_was_killed_comes_back(
    tmp_path, start, error
):
    path = tmp_path / "a"
    (path / "deep").mkdir(parents=True)
    (path / "deep/old").write_text("all of it")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    if error:
        with pytest.raises(error):
            start(path)
    else:
        start(path)
    assert (path / "deep/old").read_text() == "all of it"
    assert names(path) == ["deep"]
    with atomic_directory(path, overwrite=True) as folder:
        (folder / "newer").touch()
    assert names(tmp_path) == ["a"]
    assert names(path) == ["newer"]


def test_what_is_whole_or_was_never_there_is_not_restored(tmp_path):
    restore_replaced(tmp_path / "none" / "a")
    restore_replaced(tmp_path / "a")
    assert names(tmp_path) == []
    (tmp_path / "a").mkdir()
    (tmp_path / "a.dcse_tf-previous").mkdir()  # of a writer that was killed after both renamings
    (tmp_path / "a.dcse_tf-previous/old").touch()
    restore_replaced(tmp_path / "a")
    assert names(tmp_path / "a") == []


@pytest.mark.parametrize("make", [atomic_file, atomic_directory])
@pytest.mark.parametrize("kind", ["files", "folders"])
@pytest.mark.parametrize("breaks", [True, False])
def test_a_users_own_files_and_folders_beside_it_stay(tmp_path, make, kind, breaks):
    ends = (".partial", ".previous", ".lock", ".building")
    for end in ends:
        path = tmp_path / f"a{end}"
        if kind == "folders":
            path.mkdir()
            path = path / "thesis"
        path.write_text("precious")

    def write():
        with make(tmp_path / "a", overwrite=True) as partial:
            (partial / "b" if partial.is_dir() else partial).write_text("new")
            if breaks:
                raise Broken

    for _ in range(2):
        if breaks:
            with pytest.raises(Broken):
                write()
        else:
            write()
    for end in ends:
        path = tmp_path / f"a{end}"
        assert (path / "thesis" if kind == "folders" else path).read_text() == "precious"
    assert len(names(tmp_path)) == len(ends) + (not breaks)


def write_to(make, path, content, overwrite=True):
    with make(path, overwrite=overwrite) as partial:
        (partial / "b" if partial.is_dir() else partial).write_text(content)


@pytest.mark.parametrize("make", [atomic_file, atomic_directory])
@pytest.mark.parametrize("target", ["file", "folder", "nothing"])
def test_of_a_link_the_link_is_replaced_and_what_it_points_to_is_kept(tmp_path, make, target):
    kept = tmp_path / "elsewhere"
    if target == "file":
        kept.write_text("old")
    elif target == "folder":
        kept.mkdir()
        (kept / "b").write_text("old")
    path = tmp_path / "link"
    path.symlink_to(kept)
    with pytest.raises(FileExistsError):
        write_to(make, path, "new", overwrite=False)
    write_to(make, path, "new")
    assert not path.is_symlink()
    assert (path / "b" if path.is_dir() else path).read_text() == "new"
    if target != "nothing":
        assert (kept / "b" if kept.is_dir() else kept).read_text() == "old"
    assert names(tmp_path) == (["link"] if target == "nothing" else ["elsewhere", "link"])


def test_a_folder_takes_the_place_of_a_file_and_leaves_nothing(tmp_path):
    (tmp_path / "a").write_text("old")
    write_to(atomic_directory, tmp_path / "a", "new")
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a/b").read_text() == "new"


@pytest.fixture
def calls(monkeypatch):
    """What is flushed to the disk, by inode, and when something takes another name."""
    noted = []

    def note(owner, name, describe):
        function = getattr(owner, name)

        def wrapped(*arguments):
            noted.append(describe(*arguments))
            return function(*arguments)

        monkeypatch.setattr(owner, name, wrapped)

    note(os, "fsync", lambda descriptor: os.fstat(descriptor).st_ino)
    note(pathlib.Path, "rename", lambda path, target: "rename")
    note(pathlib.Path, "replace", lambda path, target: "rename")
    return noted


def test_a_file_is_flushed_before_it_is_renamed_and_its_folder_afterwards(tmp_path, calls):
    write_to(atomic_file, tmp_path / "a", "new")
    assert calls == [(tmp_path / "a").stat().st_ino, "rename", tmp_path.stat().st_ino]


def test_a_folder_and_all_in_it_are_flushed_once_each_before_it_is_renamed(tmp_path, calls):
    (tmp_path / "a").mkdir()
    with atomic_directory(tmp_path / "a", overwrite=True) as folder:
        (folder / "deep/deeper").mkdir(parents=True)
        for name in ("top", "deep/low", "deep/deeper/lowest"):
            (folder / name).write_text("new")
    inside = [path.stat().st_ino for path in (tmp_path / "a", *(tmp_path / "a").rglob("*"))]
    assert len(inside) == 6
    assert sorted(calls[:6]) == sorted(inside)
    assert calls[6:] == ["rename", "rename", tmp_path.stat().st_ino]


@pytest.mark.parametrize("make", [atomic_file, atomic_directory])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_only_a_file_system_that_cannot_flush_may_not_flush(tmp_path, monkeypatch, make, number):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if number == errno.EINVAL:
        write_to(make, tmp_path / "a", "new")
    else:
        with pytest.raises(OutputError, match=f"{tmp_path}/a: cannot be written: Input/output"):
            write_to(make, tmp_path / "a", "new")
        assert names(tmp_path) == []


def test_versions_count_on_from_the_largest_number(tmp_path):
    parent = tmp_path / "models" / "dcse"
    for expected in ("1", "2"):
        with atomic_version(parent) as partial:
            (partial / "a").write_text(expected)
            assert not (parent / expected).exists()
        assert (parent / expected / "a").read_text() == expected
    (parent / "10").mkdir()
    (parent / "99.dcse_tf-partial").mkdir()
    (parent / "v77").mkdir()
    with atomic_version(parent) as partial:
        (partial / "a").write_text("new")
    assert (parent / "11" / "a").read_text() == "new"
    assert (parent / "1" / "a").read_text() == "1"


def test_a_version_that_breaks_leaves_the_older_ones(tmp_path):
    with atomic_version(tmp_path) as partial:
        (partial / "a").write_text("whole")

    def write():
        with atomic_version(tmp_path) as partial:
            (partial / "a").write_text("half")
            raise Broken

    with pytest.raises(Broken):
        write()
    assert names(tmp_path) == ["1"]


def test_two_do_not_write_a_version_at_a_time(tmp_path):
    with atomic_version(tmp_path) as partial:
        with pytest.raises(LockedError, match="is working in it"), atomic_version(tmp_path):
            pass
        (partial / "a").write_text("first")
    assert (tmp_path / "1" / "a").read_text() == "first"
