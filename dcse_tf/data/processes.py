"""Parallel map over processes, with results in order. This module does not use TensorFlow."""

import collections
import concurrent.futures
import contextlib
import functools
import gc
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Items per process that are in progress, or done and waiting for an earlier one.
_UNDER_WAY = 4


def map_in_order(
    make: Callable[..., Callable[[T], R]],
    arguments: tuple,
    items: Iterable[T],
    processes: int,
    few: int,
    folder: pathlib.Path,
    works_too: bool = True,
) -> Generator[R]:
    """Yields `make(*arguments)(item)` for every item, in the order of the items.

    Workers that import TensorFlow take seconds to start. This process works in the meantime, and
    later whenever it would otherwise wait, so that workers do not delay a short input.

    Args:
        make: makes the function, once in every process. It must be importable by name, because
            workers are started by "spawn": a fork of a process that runs TensorFlow may hang.
        arguments: the arguments of `make`.
        items: the items to process; only a bounded number of them is read ahead.
        processes: number of processes, including this one.
        few: workers are started only if there are more items than this.
        folder: where workers may store results until they are read.
        works_too: whether this process also works once there are workers.

    Raises:
        ChildProcessError: a worker was killed.
        Exception: whatever `make`, the items or the function raised; an error in an item is raised
            when its result is due.
    """
    function, rest = make(*arguments), iter(items)
    yield from map(function, itertools.islice(rest, few if processes > 1 else None))
    for item in itertools.islice(rest, 1):  # none if that was all
        work = pickle.dumps((make, arguments))
        with _start_workers(processes - 1, work, folder) as submit:
            more = itertools.chain([item], rest)
            yield from _share(function if works_too else None, more, submit, processes)


def _share(
    function: Callable[[T], R] | None,
    items: Iterator[T],
    submit: Callable[[Callable, Any], Future],
    processes: int,
) -> Iterator[R]:
    """Hands items to the workers and yields the results in order.

    Args:
        function: the function, for items that this process works on; None to leave all items to
            the workers.
        items: the items.
        submit: starts a call in a worker; `_read_result` reads the future's result.
        processes: number of processes, including this one.
    """
    starting = {submit(_start, None) for _ in range(processes - 1)}
    under_way: collections.deque[tuple[T, Future]] = collections.deque()
    while True:
        started = {future for future in starting if future.done()}
        starting -= started
        for future in started:
            future.result()  # raises the error if starting failed

        # Until the first worker is ready, this process does all of the work.
        if function and len(starting) == processes - 1:
            if not (own := list(itertools.islice(items, 1))):
                return
            yield function(own[0])
            continue

        room = _UNDER_WAY * processes - len(under_way)
        under_way.extend((item, submit(_work, item)) for item in itertools.islice(items, room))
        if not under_way:
            return
        while not under_way[0][1].done():
            if not function or not _do_one_here(function, under_way):
                concurrent.futures.wait([under_way[0][1]])
        result = under_way.popleft()[1].result()
        yield _read_result(result) if isinstance(result, _ResultFile) else result


def _do_one_here(
    function: Callable[[T], R], under_way: collections.deque[tuple[T, Future]]
) -> bool:
    """Processes the first item that no worker has begun; returns False if there is none."""
    for place, (item, future) in enumerate(under_way):
        if future.cancel():
            own: Future = Future()
            try:
                own.set_result(function(item))
            except Exception as error:  # raised when the item's result is due
                own.set_exception(error)
            under_way[place] = item, own
            return True
    return False


@contextlib.contextmanager
def _start_workers(
    count: int, work: bytes, folder: pathlib.Path
) -> Iterator[Callable[[Callable, Any], Future]]:
    """Yields a function that submits a call to a worker. No worker outlives the block or this
    process.

    Args:
        count: number of workers.
        work: the pickled `make` and its arguments. Unpickling imports what they need, so it must
            not happen before `_begin` has run.
        folder: where workers store their results.
    """
    context = multiprocessing.get_context("spawn")
    # Nothing is ever sent through this pipe. Only this process holds the `lifeline` end, so the
    # workers see it closed when this process ends, however it ends.
    theirs, lifeline = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(dir=folder) as results:
        pool = ProcessPoolExecutor(count, context, _begin, (theirs, pathlib.Path(results), work))
        try:
            yield pool.submit
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process ended before its work was done, perhaps killed for lack of "
                "memory; fewer `workers` need less"
            ) from error
        finally:
            lifeline.close()
            pool.shutdown(wait=True, cancel_futures=True)
            theirs.close()


# Set by `_begin` in a worker process.
_folder: pathlib.Path
_pickled_work: bytes


def _begin(
    lifeline: multiprocessing.connection.Connection, folder: pathlib.Path, work: bytes
) -> None:
    """Initialises a worker process."""
    global _folder, _pickled_work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take all of a GPU's memory
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    _folder, _pickled_work = folder, work


def _end_with_parent(lifeline: multiprocessing.connection.Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(0)  # whatever the worker is doing


@functools.cache
def _make_function() -> Callable[[Any], Any]:
    make, arguments = pickle.loads(_pickled_work)
    function = make(*arguments)
    gc.freeze()  # the imported objects stay alive, so collections need not scan them
    return function


def _start(_: None) -> None:
    _make_function()


class _ResultFile(str):
    """The path of a pickled result."""


def _work(item: Any) -> _ResultFile:
    """Processes an item and stores the result in a file, whose path it returns.

    If a worker were killed while sending a large result through the pool's shared pipe, the parent
    would wait for the rest forever, and the other workers for the pipe. A path is sent at once.
    """
    result = _make_function()(item)
    with tempfile.NamedTemporaryFile(dir=_folder, delete=False) as file:
        pickle.dump(result, file, pickle.HIGHEST_PROTOCOL)
    return _ResultFile(file.name)


def _read_result(path: str) -> Any:
    content = pathlib.Path(path).read_bytes()
    pathlib.Path(path).unlink()
    return pickle.loads(content)
