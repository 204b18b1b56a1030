"""Files in object stores and HDFS, through the packages of fsspec.

Jobs see only local files, because stores lack operations such as renaming or locking a folder:
inputs are fetched before a job, outputs sent after it. The copy of s3://bucket/run lies in the
cache folder under s3/bucket/run, so that a message about the copy shows which file is meant.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from absl import logging

from dcse_tf.errors import InputError, OutputError
from dcse_tf.files import MARK, atomic_file, marked, remove
from dcse_tf.input_files import read_json_object
from dcse_tf.options import Options
from dcse_tf.worker import read_worker

T = TypeVar("T", bound=Options)
CACHE_VARIABLE = "DCSE_CACHE"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)", re.DOTALL)


def is_url(name: str) -> bool:
    """Whether a name is the URL of a store, such as s3://bucket/run."""
    return _URL.fullmatch(name) is not None


def list_files(pattern: str) -> list[str]:
    """The sorted URLs of the files that match a URL, which may contain *, ? and [...].

    Raises:
        InputError: no file matches, or the store cannot be read.
    """
    with _open_store(pattern, InputError) as (fs, path):
        found = sorted(name for name in fs.glob(path) if fs.isfile(name))
    if not found:
        raise InputError(f"{pattern}: no such file")
    # fsspec's paths include the bucket, but not the host.
    start = pattern.removesuffix(path)
    return [f"{start}{name}" for name in found]


def fetch(name: str) -> str:
    """Fetches a file or folder; of one fetched before, only what has changed.

    Args:
        name: a URL; other names are returned unchanged.

    Returns:
        The path of the copy.

    Raises:
        InputError: the store has no such file or folder, or cannot be read.
    """
    if not is_url(name):
        return name
    copy = _local_path(name)
    with _open_store(name, InputError) as (fs, root):
        found = fs.find(root) or ([root] if fs.exists(root) else [])
        if not found:
            raise InputError(f"{name}: no such file or folder")
        # Object stores also have keys for folders; they end in "/".
        places = {each: each[len(root) :].lstrip("/") for each in found if not each.endswith("/")}
        record = marked(copy, "versions")
        known = read_json_object(record) if record.is_file() else {}
        versions = {place: fs.ukey(each) for each, place in places.items()}
        for each, place in places.items():
            path = copy / place if place else copy
            if known.get(place) != versions[place] or not path.is_file():
                logging.info("fetching %s", each)
                if path.is_dir():
                    remove(path)
                with atomic_file(path) as partial:
                    fs.get_file(each, str(partial))
        for place in known.keys() - versions.keys():
            remove(copy / place)
        record.write_text(json.dumps(versions))
    return str(copy)


@contextlib.contextmanager
def stage(options: T) -> Iterator[T]:
    """Yields a job's options with URLs replaced by local paths.

    Inputs are fetched. Outputs are sent when the job has succeeded; those that a later run resumes,
    such as a run directory, are fetched before, and sent also when the job fails or is stopped. Of
    several workers, only the first one sends.

    Raises:
        InputError: a file does not exist, or a store cannot be used.
        FileExistsError: the output exists, without `overwrite`.
        OutputError: the output cannot be sent; the local copy is complete.
    """
    changes: dict[str, Any] = {}
    outputs: list[str] = []
    resumed: list[str] = []
    for field in dataclasses.fields(options):
        value, kind = getattr(options, field.name), field.metadata["path"]
        names = value if isinstance(value, tuple) else (value,)
        on_cluster = field.metadata["on_cluster"] and getattr(options, "spark_master", "")
        if not kind or on_cluster or not any(is_url(str(name)) for name in names):
            continue
        local: list[str] = []
        for name in names:
            if not is_url(name) or kind == "reads":
                local.append(fetch(name))
            elif kind == "files":
                local += map(fetch, list_files(name))
            else:
                keeps = kind == "resumes" or getattr(options, "versioned", False)
                replaces = kind == "renews" or getattr(options, "overwrite", True)
                local.append(str(_begin_output(name, keeps, replaces)))
                (resumed if keeps else outputs).append(name)
        if not isinstance(value, tuple) and len(local) > 1:
            raise InputError(f"`{field.name}`={value}: matches {len(local)} files; expected one")
        changes[field.name] = tuple(local) if isinstance(value, tuple) else local[0]
    try:
        yield options.replace(**changes) if changes else options
    finally:
        for url in resumed:
            _send(url)
    for url in outputs:
        _send(url)


def _begin_output(url: str, keeps: bool, replaces: bool) -> pathlib.Path:
    """Makes room for the copy of an output, or fetches what it continues; returns its path."""
    with _open_store(url, InputError) as (fs, root):
        exists = fs.exists(root)
    if keeps and exists:
        return pathlib.Path(fetch(url))
    if exists and not replaces:
        raise FileExistsError(f"{url} already exists; give another, or `overwrite`")
    copy = _local_path(url)
    remove(copy)
    copy.parent.mkdir(parents=True, exist_ok=True)
    return copy


def _send(url: str) -> None:
    """Replaces what a store has by the local copy, if there is one."""
    copy = _local_path(url)
    if not copy.exists() or not read_worker().is_chief:
        return
    try:
        with _open_store(url, OutputError) as (fs, root):
            if fs.exists(root):
                fs.rm(root, recursive=True)
            files = [copy] if copy.is_file() else [p for p in copy.rglob("*") if p.is_file()]
            # Files that mark others as complete go last.
            for path in sorted(files, key=lambda path: (path.suffix == ".json", path)):
                if MARK not in path.name:
                    place = path.relative_to(copy).as_posix()
                    target = root if path == copy else f"{root}/{place}"
                    fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                    fs.put_file(str(path), target)
    except OutputError as error:
        raise OutputError(f"{error}; the complete output is in {copy}") from error
    logging.info("sent %s", url)


def _local_path(url: str) -> pathlib.Path:
    """The path of the copy of a file or folder.

    Raises:
        InputError: the URL has an empty part, "." or "..".
    """
    scheme, _, rest = url.rstrip("/").partition("://")
    parts = rest.lstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise InputError(f"{url}: expected a path without empty parts, . and ..")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = os.environ.get(CACHE_VARIABLE) or os.path.join(home, "dcse_tf")
    return pathlib.Path(cache).absolute().joinpath(scheme, *parts)


@contextlib.contextmanager
def _open_store(url: str, kind: type[InputError] | type[OutputError]) -> Iterator[tuple[Any, str]]:
    """Yields the file system of a URL, fsspec's AbstractFileSystem, and the path in it; turns
    whatever error the store's package raises inside the block into a one-line `kind`.
    """
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url)
        fs.invalidate_cache()
        yield fs, path.rstrip("/")
    except (InputError, OutputError):
        raise
    except Exception as error:
        what = "read" if kind is InputError else "written"
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise kind(f"{url}: cannot be {what}: {reason[0]}") from error
