"""The serve job: one process that answers requests over HTTP."""

import os
import signal
import socket
from typing import TYPE_CHECKING

from dcse_tf.errors import name_input, require
from dcse_tf.options import option
from dcse_tf.search.calibration import CalibratedOptions

if TYPE_CHECKING:
    import fastapi

_BACKLOG = 2048  # connections that may wait to be accepted


class ServeOptions(CalibratedOptions):
    """Answers requests over HTTP."""

    reranker: str = option(
        "",
        "Re-ranker for rerank requests: a run, a checkpoint or an ONNX export. Default: by cosine.",
        path="reads",
    )
    clusters: str = option(
        "", "Report of discover by this model, to label texts by its clusters.", path="reads"
    )
    name: str = option("", "The model's name in requests. Default: the last part of `model`.")
    unit_norm: bool = option(False, "Scale embeddings to length 1, like OpenAI's.")
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 for all of this machine.")
    port: int = option(
        8000, "Port to listen on. 0: any free port.", minimum=1, maximum=65535, or_zero=True
    )
    max_wait_ms: float = option(
        2.0,
        "Milliseconds that a request waits at most for others, until `batch_tokens` are waiting.",
        minimum=0.0,
    )
    max_queue: int = option(4096, "Texts that may wait; further ones are refused (429).", minimum=1)
    max_body_mb: float = option(
        8.0, "Megabytes in a request, at most; a larger request is refused (413).", minimum=0.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_needed("reranker", "calibration")


def serve(options: ServeOptions) -> None:
    """Answers requests until SIGTERM or SIGINT; then answers those that it has accepted. Prints its
    URL when it is ready.

    A request needs a key if the environment variable DCSE_API_KEY has some, separated by spaces or
    line breaks; it sends one of them as its bearer token. Raises InputError if a model cannot be
    loaded, the port cannot be listened on, or a package is missing.
    """
    require("fastapi", "server", "serve")
    uvicorn = require("uvicorn", "server", "serve")
    with listen(options) as listener:
        config = uvicorn.Config(
            make_app(options),
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=120,  # seconds to answer accepted requests
        )
        # uvicorn stops at the signal and then raises it again, which would end this process by it.
        signal.signal(signal.SIGTERM, lambda *_: None)
        host, port = listener.getsockname()[:2]
        print(f"serving at http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        uvicorn.Server(config).run([listener])


def listen(options: ServeOptions) -> socket.socket:
    """A socket that listens on the server's address, so that connections wait from now on; raises
    InputError if the port is taken, or there is no such address.
    """
    problem = f"`host`={options.host}, `port`={options.port}: cannot listen there"
    with name_input(problem, OSError, UnicodeError):
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # The protocol must be given: only then does asyncio set TCP_NODELAY on connections. Without
        # it an answer's body waits 40 ms for the client to acknowledge its headers.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        return listener


def make_app(options: ServeOptions) -> "fastapi.FastAPI":
    """Loads the models, runs each once, and makes the application; raises InputError if there is no
    such model, or it cannot be used.
    """
    from dcse_tf.discovery.clusters import Clusters
    from dcse_tf.encoder.sentence_encoder import SentenceEncoder
    from dcse_tf.reranker.reranker import Reranker
    from dcse_tf.serving.app import Service, create_app

    encoder = SentenceEncoder.from_options(options)
    reranker = Reranker.from_options(options, "reranker") if options.reranker else None
    service = Service(options, encoder, reranker)
    # Each reads a text, so that the graphs that requests need are traced.
    assert encoder.dim
    if reranker:
        reranker.rank("hello", ["hello"])
        if calibration := options.read_calibration({"`reranker`": reranker.fingerprint()}):
            service.none_below = calibration.threshold(options.false_accepts)
    if options.clusters:
        service.clusters = Clusters.load(options.clusters, service.encoder)
    keys = os.environ.get("DCSE_API_KEY", "").split()
    return create_app(service, keys, int(options.max_body_mb * 1e6))
