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

# Items that a worker has: one being answered, one to work at, one to go on with.
_QUEUED = 3
# Items a process that may be held, given out or done before their turn: by all, and before the
# parent takes one for itself.
_HELD, _HERE = 5, 4


def available_processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def map_in_order(
    make: Callable[..., Callable[[T], R]],
    arguments: tuple,
    items: Iterable[T],
    processes: int,
    few: int,
) -> Generator[R]:
    """Yields `make(*arguments)(item)` of every item, in the order of the items.

    This process works too, from the first item on: while the others begin, which may take seconds,
    and whenever they have enough to do. So an input that ends meanwhile is not held up by them.

    Args:
        make: makes the function, once in every process that works; it is found by its name in its
            module, for the processes are begun anew ("spawn") and not copied.
        arguments: of `make`.
        items: what to work at; a bounded number of them is held.
        processes: how many work, this one among them.
        few: after so many items the others are begun.

    Raises:
        ChildProcessError: a process was killed.
        Exception: whatever an item's work raised, in its turn, wherever that was done.
    """
    function, later = make(*arguments), iter(items)
    yield from map(function, itertools.islice(later, few if processes > 1 else None))
    item = next(later, _NO_MORE)
    if item is _NO_MORE:
        return
    pool = [_Worker(pickle.dumps((make, arguments))) for _ in range(processes - 1)]
    try:
        yield from _share(pool, function, itertools.chain([item], later))
    finally:
        for worker in pool:
            worker.process.kill()  # in the midst of an import it would hear nothing else
        for worker in pool:
            worker.process.join()
            worker.connection.close()


_NO_MORE: Any = object()
Result = tuple[bool, Any]  # whether it went well; the value, or the error


class _Worker:
    """A process and the end of its pipe.

    Attributes:
        ready: whether it has made its function.
        numbers: of the items it has, the oldest first.
    """

    def __init__(self, work: bytes):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self.process.start()
        theirs.close()
        self.ready = False
        self.numbers: collections.deque[int] = collections.deque()

    def give(self, number: int, item: Any) -> None:
        content = pickle.dumps(item)
        with _notice_its_end():
            self.connection.send_bytes(content)
        self.numbers.append(number)

    def take(self) -> dict[int, Result]:
        """The number of the item that was done and its result; nothing where it is now ready."""
        with _notice_its_end():
            content = self.connection.recv_bytes()
        result = pickle.loads(content)
        if self.ready:
            return {self.numbers.popleft(): result}
        if not result[0]:
            raise result[1]
        self.ready = True
        return {}


@contextlib.contextmanager
def _notice_its_end() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise ChildProcessError(
            "a worker process ended before its work was done: it was killed, perhaps for want of "
            "memory; fewer `workers` need less"
        ) from error


def _share(pool: list[_Worker], function: Callable, items: Iterator) -> Iterator:
    """Gives every item to the worker that has the fewest, or works at it here; in order."""
    results: dict[int, Result] = {}
    given, item = 0, next(items, _NO_MORE)
    for turn in itertools.count():
        while turn not in results:
            held = (given - turn) / (len(pool) + 1)
            free = [worker for worker in pool if worker.ready and len(worker.numbers) < _QUEUED]
            if item is not _NO_MORE and free and held < _HELD:
                min(free, key=lambda worker: len(worker.numbers)).give(given, item)
            elif item is not _NO_MORE and held < _HERE:
                results[given] = _try(function, item)
            elif item is not _NO_MORE or turn < given:
                results.update(_take_what_is_done(pool, wait=True))
                continue
            else:
                return
            given, item = given + 1, next(items, _NO_MORE)
            results.update(_take_what_is_done(pool, wait=False))
        succeeded, value = results.pop(turn)
        if not succeeded:
            raise value
        yield value


def _take_what_is_done(pool: list[_Worker], wait: bool) -> dict[int, Result]:
    """Takes an answer of each worker that has one; waits for the first."""
    waiting: dict[object, _Worker] = {worker.connection: worker for worker in pool}
    connections = [worker.connection for worker in pool]
    results = {}
    for connection in multiprocessing.connection.wait(connections, None if wait else 0):
        results.update(waiting[connection].take())
    return results


def _serve(connection: multiprocessing.connection.Connection, work: bytes) -> None:
    """A worker's life: it works at what comes until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent ends the work
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take all of a GPU's memory
    items: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, items), daemon=True).start()
    answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_send, args=(connection, answers), daemon=True).start()
    succeeded, function = _try(_make, work)
    answers.put(_answer((succeeded, None if succeeded else function)))
    while True:
        item = items.get()
        answers.put(_answer(_try(lambda item=item: function(pickle.loads(item)))))


def _listen(connection: multiprocessing.connection.Connection, items: queue.SimpleQueue) -> None:
    """Takes items at any time, so that the parent never waits to give one to a worker that waits
    to give a result; and ends the process with the parent, whatever it is at."""
    try:
        while True:
            items.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _send(connection: multiprocessing.connection.Connection, answers: queue.SimpleQueue) -> None:
    """Sends answers while the next item is worked at: the parent may be at one of its own."""
    with contextlib.suppress(OSError):  # the parent has ended, which `_listen` notices
        while True:
            connection.send_bytes(answers.get())


def _make(work: bytes) -> Callable[[Any], Any]:
    make, arguments = pickle.loads(work)
    function = make(*arguments)
    gc.freeze()  # what the imports made stays; collections need not look through it
    return function


def _try(function: Callable[..., Any], *arguments: Any) -> Result:
    try:
        return True, function(*arguments)
    except Exception as error:
        return False, error


def _answer(result: Result) -> bytes:
    succeeded, value = result
    if not succeeded:
        lines = traceback.format_exception(value)
        value.add_note(f"In a worker process:\n{''.join(lines)}")
    return pickle.dumps(result)
