"""Atomic writes of files and folders, locks, hashes, and resumable work.

An incomplete file or folder lies beside its final path, under a name with the package's mark (see
`marked`). Its content is flushed to disk before the rename, and its parent folder after it. So a
final name always stands for complete content, even after a power failure.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, Self

import filelock

from dcse_tf.errors import InputError, LockedError, OutputError, name_output
from dcse_tf.input_files import read_json_object

# Part of every temporary file's name, so that none can be mistaken for a user's own file.
MARK = ".dcse_tf-"
_LOCK, _PARTIAL, _PREVIOUS = "lock", "partial", "previous"
MADE_FROM_FILE = "made_from.json"


def marked(path: pathlib.Path, what: str) -> pathlib.Path:
    """The path of a temporary file beside another path, such as "a.npy.dcse_tf-lock"."""
    return path.with_name(f"{path.name}{MARK}{what}")


def partial_path(path: pathlib.Path) -> pathlib.Path:
    """Where a file or a folder lies until it is complete."""
    return marked(path, _PARTIAL)


def complete_path(partial: pathlib.Path) -> pathlib.Path:
    """The final path of an incomplete file or folder; the inverse of `partial_path`."""
    return partial.with_name(partial.name.removesuffix(MARK + _PARTIAL))


def write_json(path: pathlib.Path, content: Any, sort_keys: bool = False) -> None:
    """Writes an indented file of JSON, all in ASCII; not atomically."""
    text = json.dumps(content, indent=2, sort_keys=sort_keys) + "\n"
    path.write_text(text, encoding="utf-8")


# Hashes


def hash_bytes(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def hash_file(path: pathlib.Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_folder(folder: pathlib.Path) -> dict[str, str]:
    """SHA-256 of each file in a folder, by file name."""
    return {path.name: hash_file(path) for path in sorted(folder.iterdir())}


def find_damage(folder: pathlib.Path, hashes: Mapping[str, str]) -> str | None:
    """Describes the first file that differs from its hash; None if all files are unchanged.

    Args:
        folder: the folder of the files.
        hashes: file name -> SHA-256, from `hash_folder`.
    """
    for name, expected in hashes.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if hash_file(folder / name) != expected:
            return f"{name} has another content than was written"
    return None


def hash_number(text: str) -> int:
    """A 64-bit hash that depends only on the text; Python's own `hash` differs between runs."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


# Locks


@contextlib.contextmanager
def lock_folder(folder: pathlib.Path, remedy: str) -> Iterator[int]:
    """Locks a folder for this process, and creates it if it does not exist.

    Folders created here are removed at the end if they are empty, so that a job that is refused
    later leaves nothing behind.

    Args:
        folder: the folder to lock.
        remedy: what the user can do if it is locked, for the error message.

    Yields:
        The locked file descriptor. A child process that inherits it holds the lock too, even after
        this process has been killed.

    Raises:
        LockedError: another process holds the lock.
        OutputError: the folder cannot be written to.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _lock(folder / f"{MARK}{_LOCK}", folder, remedy) as descriptor:
            yield descriptor
    finally:
        with contextlib.suppress(OSError):  # stops at the first that is not empty
            for path in made:
                path.rmdir()


@contextlib.contextmanager
def lock_output(path: pathlib.Path) -> Iterator[None]:
    """Locks a file or folder for writing, with a lock file beside it.

    Args:
        path: the file or folder to write; its parent must exist.

    Raises:
        LockedError: another process is writing it.
        OutputError: its parent cannot be written to.
    """
    with _lock(marked(path, _LOCK), path, "wait for it, or give another path"):
        yield


@contextlib.contextmanager
def _lock(path: pathlib.Path, what: pathlib.Path, remedy: str) -> Iterator[int]:
    descriptors: list[int] = []
    # Only a lock of the kernel is released when its holder is killed. On file systems without such
    # locks, filelock would fall back to the lock file's existence, which outlives the process.
    lock = filelock.FileLock(
        path, blocking=False, fallback_to_soft=False, on_acquired=descriptors.append
    )
    try:
        lock.acquire()
    except filelock.Timeout:
        holder = "another process"
        with contextlib.suppress(OSError, ValueError):
            holder = f"process {int(path.read_text())}"
        raise LockedError(f"{what}: {holder} is working in it; {remedy}") from None
    except OSError as error:
        raise OutputError(f"{what}: cannot be written: {error.strerror}") from error
    try:
        with contextlib.suppress(OSError):  # a full disk is reported by the next write
            path.write_text(f"{os.getpid()}\n")
        yield descriptors[0]
    finally:
        path.unlink(missing_ok=True)  # before the release: later, it may be another's
        lock.release()


# Atomic writes


def refuse_existing(path: pathlib.Path, overwrite: bool) -> None:
    """Checks that a file can be written at a path.

    Raises:
        FileExistsError: the path is a folder, or exists and `overwrite` is not set.
    """
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder; give the name of a file")
    if os.path.lexists(path) and not overwrite:
        raise FileExistsError(f"{path} already exists; give another file, or `overwrite`")


@contextlib.contextmanager
def atomic_file(path: pathlib.Path, overwrite: bool = True) -> Iterator[pathlib.Path]:
    """Yields a temporary path to write to; it is renamed to `path` when the block succeeds.

    Args:
        path: the file to write; missing parent folders are created.
        overwrite: whether to replace an existing file. If it is a symbolic link, the link is
            replaced and the file it points to is kept.

    Raises:
        FileExistsError: `path` is a folder, or exists and may not be replaced.
        LockedError: another process is writing it.
        OutputError: a write failed without saying of which file.
    """
    with _write_beside(path) as partial:
        if not (overwrite and path.is_symlink()):  # a link to a folder is replaced too
            refuse_existing(path, overwrite)
        yield partial
        flush(partial)
        partial.replace(path)
        flush(path.parent)


@contextlib.contextmanager
def atomic_directory(path: pathlib.Path, overwrite: bool = False) -> Iterator[pathlib.Path]:
    """Yields a temporary folder to write into; it is renamed to `path` when the block succeeds.

    Args:
        path: the folder to write; missing parent folders are created.
        overwrite: whether to replace an existing folder. It stays until the new one is complete.
            If it is a symbolic link, the link is replaced and its target is kept.

    Raises:
        FileExistsError: `path` exists and may not be replaced.
        LockedError: another process is writing it.
        OutputError: a write failed without saying of which file.
    """
    with _write_beside(path) as partial:
        _restore(path)
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(f"{path} already exists; give another folder, or `overwrite`")
        partial.mkdir()
        yield partial
        for folder, _, names in os.walk(partial, topdown=False):
            for name in names:
                flush(pathlib.Path(folder, name))
            flush(pathlib.Path(folder))
        previous = marked(path, _PREVIOUS)
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
    partial = partial_path(path)
    with lock_output(path), name_output(path):
        remove(partial)  # left by a run that was killed
        try:
            yield partial
        except BaseException:
            remove(partial)
            raise


@contextlib.contextmanager
def atomic_version(parent: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a folder to write into; it becomes the next version in `parent`.

    Versions are folders with numbers as names, as TensorFlow Serving expects. The next version is
    the largest number plus one. Existing versions are never changed.

    Args:
        parent: the folder of the versions; created if it does not exist.

    Raises:
        LockedError: another process is writing a version.
        OutputError: a write failed without saying of which file.
    """
    with lock_folder(parent, "wait for it, or give another folder"):
        numbers = [int(path.name) for path in parent.iterdir() if re.fullmatch("[0-9]+", path.name)]
        with atomic_directory(parent / str(max(numbers, default=0) + 1)) as folder:
            yield folder


def restore_replaced(path: pathlib.Path) -> None:
    """Restores a folder that a crash interrupted while it was being replaced.

    Replacing a folder takes two renames; a crash between them leaves the previous folder under
    another name. Call this before reading a folder that may have been replaced. If nothing was
    interrupted, it does nothing.

    Raises:
        LockedError: another process is replacing it right now.
    """
    if os.path.lexists(marked(path, _PREVIOUS)) and not os.path.lexists(path):
        with lock_output(path):
            _restore(path)


def _restore(path: pathlib.Path) -> None:
    if os.path.lexists(marked(path, _PREVIOUS)) and not os.path.lexists(path):
        marked(path, _PREVIOUS).rename(path)
        flush(path.parent)


def flush(path: pathlib.Path) -> None:
    """Flushes a file's content, or a folder's list of names, to disk.

    Raises:
        OSError: it cannot be opened or written.
    """
    if os.name == "nt":
        return  # Windows flushes neither folders nor files that are open for reading
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


# What results were made from, and work that is resumed only with the same


@dataclasses.dataclass(frozen=True)
class MadeFrom:
    """What a result depends on; stored beside it and compared before it is resumed or reused.

    Attributes:
        values: name -> a JSON value, such as a setting or the SHA-256 of a file. Messages show
            both.
    """

    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: pathlib.Path) -> Self:
        """Reads what `write` wrote; raises InputError if it cannot be read."""
        return cls(read_json_object(path, "a record of what a result was made from"))

    def write(self, path: pathlib.Path) -> None:
        """Writes an indented JSON object."""
        content = json.dumps(self.values, indent=2, sort_keys=True, ensure_ascii=False)
        with atomic_file(path) as partial:
            partial.write_text(content + "\n", encoding="utf-8")

    def compare(self, now: "MadeFrom") -> dict[str, str]:
        """Lists the values that differ in `now`: name -> "name: now (was before)"."""
        return {
            name: f"{name}: {_show(now.values.get(name))} (was {_show(self.values.get(name))})"
            for name in {**self.values, **now.values}
            if self.values.get(name) != now.values.get(name)
        }

    def require(self, now: "MadeFrom", problem: str, remedy: str) -> None:
        """Requires that the result would be made from the same things now.

        Args:
            now: what it would be made from now.
            problem: the path and what is wrong, for the message.
            remedy: what the user can do, for the message.

        Raises:
            InputError: a value has changed; the message says which.
        """
        if changes := self.compare(now):
            raise InputError(f"{problem}: {'; '.join(changes.values())}; {remedy}")


def _show(value: Any) -> str:
    if value is None:
        return "none"
    is_hash = isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)
    return f"SHA-256 {value[:12]}..." if is_hash else str(value)


@contextlib.contextmanager
def resumable(path: pathlib.Path, made_from: MadeFrom, overwrite: bool) -> Iterator[pathlib.Path]:
    """Yields a folder where a long job keeps its finished steps until `path` is complete.

    If the job is stopped, the folder stays, and the next job with the same `made_from` gets it
    again. It is removed if no step was finished, and when the block succeeds, by which time the job
    must have moved out what it wants to keep.

    Args:
        path: the job's output; the caller holds its lock, see `lock_output`.
        made_from: what the steps depend on; written to the folder first, as MADE_FROM_FILE.
        overwrite: whether to discard the steps of an earlier job.

    Raises:
        InputError: the folder holds steps of a job with another `made_from`.
    """
    work = partial_path(path)

    def has_steps() -> bool:
        names = {entry.name for entry in work.iterdir()} if work.is_dir() else set()
        return any(name != MADE_FROM_FILE and MARK not in name for name in names)

    if has_steps() and not overwrite:
        remedy = "give the same, or `overwrite` to start anew"
        try:
            before = MadeFrom.read(work / MADE_FROM_FILE)
        except InputError as error:
            raise InputError(f"{error}; {remedy}") from error
        before.require(made_from, f"{work}: begun with other settings or files", remedy)
    else:
        remove(work)
        work.mkdir(parents=True)
    try:
        made_from.write(work / MADE_FROM_FILE)
        yield work
    except BaseException:
        if not has_steps():
            remove(work)
        raise
    remove(work)
