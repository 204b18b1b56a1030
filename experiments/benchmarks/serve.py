"""Measures `dcse serve` under load, beside a plain server around sentence-transformers.

    python experiments/benchmarks/serve.py --seconds=60

1, 8 and 64 clients on the same machine ask for the embedding of one text of 3 to 20 words, again
and again, each over a connection of its own. The peer is what one would write by hand: a thread a
connection, each text encoded as it comes.
"""

import asyncio
import contextlib
import functools
import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import jobs
import measure
import numpy as np
import peers
from runs import DCSE, MINILM, ROOT

CLIENTS = (1, 8, 64)
_WORDS = "where is my parcel it left today i want a refund for the blue cup thanks when will"


@contextlib.contextmanager
def start(model: str) -> Iterator[int]:
    """Starts `dcse serve`; yields its port, and stops it at the end."""
    command = [sys.executable, *DCSE, "serve", f"--model={model}", "--port=0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        address = re.search(r":(\d+)\s*$", process.stdout.readline())
        if not address:
            sys.exit("error: the server did not start")
        try:
            yield int(address[1])
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


async def ask(port: int, until: float, times: list[float]) -> None:
    """A client: sends requests until a time, and notes the seconds that each took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        text = " ".join(random.choices(_WORDS.split(), k=random.randint(3, 20)))
        body = json.dumps({"input": [text]}).encode()
        head = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        started = time.perf_counter()
        writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", answer)
        if not (length and answer.split()[1] == b"200"):
            sys.exit(f"error: {answer.decode()}")
        await reader.readexactly(int(length[1]))
        times.append(time.perf_counter() - started)
    writer.close()


def load(port: int, clients: int, seconds: float) -> measure.Round:
    """Answers to a number of clients, with percentiles of their times in milliseconds."""
    times: list[float] = []
    started = time.perf_counter()

    async def ask_all() -> None:
        await asyncio.gather(*(ask(port, started + seconds, times) for _ in range(clients)))

    asyncio.run(ask_all())
    shares = dict(zip(("p50 ms", "p95 ms", "p99 ms"), np.percentile(times, (50, 95, 99)) * 1000))
    return measure.Round(time.perf_counter() - started, len(times), shares)


def main() -> None:
    parser = measure.make_parser(__doc__)
    parser.add_argument("--model", default=MINILM, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a round")
    args = parser.parse_args()
    tables = []
    with contextlib.ExitStack() as stack:
        ports = {"dcse serve": stack.enter_context(start(args.model))}
        if not args.no_peers:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            model = jobs.find_model(args.model)
            stack.enter_context(peers.Peer(args, "serve", model=model, port=port))
            ports["a thread a request, sentence-transformers"] = port
        for clients in CLIENTS:
            cases = [
                measure.Case(name, functools.partial(load, port, clients, args.seconds))
                for name, port in ports.items()
            ]
            rows = measure.run_rounds(cases, args.rounds, warm_up=1)
            tables.append(measure.make_table(f"{clients} clients", "answers", rows))
    measure.tell(args.output, "Serving", tables)


if __name__ == "__main__":
    main()
