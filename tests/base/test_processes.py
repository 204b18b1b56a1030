"""A function is mapped over processes: order, errors, and no process that is left behind."""

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from worker_functions import Adder, Broken, Killed, Refuser

from dcse_tf.data.processes import map_in_order
from dcse_tf.errors import InputError

pytestmark = pytest.mark.slow

HELPERS = pathlib.Path(__file__).parents[1] / "helpers"


@pytest.fixture(autouse=True)
def _leave_no_process():
    yield
    assert multiprocessing.active_children() == []


def test_results_come_in_order_and_few_items_are_held():
    drawn, most, found = 0, 0, []

    def items():
        nonlocal drawn
        while drawn < 40:
            drawn += 1
            yield drawn - 1

    for result in map_in_order(Adder, (100,), items(), processes=2, few=4):
        found.append(result)
        most = max(most, drawn - len(found))
    assert [value for value, _ in found] == list(range(100, 140))
    assert {process for _, process in found[:4]} == {os.getpid()}
    assert os.getpid() not in {process for _, process in found[4:]}
    assert most <= 8
    alone = list(map_in_order(Adder, (0,), range(3), processes=1))
    assert alone == [(number, os.getpid()) for number in range(3)]


@pytest.mark.parametrize(
    ("make", "error"), [(Refuser, "corpus:7: expected a small number"), (Broken, "vocab.txt: no")]
)
def test_an_error_arrives_as_it_is_when_it_is_due(make, error):
    results, found = map_in_order(make, (), range(20), processes=2), []
    with pytest.raises(InputError, match=error):
        found.extend(results)
    assert found == list(range(len(found)))
    killed = map_in_order(Killed, (), range(3), processes=2)
    with pytest.raises(ChildProcessError, match="fewer `workers` need less"):
        list(killed)


def test_workers_end_with_their_parent(tmp_path):
    """Also when it is killed."""
    code = """
import sys
from dcse_tf.data.processes import map_in_order
from worker_functions import Sleeper
if __name__ == "__main__":
    list(map_in_order(Sleeper, (sys.argv[1], 60), range(4), 2))
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    (tmp_path / "at work").mkdir()
    paths = os.pathsep.join([str(HELPERS), str(HELPERS.parents[1])])
    command = [sys.executable, str(script), str(tmp_path / "at work")]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}) as parent:
        deadline = time.monotonic() + 60
        while len(workers := list((tmp_path / "at work").iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        parent.send_signal(signal.SIGKILL)
    while any(pathlib.Path(f"/proc/{worker.name}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
