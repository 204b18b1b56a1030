"""Work shared among processes, the results in order. No TensorFlow here."""

import collections
import concurrent.futures
import concurrent.futures.process
import functools
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_IN_FLIGHT = 4  # items a worker that are waiting, worked at, or done and not yet asked for

_pickled: bytes  # in a worker: what makes its function


def available_processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def map_in_order(
    make: Callable[..., Callable[[T], R]],
    arguments: tuple,
    items: Iterable[T],
    workers: int,
    few: int,
) -> Generator[R]:
    """Yields `make(*arguments)(item)` of every item, in the order of the items.

    Args:
        make: makes the function, once in every process that works; a module must have it by its
            name, for the processes are begun anew ("spawn") and not copied.
        arguments: of `make`.
        items: what to work at; a bounded number of them is held.
        workers: processes beside this one; 1 for none.
        few: so many items or fewer are not worth beginning processes for.

    Raises:
        ChildProcessError: a worker was killed.
        Exception: whatever an item's work raised, in a worker or here.
    """
    remaining = iter(items)
    first = list(itertools.islice(remaining, few + 1)) if workers > 1 else []
    items = itertools.chain(first, remaining)
    if len(first) <= few:
        yield from map(make(*arguments), items)
        return
    executor = concurrent.futures.ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        _begin,
        (pickle.dumps((make, arguments)),),
    )
    try:
        pending: collections.deque[concurrent.futures.Future] = collections.deque()
        for item in items:
            pending.append(executor.submit(_work, item))
            if len(pending) >= _IN_FLIGHT * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process ended before its work was done: it was killed, perhaps for want of "
            f"memory; fewer --workers (now {workers}) need less"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _begin(work: bytes) -> None:
    """Readies a worker; the work itself, and what it imports, waits for the first item.

    An error raised here would be lost, and Ctrl-C goes to workers too: the parent ends the work.
    """
    global _pickled
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _pickled = work


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(item: Any) -> Any:
    return _made()(item)


@functools.cache
def _made() -> Callable[[Any], Any]:
    make, arguments = pickle.loads(_pickled)
    return make(*arguments)
