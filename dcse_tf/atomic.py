"""Files and folders that appear complete or not at all."""

import contextlib
import pathlib
import shutil
from collections.abc import Iterator


@contextlib.contextmanager
def atomic_directory(path: pathlib.Path, overwrite: bool = False) -> Iterator[pathlib.Path]:
    """Yields a folder to write into; it takes the name `path` when the block ends well.

    Args:
        path: the folder to make; its parents are made too.
        overwrite: whether an existing folder is replaced; it stays until the new one is complete.

    Raises:
        FileExistsError: `path` exists and may not be replaced.
    """
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already; give another folder, or --overwrite")
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    previous = path.with_name(path.name + ".previous")
    shutil.rmtree(previous, ignore_errors=True)
    if path.exists():
        path.rename(previous)
    partial.rename(path)
    shutil.rmtree(previous, ignore_errors=True)


@contextlib.contextmanager
def atomic_file(path: pathlib.Path, overwrite: bool = True) -> Iterator[pathlib.Path]:
    """Yields a path to write to; the file takes the name `path` when the block ends well.

    Args:
        path: the file to make; its folders are made too.
        overwrite: whether an existing file is replaced.

    Raises:
        FileExistsError: `path` exists and may not be replaced.
    """
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already; give another file, or --overwrite")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # of a run that was killed
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
