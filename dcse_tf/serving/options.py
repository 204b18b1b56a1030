"""Settings of `serve`."""

import dataclasses

from dcse_tf.encoder.options import ModelOptions
from dcse_tf.options import option


@dataclasses.dataclass(frozen=True)
class ServeOptions(ModelOptions):
    """Answers requests over HTTP."""

    reranker: str = option(
        "",
        "A trained re-ranker: a run directory, a checkpoint folder or an export to ONNX. It orders "
        "the documents of rerank; without one the cosine of embeddings does.",
        reads=True,
    )
    name: str = option(
        "", "What requests call the model. Default: the last part of `model`; others are refused."
    )
    unit_norm: bool = option(False, "Scale embeddings to length 1, as OpenAI's are.")
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 for all of this machine's.")
    port: int = option(
        8000, "Port to listen on. 0: one that is free.", minimum=1, maximum=65535, or_zero=True
    )
    workers: int = option(
        1,
        "Processes that answer, each with a model of its own and its share of the cores. One that "
        "ends is replaced.",
        minimum=1,
    )
    api_key_file: str = option(
        "",
        "File of keys, one a line, of which a request must give one as its bearer token. Without "
        "it the key is the environment's DCSE_API_KEY; without that anyone is served.",
        files=True,
    )
    max_wait_ms: float = option(
        2.0,
        "Longest wait of a request for others to be encoded with, where fewer than `batch_tokens` "
        "wait, in milliseconds. While a batch is encoded requests are collected anyway.",
        minimum=0.0,
    )
    max_queue: int = option(
        4096, "Texts that may wait in a process; more are refused (429).", minimum=1
    )
    max_texts: int = option(1024, "Texts of a request; more are refused (400).", minimum=1)
    max_characters: int = option(20000, "Characters of a text; more are refused (400).", minimum=1)
    max_body_mb: float = option(8.0, "Megabytes of a request; more are refused (413).", minimum=0.0)
    timeout_s: float = option(
        10.0, "Seconds in which a request has to arrive; later it is refused (408).", minimum=0.1
    )
    stop_delay_s: float = option(
        0.0,
        "Seconds from SIGTERM in which requests are still taken and /health says 503, for a load "
        "balancer to notice. What has been taken is answered in any case.",
        minimum=0.0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_texts > self.max_queue:
            self.refuse("max_texts", f"would never fit into `max_queue`={self.max_queue}")
