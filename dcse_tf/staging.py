"""Lets jobs use files in stores: fetches inputs beforehand and sends outputs afterwards.

Jobs themselves see only local files. Operations that stores lack, such as renaming or locking a
folder, happen on the local copies.
"""

import contextlib
import dataclasses
import glob
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from absl import logging

from dcse_tf.errors import InputError, OutputError
from dcse_tf.files import MARK
from dcse_tf.options import Options
from dcse_tf.stores import (
    Copy,
    fetch,
    find_folders,
    find_parts,
    is_url,
    list_files,
    local_path,
    remove_folder,
)
from dcse_tf.worker import read_worker

T = TypeVar("T", bound=Options)
EVERY = 60.0  # seconds between two uploads while a job runs
# What `embed --shard` adds to the stem of its output.
_PARTS = "-?????-of-?????.*"


@contextlib.contextmanager
def stage(options: T, every: float = EVERY) -> Iterator[T]:
    """Yields a job's options with URLs replaced by local paths.

    Inputs are fetched; later, only files that have changed are fetched again. Outputs are sent when
    the job has succeeded. Outputs that a later run resumes, such as a run directory, are also sent
    while the job runs and when it is stopped. Of several workers, only the first one sends.

    Args:
        options: the job's options.
        every: seconds between two checks for changes to send while the job runs.

    Raises:
        InputError: a file does not exist, or a store cannot be used.
        FileExistsError: the output exists, without `overwrite`.
        OutputError: the output cannot be sent; the local copy is complete.
    """
    outputs: list[Callable[[], None]] = []
    changes = {}
    with contextlib.ExitStack() as stack:
        for field in dataclasses.fields(options):
            value, rules = getattr(options, field.name), field.metadata
            names = value if isinstance(value, tuple) else (value,)
            if not any(isinstance(name, str) and is_url(name) for name in names):
                continue
            if rules["on_cluster"] and getattr(options, "spark_master", ""):
                continue  # the cluster's tasks access it themselves
            if rules["path"] == "resumes" or (
                rules["path"] in ("writes", "renews") and getattr(options, "versioned", False)
            ):
                if isinstance(value, tuple):
                    names = tuple(each for name in names for each in find_folders(name))
                paths = [
                    stack.enter_context(_keep(name, every)) if is_url(name) else name
                    for name in names
                ]
            elif rules["path"] in ("writes", "renews"):
                paths = [str(local_path(value))]
                outputs.append(_begin_output(value, options, rules["path"] == "renews"))
            elif rules["path"]:
                of_option = (field.name, rules["path"] == "files", isinstance(value, tuple))
                paths = [path for name in names for path in _fetch(name, *of_option)]
            else:
                continue  # a text that only looks like a URL
            changes[field.name] = tuple(paths) if isinstance(value, tuple) else paths[0]
        yield options.replace(**changes) if changes else options
        for send in outputs:
            send()


def _fetch(name: str, option: str, files: bool, several: bool) -> list[str]:
    """Fetches what a value of an option names; `several`: whether it may match several files."""
    found = list_files(name) if files and is_url(name) else [name]
    if len(found) > 1 and not several:
        raise InputError(f"`{option}`={name}: matches {len(found)} files; expected one")
    return [fetch(each) for each in found]


def _begin_output(url: str, options: Options, renews: bool) -> Callable[[], None]:
    """Prepares an output; returns a function that sends it.

    Args:
        url: the output.
        options: the job's options.
        renews: whether it is replaced without `overwrite`.

    Raises:
        FileExistsError: the output exists, here or in the store, and may not be replaced.
    """
    copy = Copy(url)
    replaced = copy.versions()
    spark_master: str = getattr(options, "spark_master", "")
    if replaced and spark_master:
        if "manifest.json" in replaced:
            raise FileExistsError(f"{url} already exists; remove it, or give another")
        remove_folder(url)  # left by the tasks of a failed job
        replaced = {}
    if not (renews or getattr(options, "overwrite", True)):
        if replaced:
            raise FileExistsError(f"{url} already exists; give another, or `overwrite`")
        if copy.path.exists() and not copy.was_sent():
            raise FileExistsError(
                f"{copy.path} is complete, but could not be sent to {url}: copy it there by other "
                "means and remove it, or `overwrite`"
            )
    copy.clear()
    parts = _fetch_parts(copy)

    def send() -> None:
        for part in _list_parts(copy):
            parts.setdefault(part, Copy(part))
        sent = [each.url for each in parts.values() if _send(each)]
        sent += [copy.url] if _send(copy, replaced) else []
        logging.info("sent %s", ", ".join(sent))

    return send


def _list_parts(output: Copy) -> list[str]:
    """The URLs of the parts that lie beside the local copy of an output."""
    folder = output.url.rpartition("/")[0]
    found = output.path.parent.glob(f"{glob.escape(output.path.stem)}{_PARTS}")
    return [f"{folder}/{path.name}" for path in sorted(found) if MARK not in path.name]


def _fetch_parts(output: Copy) -> dict[str, Copy]:
    """Fetches the parts that lie beside an output in its store, and removes other local parts."""
    parts = {url: Copy(url) for url in find_parts(output.url, _PARTS)}
    for url in _list_parts(output):
        if url not in parts:
            Copy(url).clear()
    for part in parts.values():
        part.fetch()
    return parts


def _send(copy: Copy, replaced: Iterable[str] = ()) -> int:
    try:
        return copy.send(replaced) if copy.path.exists() else 0
    except OutputError as error:
        raise OutputError(f"{error}; the complete output is in {copy.path}") from error


@contextlib.contextmanager
def _keep(url: str, every: float) -> Iterator[str]:
    """Fetches a folder if it exists, yields its copy, and sends changes to it meanwhile."""
    copy = Copy(url)
    if copy.versions():
        copy.fetch()
    else:
        copy.clear()  # removed from the store, so the run starts anew
    if not read_worker().is_chief:
        yield str(copy.path)
        return

    done = threading.Event()
    thread = threading.Thread(target=_send_often, args=(copy, every, done), daemon=True)
    thread.start()
    try:
        yield str(copy.path)
    finally:
        done.set()
        thread.join()
        if _send(copy):
            logging.info("sent %s", url)


def _send_often(copy: Copy, every: float, done: threading.Event) -> None:
    while not done.wait(every):
        try:
            _send(copy)
        except OutputError as error:  # the next attempt, or the last one, may succeed
            logging.warning("%s", error)
