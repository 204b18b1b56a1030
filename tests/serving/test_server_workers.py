"""Who looks after a server's processes, with processes that only say their number."""

import os
import signal
import socket
import threading
import time

import pytest
import worker_functions

from dcse_tf.errors import InputError
from dcse_tf.serving import job
from dcse_tf.serving.options import ServeOptions


@pytest.fixture(autouse=True)
def _processes(monkeypatch):
    monkeypatch.setattr(job, "_run_worker", worker_functions.answer_until_told)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def ask(address):
    """The number of the process that answers; 0 if it is killed meanwhile."""
    try:
        with socket.create_connection(address, timeout=60) as connection:
            return int(connection.recv(20) or 0)
    except ConnectionError:
        return 0


def test_a_killed_worker_is_replaced_and_the_signal_to_stop_ends_all():
    seen = set()

    def kill_and_stop(address):
        killed = ask(address)
        assert killed
        os.kill(killed, signal.SIGKILL)
        deadline = time.monotonic() + 60
        # The other, and the one in the killed one's place.
        while len(seen - {0, killed}) < 2 and time.monotonic() < deadline:
            seen.add(ask(address))
        seen.difference_update({0, killed})
        os.kill(os.getpid(), signal.SIGTERM)

    with job.listen(ServeOptions(model="m", port=0), shared=True) as held:
        address = held.getsockname()
        thread = threading.Thread(target=kill_and_stop, args=(address,))
        options = ServeOptions(model="m", workers=2, port=address[1])
        job._Workers(options, [], str, thread.start).run()
        thread.join()
    assert len(seen) == 2
    for number in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_a_worker_that_cannot_start_ends_the_server_with_its_reason():
    options = ServeOptions(model="m", workers=2, name="broken", port=0)
    with pytest.raises(InputError, match=r"^no such model$"):
        job._Workers(options, [], str, pytest.fail).run()
