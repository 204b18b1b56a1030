"""Files in object stores and HDFS, through the packages of fsspec.

Jobs see only local files, because stores lack operations such as renaming or locking a folder:
inputs are fetched before a job, outputs sent after it. The copy of s3://bucket/run lies in the
user's cache under dcse_tf/s3/bucket/run, so that a message about it shows which file is meant.
"""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from absl import logging

from dcse_tf.errors import InputError, OutputError
from dcse_tf.files import marked, remove
from dcse_tf.input_files import resolve_inputs
from dcse_tf.options import Options

T = TypeVar("T", bound=Options)


def is_url(name: Any) -> bool:
    """Whether a name is the URL of a store, such as s3://bucket/run."""
    return isinstance(name, str) and re.match("[a-z][a-z0-9+.-]*://.", name) is not None


def list_files(pattern: str) -> list[str]:
    """The sorted URLs of the files that match a URL, which may contain *, ? and [...]."""
    with _open_store(pattern, InputError) as (fs, path):
        found = sorted(name for name in fs.glob(path) if fs.isfile(name))
        if not found:
            raise InputError(f"{pattern}: no such file")
    # fsspec's paths include the bucket, but not the host.
    return [f"{pattern.removesuffix(path)}{name}" for name in found]


def fetch(name: str) -> str:
    """The path of a copy of a URL's file or folder, fetched if it has changed; else the name."""
    if not is_url(name):
        return name
    copy = _local_path(name)
    record = marked(copy, "versions")
    with _open_store(name, InputError) as (fs, root):
        versions = "".join(f"{fs.ukey(file)} {file}\n" for file in fs.find(root))
        if not versions:
            raise InputError(f"{name}: no such file or folder")
        if not record.is_file() or record.read_text() != versions:
            logging.info("fetching %s", name)
            remove(record)
            remove(copy)
            copy.parent.mkdir(parents=True, exist_ok=True)
            fs.get(root, str(copy), recursive=True)
            record.write_text(versions)
    return str(copy)


@contextlib.contextmanager
def stage(options: T) -> Iterator[T]:
    """Yields a job's options with URLs replaced by local paths; all files that they name exist.

    Inputs are fetched. Outputs are sent when the job has succeeded.

    Raises:
        InputError: a file does not exist, or a store cannot be used.
        FileExistsError: the output exists, without `overwrite`.
        OutputError: the output cannot be sent; the local copy is complete.
    """
    for name, files in options.list_files():
        resolve_inputs([file for file in files if not is_url(file)], name)
    changes: dict[str, Any] = {}
    outputs: dict[str, pathlib.Path] = {}
    for name, field in options.fields().items():
        value, kind = getattr(options, name), field.metadata["path"]
        urls = [each for each in (value if isinstance(value, tuple) else [value]) if is_url(each)]
        on_cluster = field.metadata["on_cluster"] and getattr(options, "spark_master", "")
        if not kind or on_cluster or not urls:
            continue
        if kind == "files" and isinstance(value, tuple):
            found = [list_files(each) if each in urls else [each] for each in value]
            changes[name] = tuple(fetch(each) for files in found for each in files)
        elif kind in ("reads", "files"):
            changes[name] = fetch(value)
        elif kind == "resumes":
            options.refuse(name, "expected a folder on a disk, because later runs go on from it")
        else:
            with _open_store(value, InputError) as (fs, root):
                if kind == "writes" and not getattr(options, "overwrite", True) and fs.exists(root):
                    raise FileExistsError(f"{value} already exists; give another, or `overwrite`")
            changes[name], outputs[value] = str(_local_path(value)), _local_path(value)
            remove(outputs[value])
            outputs[value].parent.mkdir(parents=True, exist_ok=True)
    yield options.replace(**changes) if changes else options
    for url, copy in outputs.items():
        with _open_store(url, OutputError, f"; the complete output is in {copy}") as (fs, root):
            if fs.exists(root):
                fs.rm(root, recursive=True)
            fs.makedirs(root.rpartition("/")[0], exist_ok=True)
            fs.put(str(copy), root, recursive=True)
        logging.info("sent %s", url)


def _local_path(url: str) -> pathlib.Path:
    """The path of the copy of a file or folder."""
    scheme, _, rest = url.rstrip("/").partition("://")
    parts = rest.lstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise InputError(f"{url}: expected a path without empty parts, . and ..")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(home).absolute().joinpath("dcse_tf", scheme, *parts)


@contextlib.contextmanager
def _open_store(url: str, kind: type[Exception], advice: str = "") -> Iterator[tuple[Any, str]]:
    """Yields the file system of a URL and the path in it; whatever its package raises is `kind`."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url)
        fs.invalidate_cache()
        yield fs, path.rstrip("/")
    except (InputError, FileExistsError):
        raise
    except Exception as error:
        what = "read" if kind is InputError else "written"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise kind(f"{url}: cannot be {what}: {reason}{advice}") from error
