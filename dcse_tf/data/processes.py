"""Work shared among processes by `concurrent.futures`, the results in order. No TensorFlow here."""

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

# Items for each process that are under way, or done and waiting for an earlier one.
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

    Workers that import TensorFlow need seconds to start. This process works meanwhile, and later
    whenever it would otherwise wait, so a short input is not held up by them.

    Args:
        make: makes the function, once in every process that works. Workers are started afresh
            ("spawn"), since a copy of a process that runs TensorFlow may hang; so `make` must be
            importable by name.
        arguments: of `make`.
        items: what to work at; only a bounded number of them is read ahead.
        processes: how many processes work, this one included.
        few: workers are started only if there are more items than this.
        folder: where the workers may leave results until they are asked for.
        works_too: whether this process works while there are workers.

    Raises:
        ChildProcessError: a worker was killed.
        Exception: whatever `make`, the items or the work raised; that of an item in its turn.
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
        function: what this process does with an item itself; None to leave all to the workers.
        items: the items.
        submit: starts a call in a worker; the future's result is read by `_read_result`.
        processes: how many there are, this one included.
    """
    starting = {submit(_start, None) for _ in range(processes - 1)}
    under_way: collections.deque[tuple[T, Future]] = collections.deque()
    while True:
        started = {future for future in starting if future.done()}
        starting -= started
        for future in started:
            future.result()  # raises what went wrong there

        # Until the first worker is ready all of the work is done here.
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
    """Takes back the first item that no worker has, and works at it; False if there is none."""
    for place, (item, future) in enumerate(under_way):
        if future.cancel():
            own: Future = Future()
            try:
                own.set_result(function(item))
            except Exception as error:  # raised in its turn
                own.set_exception(error)
            under_way[place] = item, own
            return True
    return False


@contextlib.contextmanager
def _start_workers(
    count: int, work: bytes, folder: pathlib.Path
) -> Iterator[Callable[[Callable, Any], Future]]:
    """Yields what submits a call to a worker; no worker outlives the block, or this process.

    Args:
        count: how many workers.
        work: the pickled `make` and its arguments. Unpickling imports what they need, which must
            not happen before `_begin` has run.
        folder: where results pass through.
    """
    context = multiprocessing.get_context("spawn")
    # Nothing is ever sent. Only this process holds this end, so the workers see it closed when
    # this process ends, however it does.
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


# Of a worker process: what `_begin` was given.
_folder: pathlib.Path
_pickled_work: bytes


def _begin(
    lifeline: multiprocessing.connection.Connection, folder: pathlib.Path, work: bytes
) -> None:
    """The first that a worker does."""
    global _folder, _pickled_work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends the work
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take all of a GPU's memory
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    _folder, _pickled_work = folder, work


def _end_with_parent(lifeline: multiprocessing.connection.Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(0)  # whatever the worker is at


@functools.cache
def _make_function() -> Callable[[Any], Any]:
    make, arguments = pickle.loads(_pickled_work)
    function = make(*arguments)
    gc.freeze()  # what the imports made stays; collections need not look through it
    return function


def _start(_: None) -> None:
    _make_function()


class _ResultFile(str):
    """The path of a pickled result."""


def _work(item: Any) -> _ResultFile:
    """Works at an item and leaves the result in a file.

    A worker that is killed while it sends a large result through the pool's one pipe would leave
    the parent waiting for the rest, and the other workers for their turn. A path is sent at once.
    """
    result = _make_function()(item)
    with tempfile.NamedTemporaryFile(dir=_folder, delete=False) as file:
        pickle.dump(result, file, pickle.HIGHEST_PROTOCOL)
    return _ResultFile(file.name)


def _read_result(path: str) -> Any:
    content = pathlib.Path(path).read_bytes()
    pathlib.Path(path).unlink()
    return pickle.loads(content)
