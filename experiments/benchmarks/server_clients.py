"""Locust clients of `dcse serve`, started by server.py.

Each requests the embedding of one text of 3 to 20 words, and sends the next request when it has the
answer. After a refusal (429), it waits for as many seconds as the answer says.

    locust --locustfile=experiments/benchmarks/server_clients.py --headless --users=8 \
        --run-time=20s --host=http://127.0.0.1:8000 --times=times.json
"""

import collections
import json
import math
import pathlib
import random
from typing import Any

import gevent
from locust import FastHttpUser, events, task

_WORDS = "where is my parcel it left today i want a refund for the blue cup thanks when will"
# Outcomes of a request. Any other answer is an error, named by its status.
ANSWERED, REFUSED, BROKEN = "answered", "refused", "broken off"

_milliseconds: dict[str, list[float]] = collections.defaultdict(list)
_span = [math.inf, 0.0]  # time.time of the first request and of the last answer


@events.init_command_line_parser.add_listener
def add_arguments(parser: Any) -> None:
    parser.add_argument("--times", required=True, help="file for the times of all requests")


@events.request.add_listener
def note(name: str, response_time: float, start_time: float, **_: object) -> None:
    _milliseconds[name].append(response_time)
    _span[:] = min(_span[0], start_time), max(_span[1], start_time + response_time / 1000)


@events.quitting.add_listener
def write(environment: Any, **_: object) -> None:
    seen = {"milliseconds": _milliseconds, "seconds": _span[1] - _span[0]}
    pathlib.Path(environment.parsed_options.times).write_text(json.dumps(seen))


class Client(FastHttpUser):
    """See the module's docstring."""

    connection_timeout = network_timeout = 60.0

    @task
    def ask(self) -> None:
        text = " ".join(random.choices(_WORDS.split(), k=random.randint(3, 20)))
        body = {"input": text, "encoding_format": "base64"}
        with self.client.post("/v1/embeddings", json=body, catch_response=True) as response:
            status = response.status_code
            told = {200: ANSWERED, 429: REFUSED, 0: BROKEN}.get(status, str(status))
            again = response.headers.get("Retry-After") if status == 429 else None
            if told == REFUSED and not (again and "try again" in response.text):
                told = "429 that does not say when to try again"
            response.request_meta["name"] = told
            if told == REFUSED:
                response.success()
        gevent.sleep(float(again or 0))
