"""Files that are written whole or not at all, folders that one process holds at a time.

What is not complete has a name beside the one to come, with the package's mark (see `marked`).
What has appeared is on the disk: it is flushed before it is renamed, and its folder afterwards.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

from dcse_tf.errors import LockedError, OutputError, name_output

# In the names of what is not complete, so that no file or folder of the user's has them.
MARK = ".dcse_tf-"
LOCK_FILE = f"{MARK}lock"  # of a folder


def marked(path: pathlib.Path, what: str) -> pathlib.Path:
    """A name beside a path, for what is not complete."""
    return path.with_name(f"{path.name}{MARK}{what}")


@contextlib.contextmanager
def lock_folder(folder: pathlib.Path, remedy: str) -> Iterator[int]:
    """Holds the only lock of a folder, made if there is none; yields the locked descriptor.

    A folder that was made and is empty at the end goes again, with its parents: a job that was
    refused leaves nothing.

    Args:
        folder: the folder.
        remedy: what the user can do, for the error.

    Raises:
        LockedError: another process holds it.
        OutputError: the folder cannot be written to.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _lock(folder / LOCK_FILE, str(folder), remedy) as descriptor:
            yield descriptor
    finally:
        with contextlib.suppress(OSError):  # of the first that is not empty
            for path in made:
                path.rmdir()


@contextlib.contextmanager
def lock_output(path: pathlib.Path) -> Iterator[None]:
    """Holds the only lock of what is being written to a path, by a file beside it.

    Args:
        path: what will be there; its folder exists.

    Raises:
        LockedError: another process is writing it.
        OutputError: its folder cannot be written to.
    """
    with _lock(marked(path, "lock"), str(path), "wait for it, or give another path"):
        yield


@contextlib.contextmanager
def _lock(path: pathlib.Path, what: str, remedy: str) -> Iterator[int]:
    """The lock is the kernel's (flock): a file that a killed process left behind locks nothing.

    Processes that inherit the descriptor hold the lock too.
    """
    descriptor = _open_locked(path, what, remedy)
    try:
        with name_output(pathlib.Path(what)):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        path.unlink(missing_ok=True)  # while it is held: nobody else's is deleted
        os.close(descriptor)


def _open_locked(path: pathlib.Path, what: str, remedy: str) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(f"{what}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(descriptor, path):
                return descriptor
        except BlockingIOError:
            holder = os.read(descriptor, 64).decode("ascii", "replace").strip()
            os.close(descriptor)
            who = f"process {holder}" if holder else "another process"
            raise LockedError(f"{what}: {who} is at work in it; {remedy}") from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder deleted it between opening and locking


def _is_named(descriptor: int, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


_NUMBER = re.compile("[0-9]+")
_PARTIAL, _PREVIOUS = "partial", "previous"


def partial_path(path: pathlib.Path) -> pathlib.Path:
    """Where a file or a folder lies until it is complete."""
    return marked(path, _PARTIAL)


def complete_path(partial: pathlib.Path) -> pathlib.Path:
    """The name that what is being written will take; the reverse of `partial_path`."""
    return partial.with_name(partial.name.removesuffix(MARK + _PARTIAL))


@contextlib.contextmanager
def atomic_directory(path: pathlib.Path, overwrite: bool = False) -> Iterator[pathlib.Path]:
    """Yields a folder to write into; it takes the name `path` when the block ends well.

    Args:
        path: the folder to make; its parents are made too.
        overwrite: whether an existing folder is replaced; it stays until the new one is complete.
            Of a symbolic link the link is replaced, and what it points to is kept.

    Raises:
        FileExistsError: `path` exists and may not be replaced.
        LockedError: another process is writing it.
        OutputError: a write failed without saying of which file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_output(path), name_output(path):
        _restore(path)
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(f"{path} exists already; give another folder, or `overwrite`")
        partial, previous = partial_path(path), marked(path, _PREVIOUS)
        _remove(partial)  # of a run that was killed
        try:
            partial.mkdir()
            yield partial
            _flush_tree(partial)
        except BaseException:
            _remove(partial)
            raise
        if os.path.lexists(path):
            _remove(previous)
            path.rename(previous)
        partial.rename(path)
        flush(path.parent)
        _remove(previous)


def restore_replaced(path: pathlib.Path) -> None:
    """Puts back a folder that a crash left under another name while it was being replaced.

    `atomic_directory` has two renamings to do, after the first of which nothing has the name. For
    whoever reads a folder that may have been left so; otherwise it does nothing.

    Raises:
        LockedError: another process is replacing it just now.
    """
    if _is_replaced(path):
        with lock_output(path):
            _restore(path)


def _is_replaced(path: pathlib.Path) -> bool:
    return os.path.lexists(marked(path, _PREVIOUS)) and not os.path.lexists(path)


def _restore(path: pathlib.Path) -> None:
    if _is_replaced(path):
        marked(path, _PREVIOUS).rename(path)
        flush(path.parent)


@contextlib.contextmanager
def atomic_version(parent: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a folder to write into; it becomes the next version of `parent` when the block ends.

    Versions are folders whose names are numbers, as TensorFlow Serving has them; the next one is
    the largest number and one. An older one is never changed.

    Args:
        parent: the folder of the versions; it is made if there is none.

    Raises:
        LockedError: another process writes a version.
        OutputError: a write failed without saying of which file.
    """
    with lock_folder(parent, "wait for it, or give another folder"):
        numbers = [int(path.name) for path in parent.iterdir() if _NUMBER.fullmatch(path.name)]
        with atomic_directory(parent / str(max(numbers, default=0) + 1)) as folder:
            yield folder


@contextlib.contextmanager
def atomic_file(path: pathlib.Path, overwrite: bool = True) -> Iterator[pathlib.Path]:
    """Yields a path to write to; the file takes the name `path` when the block ends well.

    Args:
        path: the file to make; its folders are made too.
        overwrite: whether an existing file is replaced. Of a symbolic link the link is replaced,
            and what it points to is kept.

    Raises:
        FileExistsError: `path` exists and may not be replaced.
        LockedError: another process is writing it.
        OutputError: a write failed without saying of which file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_output(path), name_output(path):
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(f"{path} exists already; give another file, or `overwrite`")
        partial = partial_path(path)
        partial.unlink(missing_ok=True)  # of a run that was killed
        try:
            yield partial
            flush(partial)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        flush(path.parent)


def flush(path: pathlib.Path) -> None:
    """Hands a file, or the names in a folder, to the disk: a rename must not outrun what it names.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot flush, as some over a network
            raise
    finally:
        os.close(descriptor)


def _flush_tree(folder: pathlib.Path) -> None:
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            flush(pathlib.Path(path, name))
        flush(pathlib.Path(path))


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
