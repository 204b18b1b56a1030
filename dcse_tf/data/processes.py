"""Parallel map over processes, with results in order. This module does not use TensorFlow."""

import collections
import concurrent.futures
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

# Items per process that are in progress, or done and waiting for an earlier one.
_UNDER_WAY = 3


def map_in_order(
    make: Callable[..., Callable[[T], R]],
    arguments: tuple,
    items: Iterable[T],
    processes: int,
    few: int = 0,
) -> Generator[R]:
    """Yields `make(*arguments)(item)` for every item, in the order of the items.

        squares = map_in_order(Power, (2,), range(100), processes=4)

    Args:
        make: makes the function, once in every process. It must be importable by name, because
            processes are started by "spawn": a fork of a process that runs TensorFlow may hang.
        arguments: the arguments of `make`.
        items: the items to process; only a bounded number of them is read ahead.
        processes: number of worker processes; with one, this process works alone.
        few: as many items are processed here first, before workers start: those that import
            TensorFlow take seconds to do so.

    Raises:
        ChildProcessError: a worker was killed.
        Exception: whatever `make`, the items or the function raised; an error in an item is raised
            when its result is due.
    """
    rest = iter(items)
    if few or processes == 1:
        here = itertools.islice(rest, few if processes > 1 else None)
        yield from map(make(*arguments), here)
    first = list(itertools.islice(rest, 1))
    if not first:
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        processes,
        multiprocessing.get_context("spawn"),
        _begin,
        # Pickled, because unpickling imports what they need, and `_begin` must come before that.
        (pickle.dumps((make, arguments)),),
    )
    waiting: collections.deque[concurrent.futures.Future[R]] = collections.deque()
    try:
        for item in itertools.chain(first, rest):
            waiting.append(pool.submit(_work, item))
            if len(waiting) > _UNDER_WAY * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process ended before its work was done, perhaps killed for lack of memory; "
            "fewer `workers` need less"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_pickled: bytes  # in a worker process: what `_begin` got


def _begin(pickled: bytes) -> None:
    """Initialises a worker process."""
    global _pickled
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take all of a GPU's memory
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _pickled = pickled


def _end_with_parent() -> None:
    """Ends this process when its parent is killed; otherwise it would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


@functools.cache
def _make_function() -> Callable[[Any], Any]:
    make, arguments = pickle.loads(_pickled)
    return make(*arguments)


def _work(item: Any) -> Any:
    return _make_function()(item)
