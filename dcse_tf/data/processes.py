"""Work shared among processes, the results in order. No TensorFlow here.

The standard library's pools would do, but for one thing: a worker that is killed while it sends a
result leaves them waiting for the rest of it. Here every worker has a pipe of its own, whose other
end nobody else holds, so that its end, and the parent's, is noticed in the middle of a message.
"""

import collections
import contextlib
import gc
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_QUEUED = 2  # items that a worker has: one to work at, one to go on with
_HELD = 4  # items a worker that are waiting, worked at, or done before their turn


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
        make: makes the function, once in every process that works; it is found by its name in its
            module, for the processes are begun anew ("spawn") and not copied.
        arguments: of `make`.
        items: what to work at; a bounded number of them is held.
        workers: processes beside this one; 1 for none.
        few: so many items or fewer are not worth beginning processes for.

    Raises:
        ChildProcessError: a worker was killed.
        Exception: whatever an item's work raised, in a worker or here.
    """
    later = iter(items)
    first = collections.deque(itertools.islice(later, few + 1) if workers > 1 else ())
    many = len(first) > few
    remaining = itertools.chain((first.popleft() for _ in range(len(first))), later)
    if not many:
        yield from map(make(*arguments), remaining)
        return
    pool = [_Worker(pickle.dumps((make, arguments))) for _ in range(workers)]
    try:
        yield from _share(pool, remaining)
    finally:
        for worker in pool:
            worker.process.kill()  # in the midst of an import it would hear nothing else
        for worker in pool:
            worker.process.join()
            worker.connection.close()


class _Worker:
    """A process, the end of its pipe, and the numbers of the items it has, the oldest first."""

    def __init__(self, work: bytes):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self.process.start()
        theirs.close()
        self.numbers: collections.deque[int] = collections.deque()

    def give(self, number: int, item: Any) -> None:
        content = pickle.dumps(item)
        with _notice_its_end():
            self.connection.send_bytes(content)
        self.numbers.append(number)

    def take(self) -> tuple[int, tuple[bool, Any]]:
        """The number of the item that was done, whether that went well, the result or the error."""
        with _notice_its_end():
            content = self.connection.recv_bytes()
        return self.numbers.popleft(), pickle.loads(content)


@contextlib.contextmanager
def _notice_its_end() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise ChildProcessError(
            "a worker process ended before its work was done: it was killed, perhaps for want of "
            "memory; fewer --workers need less"
        ) from error


_NO_MORE = object()


def _share(pool: list[_Worker], items: Iterator) -> Iterator:
    """Gives every item to the worker that has the fewest; yields the results in order."""
    results: dict[int, tuple[bool, Any]] = {}
    given, item = 0, None
    for turn in itertools.count():
        while turn not in results:
            worker = min(pool, key=lambda worker: len(worker.numbers))
            room = len(worker.numbers) < _QUEUED and given - turn < _HELD * len(pool)
            if item is not _NO_MORE and room:
                item = next(items, _NO_MORE)
                if item is not _NO_MORE:
                    worker.give(given, item)
                    given += 1
            elif turn < given:
                results.update(_take_what_is_done(pool))
            else:
                return
        succeeded, value = results.pop(turn)
        if not succeeded:
            raise value
        yield value


def _take_what_is_done(pool: list[_Worker]) -> Iterator[tuple[int, tuple[bool, Any]]]:
    """Waits for the first."""
    busy: dict[object, _Worker] = {worker.connection: worker for worker in pool if worker.numbers}
    ready = multiprocessing.connection.wait([worker.connection for worker in busy.values()])
    return (busy[connection].take() for connection in ready)


def _serve(connection: multiprocessing.connection.Connection, work: bytes) -> None:
    """A worker's life: it works at what comes until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent ends the work
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take all of a GPU's memory
    items: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, items), daemon=True).start()
    function = None
    while True:
        item = items.get()
        try:
            if function is None:
                make, arguments = pickle.loads(work)
                function = make(*arguments)
                gc.freeze()  # what the imports made stays; collections need not look through it
            answer = pickle.dumps((True, function(pickle.loads(item))))
        except Exception as error:
            error.add_note(f"In a worker process:\n{traceback.format_exc()}")
            answer = pickle.dumps((False, error))
        connection.send_bytes(answer)


def _listen(connection: multiprocessing.connection.Connection, items: queue.SimpleQueue) -> None:
    """Takes items at any time, so that the parent never waits to give one to a worker that waits
    to give a result; and ends the process with the parent, whatever it is at."""
    try:
        while True:
            items.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)
