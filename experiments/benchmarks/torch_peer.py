"""The PyTorch peer program, run in its own environment: see peers.py.

    python torch_peer.py MODE

Reads one line of JSON, the settings of the mode, and answers with one line of JSON: the variants
that it can run. Then reads the name of a variant a line, and answers each with the seconds and the
amount of one round. It does not use dcse_tf.
"""

import functools
import http.server
import itertools
import json
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, losses

# Variant -> function that runs one round of it.
Variants = dict[str, Callable[[], dict[str, float]]]
Settings = dict[str, Any]
BATCHES, PAIRS = 4, 128


def timed(function: Callable[[], Any], amount: float) -> dict[str, float]:
    """Calls a function; returns the seconds it took, together with the amount it does."""
    started = time.perf_counter()
    function()
    return {"seconds": time.perf_counter() - started, "amount": amount}


def train(settings: Settings) -> Variants:
    """Steps of MultipleNegativesRankingLoss on pairs of a turn and the next one, at a temperature
    of 0.05, with the lower half frozen as in the preset. Settings: model, dialogues.
    """
    model = SentenceTransformer(settings["model"], device="cpu")
    bert = model[0].auto_model
    layers = bert.encoder.layer
    for part in (bert.embeddings, *layers[: len(layers) // 2]):
        part.requires_grad_(False)
    trained = [parameter for parameter in model.train().parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, weight_decay=0.01)
    loss_of = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    rows = [
        line.split("\t") for line in pathlib.Path(settings["dialogues"]).read_text().split("\n")
    ]
    sessions = itertools.groupby(rows[:-1], key=lambda row: row[0])
    turns = [[row[2] for row in session] for _, session in sessions]
    pairs = [pair for session in turns for pair in itertools.pairwise(session)]
    batches = [
        [model.tokenize(list(side)) for side in zip(*pairs[i * PAIRS : (i + 1) * PAIRS])]
        for i in range(BATCHES)
    ]

    def steps() -> None:
        for batch in batches:
            loss_of([dict(side) for side in batch], None).backward()
            torch.nn.utils.clip_grad_norm_(trained, 3.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return {"sentence-transformers, pairs": lambda: timed(steps, PAIRS * BATCHES)}


def embed(settings: Settings) -> Variants:
    """sentence-transformers' `encode`. Settings: model, sentences (a file)."""
    texts = pathlib.Path(settings["sentences"]).read_text(encoding="utf-8").splitlines()

    def make(bfloat16: bool) -> Callable[[], dict[str, float]]:
        model = SentenceTransformer(settings["model"], device="cpu")
        if bfloat16:
            model.bfloat16()
        encode = functools.partial(model.encode, show_progress_bar=False, convert_to_numpy=False)
        encode(texts[: len(texts) // 10])  # warm-up
        return lambda: timed(lambda: encode(texts), len(texts))

    names = {"sentence-transformers": False, "sentence-transformers, bfloat16": True}
    return {name: make(bfloat16) for name, bfloat16 in names.items()}


def rerank(settings: Settings) -> Variants:
    """CrossEncoder on lists of pairs; writes its scores.

    Settings: model; pairs, a JSON file of name -> pairs; output, the .npz to write, name -> scores.
    """
    model = CrossEncoder(settings["model"], device="cpu")
    lists = json.loads(pathlib.Path(settings["pairs"]).read_text(encoding="utf-8"))

    def predict(name: str) -> np.ndarray:
        return model.predict([tuple(pair) for pair in lists[name]], show_progress_bar=False)

    np.savez(settings["output"], **{name: predict(name) for name in lists})
    return {name: functools.partial(timed, functools.partial(predict, name), 1) for name in lists}


def serve(settings: Settings) -> Variants:
    """A server as one would write it by hand: each text encoded as it comes, a thread a connection.

    Settings: model, port. It runs until the process ends.
    """
    model = SentenceTransformer(settings["model"], device="cpu")

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            rows = model.encode(asked["input"], show_progress_bar=False).tolist()
            body = json.dumps({"data": [{"embedding": row} for row in rows]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Writes nothing."""

    http.server.ThreadingHTTPServer.request_queue_size = 128  # of 5, clients would be turned away
    server = http.server.ThreadingHTTPServer(("127.0.0.1", settings["port"]), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return {}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # prints of libraries go to stderr
    mode = {"train": train, "embed": embed, "rerank": rerank, "serve": serve}[sys.argv[1]]
    variants = mode(json.loads(sys.stdin.readline()))
    print(json.dumps(list(variants)), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(variants[line.strip()]()), file=answers, flush=True)


if __name__ == "__main__":
    main()
