"""A process that answers requests: loads the models, runs the event loop, and shuts down."""

import asyncio
import contextlib
import pathlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from absl import logging
from uvicorn.protocols.http.h11_impl import H11Protocol

from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.serving.app import Service, create_app
from dcse_tf.serving.gate import Gate
from dcse_tf.serving.model import EMBED, MATCH, RERANK, ServedModel
from dcse_tf.serving.options import ServeOptions

_FIRST_TEXT = "hello"
_BACKLOG = 2048  # connections that may wait to be accepted
# Seconds that a stopping server has to answer accepted requests and to send the answers.
_LAST_ANSWERS = 120


def name_model(options: ServeOptions) -> str:
    """The model's name in requests."""
    return options.name or pathlib.PurePath(options.model.removeprefix("package:")).name


def load_model(options: ServeOptions) -> ServedModel:
    """Loads the models and runs each once, so that the graphs that requests need are traced.

    Raises:
        InputError: there is no such model, or it cannot be used.
    """
    reranker = None
    if options.reranker:
        reranker = Reranker.load(
            options.reranker,
            batch_tokens=options.batch_tokens,
            compute_dtype=options.compute_dtype,
            option="reranker",
        )
    encoder = SentenceEncoder.from_options(options)
    model = ServedModel(encoder, reranker, name_model(options), options.unit_norm)
    assert encoder.dim
    model.compute(EMBED, [_FIRST_TEXT])
    pair = ((_FIRST_TEXT,), _FIRST_TEXT)
    if encoder.match:
        model.compute(MATCH, [pair])
    if reranker:
        model.compute(RERANK, [pair])
    return model


class _Protocol(H11Protocol):
    """Also closes a connection that sends no first request within `timeout_keep_alive`."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(self.timeout_keep_alive, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """Stops on SIGTERM or SIGINT with status 0; on a second signal, stops without waiting."""

    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[], object]):
        super().__init__(config)
        self._service = service
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        yield

    def stop(self) -> None:
        """Accepts requests for another `stop_delay_s`, then only answers those accepted so far."""
        if self._service.stopping:
            self.should_exit = self.force_exit = True
            return
        self._service.stopping = True
        delay = self._service.options.stop_delay_s
        logging.info("stopping")
        asyncio.get_running_loop().call_later(delay, setattr, self, "should_exit", True)


def run_server(
    options: ServeOptions,
    listener: socket.socket,
    keys: list[str],
    on_ready: Callable[[], object],
    parent: int | None = None,
) -> None:
    """Answers requests until a stop signal.

    Args:
        options: the settings.
        listener: the socket to accept connections on.
        keys: the valid API keys; if empty, no key is needed.
        on_ready: called when requests are accepted.
        parent: a file descriptor that becomes readable when the parent process ends, which stops
            this one; None without a parent.

    Raises:
        InputError: a model cannot be loaded.
    """
    service = Service(options, load_model(options))
    app = create_app(service)
    timeout = options.timeout_s
    max_body = int(options.max_body_mb * 1e6)
    routes = {route.path for route in app.routes}  # type: ignore[attr-defined]
    config = uvicorn.Config(
        Gate(app, routes, keys, max_body, timeout),
        http=_Protocol,
        ws="none",
        loop="asyncio",
        log_level="error",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=max(5, round(timeout)),
        timeout_graceful_shutdown=_LAST_ANSWERS,
    )
    server = _Server(config, service, on_ready)

    async def serve() -> None:
        loop = asyncio.get_running_loop()

        def leave(ended: int) -> None:
            loop.remove_reader(ended)
            server.stop()

        if parent is not None:
            loop.add_reader(parent, leave, parent)
        await server.serve([listener])

    asyncio.run(serve())
