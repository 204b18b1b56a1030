"""Batches the items of many requests for one thread that computes them. No TensorFlow here."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# A function from a kind and items of that kind to a result for each item.
Compute = Callable[[str, list[Any]], Sequence[Any]]


class QueueFull(Exception):
    """The queue has no room for a request's items."""


class _Item(NamedTuple):
    """An item that waits to be computed; items are computed in ascending order of `turn`."""

    turn: int
    kind: str
    content: Any
    tokens: int
    due: float  # by the event loop's clock, in seconds
    batch: asyncio.Future[Any]  # of the results of its batch, and its place in it


class Batcher:
    """Collects items until there are enough for a batch, or the first has waited long enough.

    Requests take turns, item by item, so that a large request does not hold up small ones. All
    items of a batch are of one kind.

    Args:
        compute: computes a batch; called in a separate thread.
        batch_tokens: most tokens in a batch, unless one item has more.
        max_wait: how long items wait for a full batch, in seconds.
        max_queue: the largest number of waiting items, unless one request alone has more.
    """

    def __init__(self, compute: Compute, batch_tokens: int, max_wait: float, max_queue: int):
        self._compute = compute
        self._batch_tokens = batch_tokens
        self._max_wait = max_wait
        self._max_queue = max_queue
        self._waiting: list[_Item] = []
        self._turn = 0  # that of the items which are computed now
        self._arrival = asyncio.Event()

    async def submit(self, kind: str, contents: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
        """Queues items of a kind, at least one, with an estimate of the tokens of each, and waits
        for their results, in their order, or the error of `compute`. Raises QueueFull if too many
        items are waiting already.
        """
        # A request that finds nobody waiting is taken whatever its size, or it would never be.
        if self._waiting and len(self._waiting) + len(contents) > self._max_queue:
            raise QueueFull
        loop = asyncio.get_running_loop()
        due = loop.time() + self._max_wait
        # The first item is on a par with those computed now, and each other one a turn later: a
        # request that comes now neither waits for all of a large one nor keeps it waiting.
        items = [
            _Item(self._turn + place, kind, content, cost, due, loop.create_future())
            for place, (content, cost) in enumerate(zip(contents, tokens, strict=True))
        ]
        self._waiting += items
        self._arrival.set()
        found = await asyncio.gather(*(item.batch for item in items))
        return [results.result()[place] for results, place in found]

    async def run(self) -> None:
        """Computes batches until it is cancelled."""
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(1, "model") as thread:
            while True:
                await self._wait_for_batch()
                batch = self._take()
                kind, contents = batch[0].kind, [item.content for item in batch]
                results = loop.run_in_executor(thread, self._compute, kind, contents)
                await asyncio.wait([results])
                for place, item in enumerate(batch):
                    if not item.batch.done():  # its request may have been cancelled
                        item.batch.set_result((results, place))

    async def _wait_for_batch(self) -> None:
        while not self._waiting:
            self._arrival.clear()
            await self._arrival.wait()
        due = min(item.due for item in self._waiting)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                while sum(item.tokens for item in self._waiting) < self._batch_tokens:
                    self._arrival.clear()
                    await self._arrival.wait()

    def _take(self) -> list[_Item]:
        """Takes the items of the next batch: by turn, of one kind, as many as fit."""
        batch: list[_Item] = []
        rest: list[_Item] = []
        tokens = 0
        for item in sorted(self._waiting, key=lambda item: item.turn):  # in a turn by arrival
            other = bool(batch) and item.kind != batch[0].kind
            # Those that do not fit count too: none of the later ones may go before them.
            tokens += 0 if other else item.tokens
            fits = not batch or (not other and tokens <= self._batch_tokens)
            (batch if fits else rest).append(item)
        self._turn, self._waiting = batch[-1].turn, rest
        return batch
