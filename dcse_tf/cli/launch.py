"""`dcse launch --workers=2 train --flag=value ...`: trains with several processes on a machine."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from dcse_tf.arguments import find_files, parse_flags
from dcse_tf.errors import EXIT_STATUS
from dcse_tf.options import OptionError
from dcse_tf.processors import available_processors
from dcse_tf.stores import stage
from dcse_tf.tasks.options import TrainOptions

USAGE = "dcse launch --workers=NUMBER train --flag=value ..."
LOG_FOLDER = "workers"
_HELP = f"""usage: {USAGE}

Trains with several processes on this machine, which share its GPUs evenly, or its CPU. In every
step, each process computes its part of the samples. The first one evaluates and writes; the output
of the others is in RUN_DIR/{LOG_FOLDER}. If one fails, all are stopped; the same command resumes
the run.

For several machines, start `dcse train` on each, with the environment variable TF_CONFIG for
TensorFlow's MultiWorkerMirroredStrategy and a run_dir that all of them can see."""
# Seconds that the other workers get to notice that one has ended, and to report it.
_GRACE = 15.0
_POLL = 0.2


def launch(arguments: Sequence[str]) -> None:
    """Starts the workers and waits for them; exits with the status of one that failed.

    Args:
        arguments: the command line after `launch`.

    Raises:
        OptionError: the command has the wrong form, or `train` would refuse its options.
        InputError: a file named by an option does not exist.
    """
    if not arguments or set(arguments[:1]) & {"--help", "-h"}:
        print(_HELP)
        return
    found = re.fullmatch(r"--?workers=(\d{1,4})", arguments[0])
    if not found or arguments[1:2] != ["train"] or not int(found[1]):
        raise OptionError(f"expected {USAGE}")
    options = parse_flags(TrainOptions, "train", arguments[2:])
    find_files(options)
    with stage(options) as staged:
        # URLs in the flags are replaced by local paths.
        given = options.to_dict()
        changed = {k: value for k, value in staged.to_dict().items() if value != given[k]}
        flags = [*arguments[2:], *(f"--{name}={value}" for name, value in changed.items())]
        _run_workers(int(found[1]), flags, pathlib.Path(staged.run_dir) / LOG_FOLDER)


def _run_workers(count: int, flags: Sequence[str], folder: pathlib.Path) -> None:
    """Runs `train` in each worker; the output of all but the first one goes to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with _forward_signals() as processes:
        for index, environment in enumerate(_make_environments(count, _list_gpus())):
            streams: dict[str, Any] = {}
            if index:
                log = (folder / f"{index}.log").open("ab")
                streams = {"stdout": log, "stderr": subprocess.STDOUT}
            command = [sys.executable, "-m", "dcse_tf.cli", "train", *flags]
            # In its own session, a worker gets Ctrl-C only by forwarding, not from the terminal as
            # well.
            processes.append(
                subprocess.Popen(command, env=environment, start_new_session=True, **streams)
            )
        failed = _wait(processes)
    if failed is None:
        return
    status = processes[failed].returncode
    if failed or status < 0:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        where = f", see {folder}/{failed}.log" if failed else ""
        print(
            f"error: worker {failed} {how}{where}; all have been stopped, and the same command "
            "resumes the run",
            file=sys.stderr,
        )
    sys.exit(128 - status if status < 0 else status)


def _make_environments(count: int, gpus: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields each worker's environment: all addresses, its index, its GPUs and threads.

    Raises:
        OptionError: the GPUs cannot be shared evenly.
    """
    if len(gpus) % count:
        raise OptionError(f"`workers`={count}: they cannot share {len(gpus)} GPUs evenly")
    share = len(gpus) // count
    # If each worker used threads for all cores, they would slow each other down.
    threads = str(max(1, available_processors() // count))
    with contextlib.ExitStack() as stack:  # local addresses with free ports
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for index in range(count):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        environment = {"TF_NUM_INTRAOP_THREADS": threads, **os.environ, "TF_CONFIG": config}
        if gpus:
            own = gpus[index * share : (index + 1) * share]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        yield environment


def _list_gpus() -> list[str]:
    """The ids of the GPUs that this process may use."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        numbers = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        # For CUDA, a negative number hides itself and all GPUs after it.
        seen = itertools.takewhile(lambda number: not number.strip().startswith("-"), numbers)
        return [number for number in seen if number]
    devices = (re.fullmatch(r"nvidia(\d+)", path.name) for path in pathlib.Path("/dev").iterdir())
    return sorted((found[1] for found in devices if found), key=int)


@contextlib.contextmanager
def _forward_signals() -> Iterator[list[subprocess.Popen]]:
    """Yields a list of processes that get this one's SIGTERM and SIGINT; kills them at the end."""
    processes: list[subprocess.Popen] = []

    def forward(number: int, _: Any) -> None:
        for process in processes:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(processes: Sequence[subprocess.Popen]) -> int | None:
    """Waits for all processes, or a grace period after the first failure.

    Returns:
        The index of the process at fault; None if none failed.
    """
    until = 0.0
    while True:
        ended = {i: p.returncode for i, p in enumerate(processes) if p.poll() is not None}
        failed = [i for i, status in ended.items() if status]
        if failed and not until:
            until = time.monotonic() + _GRACE
        if len(ended) == len(processes) or (until and time.monotonic() > until):
            # EXIT_STATUS comes from workers that lost another one, which is the one at fault.
            return min(failed, key=lambda i: ended[i] == EXIT_STATUS, default=None)
        time.sleep(_POLL)
