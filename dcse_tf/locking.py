"""Locks that die with the process that holds them, however it ends."""

import contextlib
import fcntl
import os
import pathlib
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
