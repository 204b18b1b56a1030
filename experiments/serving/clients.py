"""Queries a running `dcse serve` with common client libraries, and checks their answers.

    pip install -e ".[server]" openai cohere langchain-openai llama-index-embeddings-openai-like
    dcse serve --model=run --reranker=reranker --port=8000 &
    python experiments/serving/clients.py --model=run --reranker=reranker --url=http://localhost:8000

Prints the requests and the first numbers of the answers. Embeddings must equal
`SentenceEncoder.encode`, and the order of documents `Reranker.rank`. The exit status is 1 if one
does not, or if a client that sends token ids is not told which setting to change.
"""

import argparse
import base64
import json
import os
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import cohere
import numpy as np
import openai
import tiktoken
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

import dcse_tf

TEXTS = ["where is my parcel", "it left today", "好的，发货", "I want a refund for the blue cup"]
TURNS, DOCUMENTS = ["hello", "where is my parcel"], ["I like cats", "it left today", "no", "thanks"]
QUERY = " [EOT] ".join(TURNS)
TOLERANCE = 1e-5


class Clients:
    """Each method sends requests with one client library and returns the answer.

    Args:
        url: the server's URL.
        key: the server's API key.
    """

    def __init__(self, url: str, key: str):
        self.url = url
        self.key = key
        (model,) = self.openai_client().models.list()
        self.name = model.id

    def openai_client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key)

    def post(self, path: str, **body: object) -> Any:
        """Sends plain HTTP."""
        headers = {"Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def curl(self, path: str, **body: object) -> Any:
        command = ["curl", "--silent", "--show-error", self.url + path, "--data", json.dumps(body)]
        print(" ", shlex.join(command))
        command += ["--header", f"Authorization: Bearer {self.key}"]
        done = subprocess.run(command, check=True, capture_output=True)
        return json.loads(done.stdout)

    def openai(self, **settings: Any) -> list[list[float]]:
        embeddings = self.openai_client().embeddings
        found = embeddings.create(model=self.name, input=TEXTS, **settings)
        return [each.embedding for each in found.data]

    def langchain(self, **settings: Any) -> list[list[float]]:
        client = OpenAIEmbeddings(
            model=self.name, base_url=f"{self.url}/v1", api_key=self.key, **settings
        )
        return client.embed_documents(TEXTS)

    def llama_index(self) -> list[list[float]]:
        client = OpenAILikeEmbedding(
            model_name=self.name, api_base=f"{self.url}/v1", api_key=self.key
        )
        return client.get_text_embedding_batch(TEXTS)

    def cohere(self) -> list[int]:
        client = cohere.ClientV2(self.key, base_url=self.url)
        found = client.rerank(model=self.name, query=QUERY, documents=DOCUMENTS)
        return [each.index for each in found.results]


def list_embeddings(clients: Clients, dim: int) -> dict[str, Callable[[], Any]]:
    """Client -> function that must return the embeddings of the texts."""

    def rows(found: dict[str, Any]) -> list[list[float]]:
        return [each["embedding"] for each in found["data"]]

    def jina() -> list[np.ndarray]:
        given = [{"text": text} for text in TEXTS]
        settings = {"embedding_type": "base64", "dimensions": dim, "task": "text-matching"}
        found = clients.post("/v1/embeddings", model=clients.name, input=given, **settings)
        return [np.frombuffer(base64.b64decode(each), "<f4") for each in rows(found)]

    return {
        "curl": lambda: rows(clients.curl("/v1/embeddings", input=TEXTS)),
        "openai (base64)": clients.openai,
        f"openai (float, dimensions={dim})": lambda: clients.openai(
            encoding_format="float", dimensions=dim
        ),
        "langchain-openai (check_embedding_ctx_length=False)": lambda: clients.langchain(
            check_embedding_ctx_length=False
        ),
        "llama-index (OpenAILikeEmbedding)": clients.llama_index,
        'Jina\'s request (texts as {"text": ...}, embedding_type=base64)': jina,
    }


def list_orders(clients: Clients) -> dict[str, Callable[[], list[int]]]:
    """Client -> function that must return the order of the documents."""
    given = {"query": QUERY, "documents": DOCUMENTS}

    def order(found: dict[str, Any]) -> list[int]:
        return [each["index"] for each in found["results"]]

    return {
        "cohere (v2)": clients.cohere,
        "Jina's request": lambda: order(clients.post("/v1/rerank", model=clients.name, **given)),
        "curl (v2)": lambda: order(clients.curl("/v2/rerank", **given)),
    }


def refuse_token_ids(clients: Clients) -> str:
    """The error message that langchain-openai gets when it sends token ids, its default."""
    try:
        tiktoken.get_encoding("cl100k_base")
    except OSError:  # the base class of all errors of `requests`
        print("  (tiktoken cannot download its table; one of single bytes gives the ids)")
        table = {bytes([value]): value for value in range(256)}
        tiktoken.registry.ENCODINGS["cl100k_base"] = tiktoken.Encoding(
            "bytes", pat_str=r"\S+|\s+", mergeable_ranks=table, special_tokens={}
        )
    try:
        return f"no refusal but {clients.langchain()}"
    except openai.BadRequestError as error:
        return error.body["message"] if isinstance(error.body, dict) else str(error)


def try_all(
    what: str, asked: Mapping[str, Callable[[], Any]], fits: Callable[[Any], bool]
) -> list[str]:
    """Calls each client and prints its answer; returns the clients with wrong answers or errors."""
    wrong = []
    for name, ask in asked.items():
        print(f"{what} by {name}")
        try:
            found = ask()
            fine = fits(found)
            first = [f"{value:.6f}" for value in found[0][:4]] if np.ndim(found) == 2 else []
            shown = f"{len(found)} x {len(found[0])}: {' '.join(first)} ..." if first else found
        except Exception as error:  # each client has its own errors
            fine, shown = False, f"{type(error).__name__}: {error}"
        print(f"  {shown}\n  {'as expected' if fine else 'NOT as expected'}", flush=True)
        wrong += [] if fine else [name]
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://localhost:8000", help="default: %(default)s")
    parser.add_argument("--model", required=True, help="what the server was given")
    parser.add_argument(
        "--reranker", default="", help="likewise; without it, re-ranking is not tried"
    )
    args = parser.parse_args()

    try:
        clients = Clients(args.url, os.environ.get("DCSE_API_KEY", "any"))
    except openai.OpenAIError as error:
        sys.exit(f"error: --url={args.url}: {error}")
    print(f"texts: {TEXTS}\nquery: {QUERY!r}, documents: {DOCUMENTS}")
    rows = dcse_tf.SentenceEncoder.load(args.model).encode(TEXTS, show_progress=False)
    wrong = try_all(
        "embeddings",
        list_embeddings(clients, rows.shape[1]),
        lambda found: np.allclose(found, rows, rtol=0.0, atol=TOLERANCE),
    )
    if args.reranker:
        ranked = dcse_tf.Reranker.load(args.reranker).rank(TURNS, DOCUMENTS)
        order = [each.place for each in ranked]
        wrong += try_all("order of documents", list_orders(clients), lambda found: found == order)
    wrong += try_all(
        "a refusal that says what to set",
        {"langchain-openai (as it is by default: token ids)": lambda: refuse_token_ids(clients)},
        lambda message: "check_embedding_ctx_length=False" in message,
    )
    sys.exit(f"error: wrong by {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
