"""Files and folders appear whole or not at all; locks; hashes; work that is resumed."""

import errno
import hashlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from dcse_tf import files
from dcse_tf.errors import InputError, LockedError, OutputError

ROOT = pathlib.Path(__file__).parents[2]
BOTH = pytest.mark.parametrize("make", [files.atomic_file, files.atomic_directory])


class Broken(Exception):
    pass


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(make, path, content, overwrite=True, error=None):
    with make(path, overwrite=overwrite) as partial:
        (partial / "b" if partial.is_dir() else partial).write_text(content)
        if error:
            raise error


def read(path):
    return (path / "b" if path.is_dir() else path).read_text()


@BOTH
def test_an_output_appears_when_the_block_ends(tmp_path, make):
    path = tmp_path / "new" / "deep" / "a"
    write(make, path, "old", overwrite=False)
    with make(path, overwrite=True) as partial:
        assert partial.parent == path.parent  # a rename over file systems would not be atomic
        (partial / "b" if partial.is_dir() else partial).write_text("new")
        assert read(path) == "old"
    assert read(path) == "new"
    with pytest.raises(FileExistsError, match=f"{path} already exists"):
        write(make, path, "newer", overwrite=False)
    assert (read(path), names(path.parent)) == ("new", ["a"])


@BOTH
@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt, SystemExit])
def test_a_block_that_breaks_leaves_everything_as_it_was(tmp_path, make, error):
    for end in (".partial", ".previous", ".lock"):
        (tmp_path / f"a{end}").write_text("a user's own")
    for old in (None, "old"):
        if old:
            write(make, tmp_path / "a", old)
        before = names(tmp_path)
        with pytest.raises(error):
            write(make, tmp_path / "a", "half", error=error)
        assert names(tmp_path) == before
    assert read(tmp_path / "a") == "old"


def test_what_a_killed_run_left_is_not_continued(tmp_path):
    files.marked(tmp_path / "a", "partial").write_text("left, ")
    with files.atomic_file(tmp_path / "a") as partial, partial.open("a") as file:
        file.write("new")
    assert read(tmp_path / "a") == "new"


def test_a_file_does_not_replace_a_folder_but_a_folder_a_file(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    with pytest.raises(FileExistsError, match="a is a folder; give the name of a file"):
        write(files.atomic_file, tmp_path / "a", "new")
    with pytest.raises(FileExistsError, match="is a folder"):
        files.refuse_existing(tmp_path / "a", overwrite=True)
    os.mkfifo(tmp_path / "a/b")
    for special in (tmp_path / "a/b", pathlib.Path("/dev/dcse_tf_test")):
        with pytest.raises(FileExistsError, match="is a device or a pipe; give the name of a file"):
            write(files.atomic_file, special, "new")
    (tmp_path / "c").touch()
    write(files.atomic_directory, tmp_path / "c", "new")
    assert (names(tmp_path), read(tmp_path / "c")) == (["a", "c"], "new")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "a")
    with pytest.raises(FileExistsError, match="a is a mount point; give a new folder inside it"):
        write(files.atomic_directory, tmp_path / "a", "new")


@BOTH
@pytest.mark.parametrize("folder", [False, True])
def test_of_a_link_the_link_is_replaced(tmp_path, make, folder):
    kept = tmp_path / "elsewhere"
    write(files.atomic_directory if folder else files.atomic_file, kept, "old")
    (tmp_path / "link").symlink_to(kept)
    with pytest.raises(FileExistsError):
        write(make, tmp_path / "link", "new", overwrite=False)
    write(make, tmp_path / "link", "new")
    assert not (tmp_path / "link").is_symlink()
    assert (read(tmp_path / "link"), read(kept)) == ("new", "old")


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


def test_a_folder_that_was_being_replaced_when_its_writer_was_killed_comes_back(tmp_path):
    path = tmp_path / "a"
    files.restore_replaced(path)  # of what was never there, nothing
    write(files.atomic_directory, path, "all of it")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    with pytest.raises(FileExistsError):
        write(files.atomic_directory, path, "new", overwrite=False)
    assert read(path) == "all of it"
    path.rename(tmp_path / "a.dcse_tf-previous")
    with files.lock_output(path), pytest.raises(LockedError):  # its writer is between two renames
        files.restore_replaced(path)
    files.restore_replaced(path)
    assert (read(path), names(path)) == ("all of it", ["b"])


def test_content_is_flushed_before_the_rename_and_the_folder_afterwards(tmp_path, monkeypatch):
    calls = []

    def note(owner, name, describe):
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a: [calls.append(describe(*a)), function(*a)][1])

    note(os, "fsync", lambda descriptor: os.fstat(descriptor).st_ino)
    note(pathlib.Path, "rename", lambda path, target: "rename")
    note(pathlib.Path, "replace", lambda path, target: "rename")
    write(files.atomic_file, tmp_path / "a", "new")
    assert calls == [(tmp_path / "a").stat().st_ino, "rename", tmp_path.stat().st_ino]
    calls.clear()
    with files.atomic_directory(tmp_path / "c") as folder:
        (folder / "deep/deeper").mkdir(parents=True)
        (folder / "deep/low").write_text("new")
    inside = [path.stat().st_ino for path in (tmp_path / "c", *(tmp_path / "c").rglob("*"))]
    assert sorted(calls[:4]) == sorted(inside)
    assert calls[4:] == ["rename", tmp_path.stat().st_ino]


@BOTH
def test_only_a_file_system_that_cannot_flush_may_not_flush(tmp_path, monkeypatch, make):
    failure = errno.EINVAL

    def fail(descriptor):
        raise OSError(failure, os.strerror(failure))

    monkeypatch.setattr(os, "fsync", fail)
    write(make, tmp_path / "a", "new")
    failure = errno.EIO
    with pytest.raises(OutputError, match=f"{tmp_path}/c: cannot be written: Input/output"):
        write(make, tmp_path / "c", "new")
    assert names(tmp_path) == ["a"]


# Locks

HOLDER = """
import pathlib, subprocess, sys, time
from dcse_tf.files import lock_folder
with lock_folder(pathlib.Path(sys.argv[1]), ""):
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    time.sleep(60)
"""


@BOTH
def test_one_process_at_a_time_writes_an_output(tmp_path, make):
    with make(tmp_path / "a", overwrite=True) as partial:
        (partial / "b" if partial.is_dir() else partial).write_text("first")
        with pytest.raises(LockedError, match=f"{tmp_path}/a: another process is working in it"):
            write(make, tmp_path / "a", "second")
    assert (read(tmp_path / "a"), names(tmp_path)) == ("first", ["a"])


def test_a_lock_dies_with_its_holder(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as holder:
        child = int(holder.stdout.readline())
        said = f"{tmp_path}: another process is working in it; go away"
        with pytest.raises(LockedError, match=said), files.lock_folder(tmp_path, "go away"):
            pass
        holder.kill()
        holder.wait()
    try:
        with files.lock_folder(tmp_path, ""):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_folder_made_for_a_lock_goes_if_nothing_was_put_into_it(tmp_path):
    with files.lock_folder(tmp_path / "a" / "b", ""):
        pass
    assert names(tmp_path) == []
    with files.lock_folder(tmp_path / "a" / "b", ""):
        (tmp_path / "a" / "b" / "c").touch()
    assert (tmp_path / "a" / "b" / "c").exists()


# Hashes


def test_damage_is_found(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    hashes = files.hash_folder(tmp_path)
    assert hashes["a"] == hashlib.sha256(b"a").hexdigest()
    files.require_intact(tmp_path, hashes)
    (tmp_path / "b").write_text("c")
    with pytest.raises(InputError, match=r"^b has another content than was written$"):
        files.require_intact(tmp_path, hashes)
    (tmp_path / "a").unlink()
    with pytest.raises(InputError, match=r"^a is missing$"):
        files.require_intact(tmp_path, hashes)
    with pytest.raises(InputError, match=r"^no file is named$"):
        files.require_intact(tmp_path, {})
    assert files.hash_number("对话") == int(
        hashlib.blake2b("对话".encode(), digest_size=8).hexdigest(), 16
    )
