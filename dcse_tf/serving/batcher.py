"""Items of many requests computed together, by one thread. No TensorFlow here."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

# Of a kind and its items to a result for each.
Compute = Callable[[str, list[Any]], Sequence[Any]]


class QueueFull(Exception):
    """More would wait than may."""


@dataclasses.dataclass(eq=False)
class _Request:
    """What one client waits for.

    Attributes:
        kind: of its items.
        left: (place, item, tokens) of those that are not being computed yet.
        results: by place.
        missing: how many of them.
        done: holds the results in the end.
        arrived: when, by the loop's clock.
    """

    kind: str
    left: deque[tuple[int, Any, int]]
    results: list[Any]
    missing: int
    done: asyncio.Future[list[Any]]
    arrived: float


class Batcher:
    """Collects items until there are enough for a batch, or the first has waited long enough.

    Every request that waits has its share of a batch, item by item, so that a large one does not
    hold up small ones. A batch has items of one kind.

    Args:
        compute: computes a batch; called in a thread of its own.
        batch_tokens: most tokens of a batch, unless one item has more.
        max_wait: seconds.
        max_queue: items that may wait.
        watch: called with how many wait, whenever that has changed.
    """

    def __init__(
        self,
        compute: Compute,
        batch_tokens: int,
        max_wait: float,
        max_queue: int,
        watch: Callable[[int], object] = lambda waiting: None,
    ):
        self._compute = compute
        self._batch_tokens = batch_tokens
        self._max_wait = max_wait
        self._max_queue = max_queue
        self._watch = watch
        self._requests: deque[_Request] = deque()
        self._items = 0
        self._tokens = 0
        self._arrival = asyncio.Event()

    async def submit(self, kind: str, items: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
        """Waits for the results of items; if it is cancelled, those that still wait are dropped.

        Args:
            kind: of the items, for `compute`.
            items: what to compute, at least one.
            tokens: about how many each has.

        Raises:
            QueueFull: too many wait already.
            Exception: what computing raised.
        """
        if self._items + len(items) > self._max_queue:
            raise QueueFull
        loop = asyncio.get_running_loop()
        request = _Request(
            kind,
            deque(zip(range(len(items)), items, tokens, strict=True)),
            [None] * len(items),
            len(items),
            loop.create_future(),
            loop.time(),
        )
        self._requests.append(request)
        self._count(len(items), sum(tokens))
        self._arrival.set()
        try:
            return await request.done
        finally:
            if request.left:
                self._requests.remove(request)
                self._count(-len(request.left), -sum(cost for _, _, cost in request.left))

    def _count(self, items: int, tokens: int) -> None:
        self._items += items
        self._tokens += tokens
        self._watch(self._items)

    async def run(self) -> None:
        """Computes batches until it is cancelled."""
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(1, "model") as thread:
            while True:
                await self._wait_for_batch()
                if not self._requests:  # all were dropped meanwhile
                    continue
                kind, batch = self._take()
                items = [item for _, _, item in batch]
                try:
                    results = await loop.run_in_executor(thread, self._compute, kind, items)
                except Exception as error:
                    for request, _, _ in batch:
                        self._fail(request, error)
                else:
                    self._deliver(batch, results)

    async def _wait_for_batch(self) -> None:
        while not self._requests:
            self._arrival.clear()
            await self._arrival.wait()
        due = min(request.arrived for request in self._requests) + self._max_wait
        loop = asyncio.get_running_loop()
        while self._requests and self._tokens < self._batch_tokens and loop.time() < due:
            self._arrival.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrival.wait(), due - loop.time())

    def _take(self) -> tuple[str, list[tuple[_Request, int, Any]]]:
        """The items of the next batch; requests that had a share of it go to the end."""
        kind = self._requests[0].kind
        turns = deque(request for request in self._requests if request.kind == kind)
        batch: list[tuple[_Request, int, Any]] = []
        tokens = 0
        served = set()
        while turns and (not batch or tokens + turns[0].left[0][2] <= self._batch_tokens):
            request = turns.popleft()
            place, item, cost = request.left.popleft()
            batch.append((request, place, item))
            tokens += cost
            served.add(id(request))
            if request.left:
                turns.append(request)
        left = [request for request in self._requests if request.left]
        self._requests = deque(sorted(left, key=lambda request: id(request) in served))
        self._count(-len(batch), -tokens)
        return kind, batch

    def _deliver(self, batch: list[tuple[_Request, int, Any]], results: Sequence[Any]) -> None:
        for (request, place, _), result in zip(batch, results, strict=True):
            request.results[place] = result
            request.missing -= 1
            if not request.missing and not request.done.done():
                request.done.set_result(request.results)

    def _fail(self, request: _Request, error: Exception) -> None:
        if not request.done.done():
            request.done.set_exception(error)
