"""The PyTorch peer program, run in its own environment: see peers.py.

    python torch_peer.py MODE

Reads one line of JSON, the settings of the mode, and answers with one line of JSON: what it found
and the variants that it can run. Then reads the name of a variant a line, and answers each with the
seconds and the amount of one round. It does not use dcse_tf.
"""

import functools
import importlib.metadata
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers

# Variant -> function that runs one round of it.
Variants = dict[str, Callable[[], dict[str, float]]]
Settings = dict[str, Any]
LEARNING_RATE, CLIP_NORM, TEMPERATURE = 1e-5, 3.0, 0.1
BATCHES = 4
SAMPLES, TURNS, CANDIDATES = 16, 3, 10  # per batch; context turns per side; per sample


def timed(function: Callable[[], Any], amount: float) -> dict[str, float]:
    """Calls a function; returns the seconds it took, together with the amount it does."""
    started = time.perf_counter()
    function()
    return {"seconds": time.perf_counter() - started, "amount": amount}


def read_sessions(path: str) -> list[list[str]]:
    """The texts of each session of a session_tsv file."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    groups = itertools.groupby(rows, key=lambda row: row[0])
    return [[row[2] for row in session] for _, session in groups]


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of `values` over its second-to-last axis, where the mask is true."""
    weights = mask.unsqueeze(-1).to(values.dtype)
    return (values * weights).sum(-2) / weights.sum(-2).clamp(min=1.0)


def draw_batch(sessions: list[list[str]], tokenizer: Any, longest: int) -> dict[str, torch.Tensor]:
    """Makes a batch of DialogueCSE samples from randomly drawn turns.

    Returns:
        context_ids `[samples, 2 * TURNS, tokens]`, candidate_ids `[samples, CANDIDATES, tokens]`
        (0 = padding; the response comes first), turn_mask `[samples, 2 * TURNS]`.
    """
    texts, present = [], []
    for _ in range(SAMPLES):
        session = sessions[np.random.randint(len(sessions))]
        place = np.random.randint(len(session))
        around = [i for i in range(place - TURNS, place + TURNS + 1) if i != place]
        there = [0 <= i < len(session) for i in around]
        turns = [session[i] if known else "" for i, known in zip(around, there)]
        others = [np.random.randint(len(sessions)) for _ in range(CANDIDATES - 1)]
        texts += [*turns, session[place], *(sessions[i][0] for i in others)]
        present.append(there)
    ids = tokenizer(
        texts, padding=True, truncation=True, max_length=longest, return_tensors="pt"
    ).input_ids.unflatten(0, (SAMPLES, 2 * TURNS + CANDIDATES))
    turn_mask = torch.tensor(present)
    context_ids = ids[:, : 2 * TURNS] * turn_mask.unsqueeze(-1)
    return {
        "context_ids": context_ids,
        "candidate_ids": ids[:, 2 * TURNS :],
        "turn_mask": turn_mask,
    }


def contrastive_loss(bert: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Equations 1 to 4, 7 and 8 of DialogueCSE as printed; encodes every use of an utterance."""
    turns = batch["context_ids"].shape[1]
    token_ids = torch.cat([batch["context_ids"], batch["candidate_ids"]], dim=1)
    mask = token_ids != 0
    attention = mask.clone()
    attention[..., 0] = True  # an absent turn: no row of the attention may be empty
    shape = token_ids.shape
    flat = {"input_ids": token_ids.flatten(0, 1), "attention_mask": attention.flatten(0, 1).long()}
    encoded = bert(**flat).last_hidden_state.unflatten(0, shape[:2])
    context, candidates = encoded[:, :turns], encoded[:, turns:]
    context_mask, candidate_mask = mask[:, :turns], mask[:, turns:]

    # [batch, turns, candidates, context tokens, candidate tokens]
    matching = torch.einsum("btnd,bcmd->btcnm", context, candidates) / encoded.shape[-1] ** 0.5
    matching = matching * candidate_mask[:, None, :, None, :]
    refined = torch.einsum("btcnm,bcmd->btcnd", matching, candidates)
    pooled = masked_mean(refined, context_mask[:, :, None, :])
    context_aware = masked_mean(pooled.transpose(1, 2), batch["turn_mask"][:, None, :])
    context_free = masked_mean(candidates, candidate_mask)
    similarity = torch.nn.functional.cosine_similarity(context_aware, context_free, dim=-1)
    return -torch.log_softmax(similarity / TEMPERATURE, dim=-1)[:, 0].mean()


def train(settings: Settings) -> Variants:
    """Training steps of the paper's procedure. Settings: model, dialogues, longest."""
    bert = transformers.BertModel.from_pretrained(settings["model"], add_pooling_layer=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"])
    # The embeddings and the lower half of the layers are frozen and keep no activations.
    layers = bert.encoder.layer
    for part in (bert.embeddings, *layers[: len(layers) // 2]):
        part.requires_grad_(False)
    trained = [parameter for parameter in bert.train().parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.01)
    sessions = read_sessions(settings["dialogues"])
    batches = [draw_batch(sessions, tokenizer, settings["longest"]) for _ in range(BATCHES)]

    def steps() -> None:
        for batch in batches:
            contrastive_loss(bert, batch).backward()
            torch.nn.utils.clip_grad_norm_(bert.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return {"PyTorch, the paper's procedure": lambda: timed(steps, SAMPLES * BATCHES)}


def embed(settings: Settings) -> Variants:
    """sentence-transformers' `encode`. Settings: model, sentences (a file)."""
    from sentence_transformers import SentenceTransformer

    texts = pathlib.Path(settings["sentences"]).read_text(encoding="utf-8").splitlines()

    def make(batch: int, bfloat16: bool = False) -> Callable[[], dict[str, float]]:
        model = SentenceTransformer(settings["model"], device="cpu")
        if bfloat16:
            model.bfloat16()
        options = {"batch_size": batch, "show_progress_bar": False, "convert_to_numpy": False}
        model.encode(texts[: len(texts) // 10], **options)  # warm-up
        return lambda: timed(lambda: model.encode(texts, **options), len(texts))

    return {
        "sentence-transformers": make(32),
        "sentence-transformers, batches of 128": make(128),
        "sentence-transformers, bfloat16": make(32, bfloat16=True),
    }


def rerank(settings: Settings) -> Variants:
    """sentence-transformers' CrossEncoder on lists of pairs; writes its scores.

    Settings: model; pairs, a JSON file of name -> pairs; output, the .npz to write, name -> scores.
    """
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(settings["model"], device="cpu")
    lists = json.loads(pathlib.Path(settings["pairs"]).read_text(encoding="utf-8"))

    def predict(name: str) -> np.ndarray:
        pairs = [tuple(pair) for pair in lists[name]]
        return model.predict(pairs, batch_size=32, show_progress_bar=False)

    np.savez(settings["output"], **{name: predict(name) for name in lists})
    return {name: functools.partial(timed, functools.partial(predict, name), 1) for name in lists}


def serve(settings: Settings) -> Variants:
    """A server of one's own: each request's text encoded by sentence-transformers in its thread.

    Settings: model, port. It runs until the process ends; the variant "started" does nothing.
    """
    import http.server
    import threading

    from sentence_transformers import SentenceTransformer

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

    server = http.server.ThreadingHTTPServer(("127.0.0.1", settings["port"]), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return {"started": lambda: timed(lambda: None, 1)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # prints of libraries go to stderr
    torch.manual_seed(0)
    np.random.seed(0)
    mode = {"train": train, "embed": embed, "rerank": rerank, "serve": serve}[sys.argv[1]]
    variants = mode(json.loads(sys.stdin.readline()))
    names = ("torch", "transformers", "sentence-transformers")
    versions = {name: importlib.metadata.version(name) for name in names}
    found = {"variants": list(variants), "versions": versions, "threads": torch.get_num_threads()}
    print(json.dumps(found), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(variants[line.strip()]()), file=answers, flush=True)


if __name__ == "__main__":
    main()
