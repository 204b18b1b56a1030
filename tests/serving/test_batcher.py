"""What is computed together and in which order; by a loop without a model."""

import asyncio
import threading

import pytest

from dcse_tf.serving.app import Batcher, QueueFull


class Model:
    """Doubles numbers, a batch whenever it is let."""

    def __init__(self):
        self.batches = []
        self.let = threading.Semaphore(0)
        self.begun = threading.Event()

    def compute(self, kind, items):
        self.begun.set()
        self.let.acquire(timeout=10)
        self.batches.append((kind, items))
        if None in items:
            raise ZeroDivisionError
        return [2 * item for item in items]


def scene(**settings):
    """Makes a test of what a function does with a batcher of 3 tokens a batch and room for 6."""
    settings = {"batch_tokens": 3, "max_wait": 0.0, "max_queue": 6, **settings}

    async def run(play):
        model = Model()
        batcher = Batcher(model.compute, **settings)
        task = asyncio.create_task(batcher.run())
        try:
            await asyncio.wait_for(play(batcher, model), 10)
        finally:
            task.cancel()
            for _ in range(20):
                model.let.release()

    def make_test(play):
        return lambda: asyncio.run(run(play))

    return make_test


def ask(batcher, *items, kind="double", tokens=1):
    return asyncio.ensure_future(batcher.submit(kind, items, [tokens] * len(items)))


async def busy(batcher, model):
    """Has the model at work on an item of its own, so that what follows is collected."""
    first = ask(batcher, 0)
    while not model.begun.is_set():
        await asyncio.sleep(0.001)
    return first


@scene(max_queue=8)
async def test_a_large_request_and_small_ones_share_batches(batcher, model):
    first = await busy(batcher, model)
    large, small, last = ask(batcher, 1, 2, 3, 4), ask(batcher, 5), ask(batcher, 6)
    given_up = ask(batcher, 7, 8)
    await asyncio.sleep(0)
    given_up.cancel()
    model.let.release(3)
    assert await asyncio.gather(first, large, small, last) == [[0], [2, 4, 6, 8], [10], [12]]
    assert [items for _, items in model.batches] == [[0], [1, 5, 6], [2, 3, 4]]


@scene()
async def test_a_batch_has_one_kind_and_no_more_tokens_than_it_may(batcher, model):
    first = await busy(batcher, model)
    long = ask(batcher, 1, 5, tokens=9)
    other = ask(batcher, 2, kind="more")
    short = ask(batcher, 3, 4, tokens=2)
    await asyncio.sleep(0)
    model.let.release(9)
    await asyncio.gather(first, long, other, short)
    # Whoever had a share waits until the others had theirs.
    kinds = {2: "more"}
    assert model.batches == [(kinds.get(i, "double"), [i]) for i in (0, 1, 2, 3, 5, 4)]


@scene(max_wait=1.0)
async def test_a_lone_request_waits_for_others_and_a_full_batch_does_not(batcher, model):
    loop = asyncio.get_running_loop()
    model.let.release(9)
    started = loop.time()
    lone = ask(batcher, 1)
    await asyncio.sleep(0.05)
    await asyncio.gather(lone, ask(batcher, 2))
    assert loop.time() - started >= 1.0
    started = loop.time()
    await ask(batcher, 3, 4, 5)
    assert loop.time() - started < 1.0
    assert [items for _, items in model.batches] == [[1, 2], [3, 4, 5]]


@scene()
async def test_what_does_not_fit_into_the_queue_is_refused_and_fits_when_there_is_room(
    batcher, model
):
    first = await busy(batcher, model)
    large, small = ask(batcher, *range(1, 10)), ask(batcher, 10, 11)
    await asyncio.sleep(0)  # three of the large one's items wait, and two
    with pytest.raises(QueueFull):
        await ask(batcher, 12, 13)
    fits = ask(batcher, 12)
    await asyncio.sleep(0)
    model.let.release(9)
    found = await asyncio.gather(first, large, small, fits)
    assert found == [[0], [*range(2, 20, 2)], [20, 22], [24]]
    assert await ask(batcher, 1, 2, 3, 4, 5, 6) == [2, 4, 6, 8, 10, 12]


@scene()
async def test_a_batch_that_fails_is_told_and_the_next_one_computed(batcher, model):
    model.let.release(9)
    with pytest.raises(ZeroDivisionError):
        await ask(batcher, None, 1, 2, 3, 4)
    assert await ask(batcher, 7) == [14]
