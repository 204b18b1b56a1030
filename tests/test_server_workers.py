"""Who looks after a server's processes, with processes that only say their number."""

import os
import signal
import socket
import threading

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
    with socket.create_connection(address, timeout=20) as connection:
        return int(connection.recv(20))


def test_a_killed_worker_is_replaced_and_the_signal_to_stop_ends_all():
    seen = []

    def kill_and_stop(address):
        killed = ask(address)
        os.kill(killed, signal.SIGKILL)
        while len(seen) < 2:  # the other, and the one in the killed one's place
            number = ask(address)
            if number not in (killed, *seen):
                seen.append(number)
                os.kill(number, signal.SIGSTOP)  # so that the next answer is another's
        for number in seen:
            os.kill(number, signal.SIGCONT)
        os.kill(os.getpid(), signal.SIGTERM)

    options = ServeOptions(model="m", workers=2)
    with job.listen(options.replace(port=0)) as listener:
        listener.listen()
        thread = threading.Thread(target=kill_and_stop, args=(listener.getsockname(),))
        job._Workers(options, listener, [], thread.start).run()
        thread.join()
    for number in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_a_worker_that_cannot_start_ends_the_server_with_its_reason():
    options = ServeOptions(model="m", workers=2, name="broken")
    with job.listen(options.replace(port=0)) as listener:
        listener.listen()
        with pytest.raises(InputError, match=r"^no such model$"):
            job._Workers(options, listener, [], pytest.fail).run()
