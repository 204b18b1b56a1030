"""Atomic writes of files and folders, locks, hashes.

An incomplete file or folder lies beside its final path, under a name with the package's mark (see
`marked`). Its content is flushed to disk before the rename, and its parent folder after it. So a
final name always stands for complete content, even after a power failure.
"""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import filelock

from dcse_tf.errors import InputError, LockedError, OutputError, name_output

# Part of every temporary file's name, so that none can be mistaken for a user's own file.
MARK = ".dcse_tf-"
_DEVICES = pathlib.Path("/dev")


def marked(path: pathlib.Path, what: str) -> pathlib.Path:
    """The path of a temporary file beside another path, such as "a.npy.dcse_tf-partial"."""
    return path.with_name(f"{path.name}{MARK}{what}")


def write_json(path: pathlib.Path, content: Any, sort_keys: bool = False) -> None:
    """Writes an indented file of JSON; not atomically."""
    text = json.dumps(content, indent=2, sort_keys=sort_keys, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def write_record(path: pathlib.Path, values: Mapping[str, Any], sort_keys: bool = True) -> None:
    """Writes an indented JSON object atomically."""
    with atomic_file(path) as partial:
        write_json(partial, values, sort_keys)


def hash_bytes(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def hash_file(path: pathlib.Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_folder(folder: pathlib.Path) -> dict[str, str]:
    """SHA-256 of each file in a folder and below, by its path in it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in paths}


def require_intact(folder: pathlib.Path, hashes: Mapping[str, str]) -> None:
    """Raises InputError if a file differs from its hash of `hash_folder`, or there are none."""
    for name, expected in hashes.items():
        if not (folder / name).is_file():
            raise InputError(f"{name} is missing")
        if hash_file(folder / name) != expected:
            raise InputError(f"{name} has another content than was written")
    if not hashes:
        raise InputError("no file is named")


def hash_number(text: str) -> int:
    """A 64-bit hash that depends only on the text; Python's own `hash` differs between runs."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@contextlib.contextmanager
def lock_folder(folder: pathlib.Path, remedy: str) -> Iterator[None]:
    """Locks a folder for this process; creates it, and removes it if it stays empty. `remedy` is
    what the user can do if it is locked.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _lock(folder / f"{MARK}lock", folder, remedy):
            yield
    finally:
        with contextlib.suppress(OSError):  # stops at the first that is not empty
            for path in made:
                path.rmdir()


def lock_output(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Locks a file or folder for writing, with a lock file beside it; see `lock_folder`."""
    return _lock(marked(path, "lock"), path, "wait for it, or give another path")


@contextlib.contextmanager
def _lock(path: pathlib.Path, what: pathlib.Path, remedy: str) -> Iterator[None]:
    # Only a lock of the kernel is released when its holder is killed. On file systems without such
    # locks, filelock would fall back to the lock file's existence, which outlives the process.
    lock = filelock.FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise LockedError(f"{what}: another process is working in it; {remedy}") from None
    except OSError as error:
        raise OutputError(f"{what}: cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the release: later, it may be another's
        lock.release()


def refuse_existing(path: pathlib.Path, overwrite: bool) -> None:
    """Raises FileExistsError for a folder, or for what exists and may not be overwritten."""
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder; give the name of a file")
    if path.parent == _DEVICES or (path.exists() and not path.is_file()):
        raise FileExistsError(f"{path} is a device or a pipe; give the name of a file")
    if os.path.lexists(path) and not overwrite:
        raise FileExistsError(f"{path} already exists; give another file, or `overwrite`")


@contextlib.contextmanager
def atomic_file(path: pathlib.Path, overwrite: bool = True) -> Iterator[pathlib.Path]:
    """Yields a temporary path to write to; it is renamed to `path` when the block succeeds.

    Missing parent folders are created. Of a symbolic link, the link is replaced. Raises
    FileExistsError if `path` is a folder, or exists and may not be replaced; LockedError if another
    process is writing it; OutputError if a write failed without saying of which file.
    """
    with _write_beside(path) as partial:
        if not (overwrite and path.is_symlink()) or path.parent == _DEVICES:  # a link is replaced
            refuse_existing(path, overwrite)
        yield partial
        flush(partial)
        partial.replace(path)
        flush(path.parent)


@contextlib.contextmanager
def atomic_directory(path: pathlib.Path, overwrite: bool = False) -> Iterator[pathlib.Path]:
    """`atomic_file` for a folder: yields a temporary folder to write into.

    An existing one stays until the new one is complete.
    """
    with _write_beside(path) as partial:
        _restore(path)
        if os.path.ismount(path):  # such as the volume of a container
            raise FileExistsError(f"{path} is a mount point; give a new folder inside it")
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(f"{path} already exists; give another folder, or `overwrite`")
        partial.mkdir()
        yield partial
        for written in (partial, *partial.rglob("*")):
            flush(written)
        previous = marked(path, "previous")
        if os.path.lexists(path):
            remove(previous)
            path.rename(previous)
        partial.rename(path)
        flush(path.parent)
        remove(previous)


@contextlib.contextmanager
def _write_beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Locks an output and yields its partial path, at which nothing lies before and after."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = marked(path, "partial")
    with lock_output(path), name_output(path):
        remove(partial)  # left by a run that was killed
        try:
            yield partial
        except BaseException:
            remove(partial)
            raise


def restore_replaced(path: pathlib.Path) -> None:
    """Restores a folder that a crash interrupted while it was being replaced.

    Replacing a folder takes two renames; a crash between them leaves the previous folder under
    another name. Call this before reading a folder that may have been replaced.
    """
    if os.path.lexists(marked(path, "previous")) and not os.path.lexists(path):
        with lock_output(path):  # otherwise someone may be between the two renames right now
            _restore(path)


def _restore(path: pathlib.Path) -> None:
    previous = marked(path, "previous")
    if os.path.lexists(previous) and not os.path.lexists(path):
        previous.rename(path)
        flush(path.parent)


def flush(path: pathlib.Path) -> None:
    """Flushes a file's content, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot flush
            raise
    finally:
        os.close(descriptor)


def remove(path: pathlib.Path) -> None:
    """Deletes a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def require_same(
    before: Mapping[str, Any], now: Mapping[str, Any], problem: str, remedy: str
) -> None:
    """Raises InputError with the problem, what has changed, and the remedy, if anything has.

    Both say what a result is made from: name -> a JSON value, such as a setting or a SHA-256.
    """
    changes = [
        f"{name}: {_show(now.get(name))} (was {_show(before.get(name))})"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if changes:
        raise InputError(f"{problem}: {'; '.join(changes)}; {remedy}")


def _show(value: Any) -> str:
    is_hash = isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)
    return f"SHA-256 {value[:12]}..." if is_hash else "none" if value is None else str(value)
