"""Local copies of files in object stores and HDFS, through the packages of fsspec.

A name such as s3://bucket/run, gs://... or hdfs://... is a URL. Its copy lies in the cache folder
under the same path, so that a message about the copy shows which file is meant. A record beside
the copy holds the versions of both sides when they were last equal.
"""

import contextlib
import glob
import json
import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from dcse_tf.errors import InputError, OutputError
from dcse_tf.files import MARK, hash_bytes, marked
from dcse_tf.input_files import read_json_object

CACHE_VARIABLE = "DCSE_CACHE"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)", re.DOTALL)
_RECORD = "store"
_ROOT = "_"  # the folder of copies whose URL has no bucket or host
# Files that mark others as complete; they are sent after those.
_LAST = (".json", "/_SUCCESS")


def is_url(name: str) -> bool:
    """Whether a name is the URL of a store."""
    return _URL.fullmatch(name) is not None


def _cache() -> pathlib.Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get(CACHE_VARIABLE) or os.path.join(home, "dcse_tf")).absolute()


def local_path(url: str) -> pathlib.Path:
    """The path of the copy of a file or folder: CACHE/s3/bucket/run for s3://bucket/run.

    Raises:
        InputError: the URL has an empty part, ".", ".." or a null character.
    """
    found = _URL.fullmatch(url)
    assert found, url
    parts = found[2].strip("/").split("/")
    if found[2].startswith("/"):  # file:///data, hdfs:///data
        parts = [_ROOT, *parts]
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise InputError(f"{url}: expected a path without empty parts, . and ..")
    return _cache().joinpath(found[1], *parts)


def url_of(path: pathlib.Path) -> str | None:
    """The URL that a path is the copy of; None if it is not a copy."""
    if not path.absolute().is_relative_to(_cache()):
        return None
    scheme, *parts = path.absolute().relative_to(_cache()).parts
    if parts[:1] == [_ROOT]:
        parts[0] = ""
    return f"{scheme}://{'/'.join(parts)}"


def open_store(url: str) -> tuple[Any, str]:
    """The file system of a URL, fsspec's AbstractFileSystem, and the path in it.

    Raises:
        InputError: no package for the store is installed, or the package rejects its settings.
    """
    import fsspec

    with _name_faults(url, InputError):
        fs, path = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return fs, path.rstrip("/")


def list_files(pattern: str) -> list[str]:
    """The sorted URLs of the files that match a URL, which may contain *, ? and [...].

    Raises:
        InputError: no file matches, or the store cannot be read.
    """
    fs, path = open_store(pattern)
    with _name_faults(pattern, InputError):
        found = sorted(name for name in fs.glob(path) if fs.isfile(name))
    if not found:
        raise InputError(f"{pattern}: no such file")
    # fsspec's paths include the bucket, but not the host.
    start = pattern.removesuffix(path)
    return [f"{start}{name}" for name in found]


def find_folders(name: str) -> list[str]:
    """The sorted URLs of the folders that match a URL with *, ? or [...]; other names unchanged.

    A URL that matches none is returned as it is: a folder yet to be made may have such a name.

    Raises:
        InputError: the store cannot be read.
    """
    if not is_url(name) or not glob.has_magic(name):
        return [name]
    fs, path = open_store(name)
    with _name_faults(name, InputError):
        found = [] if fs.exists(path) else sorted(each for each in fs.glob(path) if fs.isdir(each))
    start = name.rstrip("/").removesuffix(path)
    return [f"{start}{each.rstrip('/')}" for each in found] or [name]


def fetch(name: str) -> str:
    """Fetches a URL and returns the path of its copy (see `Copy.fetch`); other names unchanged."""
    return str(Copy(name).fetch()) if is_url(name) else name


class Copy:
    """A file or folder in a store and its copy on this machine.

    Attributes:
        url: the URL in the store.
        path: the path of the copy.

    Raises:
        InputError: the store cannot be used.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self.path = local_path(self.url)
        self._fs, self._root = open_store(self.url)
        self._record = marked(self.path, _RECORD)

    def versions(self) -> dict[str, str]:
        """The store's files: name in the folder ("" for a single file) -> hash of its version.

        Raises:
            InputError: the store cannot be read.
        """
        with _name_faults(self.url, InputError):
            self._fs.invalidate_cache()
            found = self._fs.find(self._root, detail=True)
            if not found and self._fs.exists(self._root):  # HTTP cannot list files
                found = {self._root: self._fs.info(self._root)}
        # Object stores also have keys for folders; they end in "/".
        names = {name[len(self._root) :].lstrip("/"): info for name, info in found.items()}
        return {
            name: hash_bytes(repr(sorted(info.items())).encode())
            for name, info in names.items()
            if not name.endswith("/") and ".." not in name.split("/")
        }

    def fetch(self) -> pathlib.Path:
        """Updates the copy from the store; returns the copy's path.

        Raises:
            InputError: the store has no such file or folder, or cannot be read.
        """
        found, known = self.versions(), self._read_record()
        if not found:
            raise InputError(f"{self.url}: no such file or folder")
        wanted = [name for name in found if known.get(name) != [found[name], self._sign(name)]]
        if wanted:
            logging.info("fetching %s: %d of %d files", self.url, len(wanted), len(found))
        self._make_room("" in found)
        for name in wanted:
            self._download(name)
        for name in self._list_copies() - found.keys():
            self._place(name).unlink(missing_ok=True)
        self._write_record(found, {name: self._sign(name) for name in found})
        return self.path

    def was_sent(self) -> bool:
        """Whether the copy and the store have been equal before."""
        return self._record.exists()

    def clear(self) -> None:
        """Removes the copy; unfinished files beside it stay."""
        self._record.unlink(missing_ok=True)
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)

    def send(self, replaced: Iterable[str] = ()) -> int:
        """Sends the copy's changes to the store; returns how many files were sent.

        Files that are still being written are left out, and files that mark others as complete go
        last. Files that change or disappear meanwhile are handled by the next call.

        Args:
            replaced: names of further files to delete from the store.

        Raises:
            OutputError: the store cannot be written to.
        """
        known, copies = self._read_record(), self._list_copies()
        signs = {name: self._sign(name) for name in copies}
        changed = [name for name in copies if known.get(name, [""])[-1] != signs[name]]
        gone = {*known, *replaced} - copies
        if not changed and not gone:
            return 0
        with _name_faults(self.url, OutputError):
            for name in sorted(changed, key=lambda name: (name.endswith(_LAST), name)):
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    _put(self._fs, self._place(name), self._name(name))
            if gone:
                for name in gone & self.versions().keys():
                    self._fs.rm_file(self._name(name))
        self._write_record(self.versions(), signs)
        return len(changed)

    def _name(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _place(self, name: str) -> pathlib.Path:
        return self.path / name if name else self.path

    def _list_copies(self) -> set[str]:
        if self.path.is_file():
            return {""}
        found = (path for path in self.path.rglob("*") if path.is_file())
        names = (path.relative_to(self.path).as_posix() for path in found)
        return {name for name in names if MARK not in name}

    def _sign(self, name: str) -> str:
        """Modification time and size of a copied file; "" if it does not exist."""
        try:
            status = self._place(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        return f"{status.st_mtime_ns}-{status.st_size}"

    def _make_room(self, is_file: bool) -> None:
        """Removes a folder that is in the place of a file, or a file in the place of a folder."""
        if self.path.exists() and self.path.is_file() != is_file:
            self.clear()

    def _download(self, name: str) -> None:
        place = self._place(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = marked(place, uuid.uuid4().hex)  # other processes may be fetching it too
        try:
            with _name_faults(f"{self.url}/{name}".rstrip("/"), InputError):
                self._fs.get_file(self._name(name), str(partial))
                # Jobs recognize a large input by its size and time, even on another machine.
                with contextlib.suppress(NotImplementedError):
                    time = self._fs.modified(self._name(name)).timestamp()
                    os.utime(partial, (time, time))
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)

    def _read_record(self) -> dict[str, Any]:
        try:
            return read_json_object(self._record)
        except InputError:  # there is none yet
            return {}

    def _write_record(self, versions: Mapping[str, str], signs: Mapping[str, str]) -> None:
        both = {name: [versions[name], signs[name]] for name in versions if name in signs}
        self._record.parent.mkdir(parents=True, exist_ok=True)
        partial = marked(self._record, uuid.uuid4().hex)
        partial.write_text(json.dumps(both))
        partial.replace(self._record)


def put_file(source: pathlib.Path, url: str) -> None:
    """Copies a file to a URL.

    Raises:
        OutputError: the store cannot be written to.
    """
    fs, target = open_store(url)
    with _name_faults(url, OutputError):
        _put(fs, source, target)


def _put(fs: Any, source: pathlib.Path, target: str) -> None:
    # fsspec's local file system creates parent folders only if told to.
    if getattr(fs, "auto_mkdir", None) is False:
        fs.auto_mkdir = True
    fs.put_file(str(source), target)


def exists(name: str) -> bool:
    """Whether a file or folder exists; the name may be a URL."""
    fs, path = open_store(name)
    with _name_faults(name, InputError):
        return fs.exists(path)


def sign_file(name: str) -> str:
    """A text that changes with a file, without reading it: its size and modification time or, for a
    URL, a hash of what the store says of the file.
    """
    if is_url(name):
        return Copy(name).versions().get("", "")
    status = os.stat(name)
    return f"{status.st_size}-{status.st_mtime_ns}"


def remove_folder(name: str) -> None:
    """Removes a folder if it exists; the name may be a URL.

    Raises:
        OutputError: it cannot be removed.
    """
    fs, path = open_store(name)
    with _name_faults(name, OutputError):
        if fs.exists(path):
            fs.rm(path, recursive=True)


@contextlib.contextmanager
def _name_faults(url: str, kind: type[InputError] | type[OutputError]) -> Iterator[None]:
    """Turns whatever error a store's package raises into a one-line `kind`."""
    try:
        yield
    except (InputError, OutputError):
        raise
    except Exception as error:
        what = "read" if kind is InputError else "written"
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise kind(f"{url}: cannot be {what}: {reason[0]}") from error


def find_parts(url: str, pattern: str) -> Sequence[str]:
    """URLs beside `url` whose names are its stem (no suffix) followed by a match of `pattern`."""
    folder, _, name = url.rpartition("/")
    fs, path = open_store(folder)
    stem = name.rpartition(".")[0] or name
    with _name_faults(url, InputError):
        names = sorted(fs.glob(f"{path}/{stem}{pattern}"))
    return [f"{folder}/{found.rpartition('/')[2]}" for found in names]
