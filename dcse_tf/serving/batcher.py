"""Batches the items of many requests for one thread that computes them. No TensorFlow here."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

# A function from a kind and items of that kind to a result for each item.
Compute = Callable[[str, list[Any]], Sequence[Any]]


class QueueFull(Exception):
    """The queue has no room for a request's items."""


@dataclasses.dataclass(eq=False)
class _Request:
    """A client's request, while it waits for results.

    Attributes:
        kind: the kind of its items.
        left: (place, item, tokens) of the items whose computation has not begun.
        results: the results so far, by place.
        missing: how many results are missing.
        done: receives the results when all are there.
        arrived: time of arrival by the event loop's clock, in seconds.
    """

    kind: str
    left: deque[tuple[int, Any, int]]
    results: list[Any]
    missing: int
    done: asyncio.Future[list[Any]]
    arrived: float


class Batcher:
    """Collects items until there are enough for a batch, or the first has waited long enough.

    A batch takes items from all waiting requests in turn, so that a large request does not hold up
    small ones. All items of a batch are of one kind.

    Args:
        compute: computes a batch; called in a separate thread.
        batch_tokens: most tokens in a batch, unless one item has more.
        max_wait: how long items wait for a full batch, in seconds.
        max_queue: the largest number of waiting items, unless one request alone has more.
        watch: called with the number of waiting items whenever it changes.
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
        """Queues items and waits for their results; if cancelled, drops those still waiting.

        Args:
            kind: the kind of the items, for `compute`.
            items: what to compute, at least one item.
            tokens: estimated number of tokens of each item.

        Returns:
            The results, in the order of the items.

        Raises:
            QueueFull: too many items are waiting already.
            Exception: `compute` raised it.
        """
        # One that finds nobody waiting is taken whatever its size, or it would never be.
        if self._items and self._items + len(items) > self._max_queue:
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
                if not self._requests:  # all were dropped in the meantime
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
        """Takes the items of the next batch; requests with items in it go to the queue's end."""
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
