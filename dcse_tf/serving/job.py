"""The serve job: one process that answers requests, or several and a parent that restarts them."""

import dataclasses
import multiprocessing
import os
import pathlib
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from absl import logging

from dcse_tf import progress
from dcse_tf.errors import InputError, require
from dcse_tf.processors import available_processors
from dcse_tf.serving.options import ServeOptions

KEY_VARIABLE = "DCSE_API_KEY"
_READY = "ready"
# Seconds before the next attempt if a worker could not start.
_PAUSE = 5.0


def serve(
    options: ServeOptions, announce: Callable[[str], object], spell: Callable[[str], str] = str
) -> None:
    """Answers requests until SIGTERM or SIGINT.

    Args:
        options: the settings.
        announce: called with the server's URL when it is ready.
        spell: rewrites each log message of the workers before it is shown.

    Raises:
        InputError: a model cannot be loaded, the port cannot be listened on, or a package is
            missing.
    """
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        require(package, "server", "serve")
    keys = read_keys(options)
    listener = listen(options)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if options.workers > 1:
        listener.close()
        options = options.replace(port=port)
        with listen(options, shared=True):  # keeps other programs from taking the port
            _Workers(options, keys, spell, lambda: announce(url)).run()
    else:
        from dcse_tf.serving.server import run_server

        run_server(options, listener, keys, lambda: announce(url))


def read_keys(options: ServeOptions) -> list[str]:
    """The valid API keys, from the file or the environment; empty if none is needed.

    Raises:
        InputError: the file cannot be read or has no key.
    """
    if not options.api_key_file:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        return [key] if key else []
    name = f"`api_key_file`={options.api_key_file}"
    try:
        lines = pathlib.Path(options.api_key_file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: cannot be read: {error}") from error
    if not (keys := [line.strip() for line in lines if line.strip()]):
        raise InputError(f"{name}: expected one key a line, found none")
    return keys


def listen(options: ServeOptions, shared: bool = False) -> socket.socket:
    """A socket that is bound to the server's address, but does not accept connections yet.

    Args:
        options: the settings, including the address.
        shared: whether several sockets may have the address; Linux then distributes connections
            among them.

    Raises:
        InputError: the port is taken, or there is no such address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # The protocol must be given: only then does asyncio set TCP_NODELAY on connections. Without
        # it an answer's body waits 40 ms for the client to acknowledge its headers.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        place = f"`host`={options.host}, `port`={options.port}"
        raise InputError(f"{place}: cannot listen there: {error.strerror}") from error
    return listener


@dataclasses.dataclass
class _Worker:
    """A process that answers requests.

    Attributes:
        process: the process.
        reports: where it reports that it is ready, or why it could not start.
        ready: whether it has reported that it is ready.
    """

    process: SpawnProcess
    reports: Connection
    ready: bool = False


class _Workers:
    """Worker processes that listen on one port. Until a stop signal, one that ends is replaced.

    Args:
        options, keys, spell: passed to every worker.
        on_ready: called when all workers are ready.
    """

    def __init__(
        self,
        options: ServeOptions,
        keys: list[str],
        spell: Callable[[str], str],
        on_ready: Callable[[], object],
    ):
        self._arguments = (options, keys, spell)
        self._count = options.workers
        self._on_ready = on_ready
        self._workers: list[_Worker] = []
        self._stopping = False
        self._announced = False

    def run(self) -> None:
        """Runs the workers; returns after a stop signal, when all of them have ended.

        Raises:
            InputError: a worker could not start.
        """
        threads = max(1, available_processors() // self._count)
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        with tempfile.TemporaryDirectory(prefix="dcse-metrics-") as folder:
            # prometheus_client reads the variable on import, here and in the workers.
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
            self._workers = [self._start() for _ in range(self._count)]
            try:
                while self._workers:
                    self._look_after()
            finally:
                self._stop()
                for worker in self._workers:
                    worker.process.join()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        reports, report = context.Pipe(duplex=False)
        process = context.Process(target=_run_worker, args=(*self._arguments, report))
        process.start()
        report.close()
        return _Worker(process, reports)

    def _stop(self, *_: Any) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.process.terminate()

    def _look_after(self) -> None:
        """Waits until a worker reports or ends, and reacts."""
        starting = [worker.reports for worker in self._workers if not worker.ready]
        wait([*starting, *(worker.process.sentinel for worker in self._workers)])
        for worker in list(self._workers):
            if not worker.ready and worker.reports.poll():
                self._read(worker)
            if worker.process.exitcode is not None:
                self._replace(worker)
        if not self._announced and all(worker.ready for worker in self._workers):
            self._announced = True
            self._on_ready()

    def _read(self, worker: _Worker) -> None:
        try:
            said = worker.reports.recv()
        except EOFError:  # it was killed
            worker.process.join()
            return
        worker.ready = said == _READY
        if not worker.ready and not self._announced:
            raise InputError(said)
        if not worker.ready:
            logging.warning("%s", said)

    def _replace(self, worker: _Worker) -> None:
        from prometheus_client import multiprocess

        self._workers.remove(worker)
        worker.reports.close()
        multiprocess.mark_process_dead(worker.process.pid)
        if self._stopping:
            return
        if not worker.ready:
            if not self._announced:
                status = worker.process.exitcode
                raise InputError(f"a worker ended before it was ready, with status {status}")
            time.sleep(_PAUSE)
        logging.warning(
            "worker %s ended with status %s, another takes its place",
            *(worker.process.pid, worker.process.exitcode),
        )
        self._workers.append(self._start())
        if self._stopping:  # the signal came in the meantime
            self._stop()


def _run_worker(
    options: ServeOptions,
    keys: list[str],
    spell: Callable[[str], str],
    report: Connection,
) -> None:
    """The main function of a worker, which runs until its parent stops it or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent stops the workers
    parent = multiprocessing.parent_process()
    assert parent
    with progress.show_log(spell=spell):
        try:
            from dcse_tf.serving.server import run_server

            with listen(options, shared=True) as listener:
                run_server(options, listener, keys, lambda: report.send(_READY), parent.sentinel)
        except (InputError, OSError) as error:
            report.send(str(error))
            sys.exit(1)
