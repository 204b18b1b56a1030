import functools
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from worker_functions import (
    Adder,
    Broken,
    BrokenElsewhere,
    Killed,
    KilledWhileSending,
    Late,
    Refuser,
)

from dcse_tf.data.processes import map_in_order
from dcse_tf.errors import InputError
from dcse_tf.processors import available_processors

pytestmark = pytest.mark.slow

TESTS = pathlib.Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _leave_no_process():
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture(params=[1, 3])
def shared(request, tmp_path):
    """Maps in one process; and in three, of which the first leaves all to the others."""
    return functools.partial(
        map_in_order, processes=request.param, few=0, folder=tmp_path, works_too=False
    )


@pytest.fixture
def away(tmp_path):
    """Maps in one other process."""
    return functools.partial(map_in_order, processes=2, few=0, folder=tmp_path, works_too=False)


@pytest.mark.parametrize("works_too", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_results_come_in_order_whoever_works(tmp_path, number, works_too):
    """The parent works too, and alone at first, unless it leaves all to the others."""
    count = 400 if works_too else 80  # so many that the workers come to something
    results = list(map_in_order(Adder, (100,), range(count), number, 0, tmp_path, works_too))
    assert [value for value, _ in results] == list(range(100, 100 + count))
    workers = {process for _, process in results}
    assert (os.getpid() in workers) == (number == 1 or works_too)
    assert len(workers - {os.getpid()}) in ([0] if number == 1 else range(1, number))


@pytest.mark.parametrize(("items", "here"), [(0, True), (4, True), (5, False)])
def test_the_first_few_items_are_worked_at_here(tmp_path, items, here):
    results = list(map_in_order(Adder, (0,), iter(range(items)), 2, 4, tmp_path, works_too=False))
    assert [value for value, _ in results] == list(range(items))
    assert all(process == os.getpid() for _, process in results[:4])
    assert all((process == os.getpid()) == here for _, process in results[4:])


@pytest.mark.parametrize(("number", "held"), [(1, 1), (2, 8), (3, 12)])
def test_a_bounded_number_of_items_is_held(tmp_path, number, held):
    """And one more is at hand."""
    drawn, most = 0, 0

    def items():
        nonlocal drawn
        while drawn < 60:
            drawn += 1
            yield drawn

    for count, _ in enumerate(map_in_order(Adder, (0,), items(), number, 3, tmp_path)):
        most = max(most, drawn - count)
    assert (count, drawn) == (59, 60)
    assert most <= held + (number > 1)


def test_an_error_of_the_work_arrives_as_it_is(shared):
    results = shared(Refuser, (), range(20))
    assert [next(results) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(InputError) as raised:
        next(results)
    assert str(raised.value) == "corpus:7: expected a small number"


def test_an_error_before_the_work_arrives_as_it_is(shared):
    with pytest.raises(InputError) as raised:
        list(shared(Broken, (os.getpid(),), range(20)))
    assert str(raised.value) == "vocab.txt: no such file"


def test_an_error_before_the_work_of_another_process_arrives_as_it_is(away):
    with pytest.raises(InputError) as raised:
        list(away(BrokenElsewhere, (os.getpid(),), range(20)))
    assert str(raised.value) == "vocab.txt: no such file"


def test_an_error_of_the_items_arrives_as_it_is(shared):
    def items():
        yield from range(3)
        raise InputError("corpus:4: broken")

    with pytest.raises(InputError, match=r"^corpus:4: broken$"):
        list(shared(Refuser, (), items()))


def test_an_error_waits_for_its_turn(shared):
    """The second item fails at once, the first takes a while."""
    results = shared(Late, (), [0.3, -1.0])
    assert next(results) == 0.3
    with pytest.raises(ValueError, match="negative"):
        next(results)


def test_a_killed_worker_ends_the_work(away):
    with pytest.raises(ChildProcessError, match="a worker process ended before its work was done"):
        list(away(Killed, (), range(20)))


def test_a_worker_killed_while_it_sends_a_result_ends_the_work(away):
    """The result takes longer to send than the worker lives; nobody waits for the rest of it."""
    with pytest.raises(ChildProcessError, match="a worker process ended before its work was done"):
        list(away(KilledWhileSending, (200_000_000,), range(3)))


def test_results_that_nobody_asks_for_end_the_work(tmp_path):
    results = map_in_order(Adder, (0,), range(1000), 3, 0, tmp_path)
    assert next(results)[0] == 0
    assert len(multiprocessing.active_children()) == 2
    results.close()


def test_there_is_a_processor_for_every_worker_by_default():
    assert available_processors() == len(os.sched_getaffinity(0))


SLEEP = """
import pathlib
import signal
import sys
# What a shell starts in the background, and all below it, ignores interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
from dcse_tf.data.processes import map_in_order
from worker_functions import Sleeper
if __name__ == "__main__":
    results = pathlib.Path(sys.argv[3])
    list(map_in_order(Sleeper, tuple(sys.argv[1:3]), range(1000), 3, 0, results, works_too=False))
"""


def _runs(process: int) -> bool:
    try:
        status = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"  # dead, and not yet asked for


def _wait(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path):
    """Starts a process with two workers that sleep so long over every item."""

    def run(seconds):
        script, folder = tmp_path / "script.py", tmp_path / "workers"
        script.write_text(SLEEP)
        folder.mkdir()
        parent = subprocess.Popen(
            [sys.executable, str(script), str(folder), str(seconds), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS / 'helpers'}"},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        _wait(lambda: len(list(folder.iterdir())) == 2)
        workers = [int(path.name) for path in folder.iterdir()]
        assert all(map(_runs, workers))
        return parent, workers

    return run


def test_workers_of_a_killed_parent_end(start):
    parent, workers = start(60)
    parent.kill()
    _wait(lambda: not any(map(_runs, workers)), seconds=20.0)
    parent.communicate()


def test_an_interrupt_from_the_keyboard_ends_all_and_is_told_once(start):
    parent, workers = start(0.05)
    os.killpg(parent.pid, signal.SIGINT)
    _, told = parent.communicate(timeout=120)
    assert parent.returncode == -signal.SIGINT
    assert told.count("Traceback") == told.count("KeyboardInterrupt") == 1
    assert not any(map(_runs, workers))
