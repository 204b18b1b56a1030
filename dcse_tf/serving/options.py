"""Settings of `serve`."""

import dataclasses

from dcse_tf.encoder.options import ModelOptions
from dcse_tf.options import option


@dataclasses.dataclass(frozen=True)
class ServeOptions(ModelOptions):
    """Answers requests over HTTP."""

    reranker: str = option(
        "",
        "A trained re-ranker that ranks the documents of rerank requests: a run directory, a "
        "checkpoint folder or an export to ONNX. Default: rank by the cosine of embeddings.",
        reads=True,
    )
    name: str = option(
        "",
        "Name of the model in requests; requests for other names are refused. Default: the "
        "last part of `model`.",
    )
    unit_norm: bool = option(False, "Scale embeddings to length 1, like OpenAI's.")
    host: str = option(
        "127.0.0.1", "Address to listen on; 0.0.0.0 for all addresses of this machine."
    )
    port: int = option(
        8000, "Port to listen on. 0: any free port.", minimum=1, maximum=65535, or_zero=True
    )
    workers: int = option(
        1,
        "Processes that answer requests, each with its own model and its share of the cores. "
        "A process that ends is replaced.",
        minimum=1,
    )
    api_key_file: str = option(
        "",
        "File of keys, one a line; a request must send one of them as its bearer token. "
        "Default: the key in the environment variable DCSE_API_KEY; if that is not set, no "
        "key is needed.",
        files=True,
    )
    max_wait_ms: float = option(
        2.0,
        "Milliseconds that a request waits at most for others to be encoded with, while fewer "
        "than `batch_tokens` are waiting. Requests that arrive while a batch is being encoded "
        "are collected in any case.",
        minimum=0.0,
    )
    max_queue: int = option(
        4096, "Texts that may wait in a process; further ones are refused (429).", minimum=1
    )
    max_texts: int = option(
        1024, "Texts in a request, at most; a larger request is refused (400).", minimum=1
    )
    max_characters: int = option(
        20000, "Characters in a text, at most; a longer text is refused (400).", minimum=1
    )
    max_body_mb: float = option(
        8.0, "Megabytes in a request, at most; a larger request is refused (413).", minimum=0.0
    )
    timeout_s: float = option(
        10.0,
        "Seconds within which a request must arrive completely; later it is refused (408).",
        minimum=0.1,
    )
    stop_delay_s: float = option(
        0.0,
        "Seconds after SIGTERM during which requests are still accepted while /health says "
        "503, so that a load balancer notices. Accepted requests are answered in any case.",
        minimum=0.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_texts > self.max_queue:
            self.refuse("max_texts", f"would never fit into `max_queue`={self.max_queue}")
