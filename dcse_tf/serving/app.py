"""The application: turns requests into batches for one thread, and their results into responses."""

import asyncio
import base64
import concurrent.futures
import contextlib
import dataclasses
import hmac
import math
import os
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import fastapi
import numpy as np
import pydantic
import scipy.special
from absl import logging
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from dcse_tf.data.dialogue import is_blank
from dcse_tf.discovery.clusters import Clusters
from dcse_tf.encoder.backend import normalize
from dcse_tf.encoder.sentence_encoder import SentenceEncoder
from dcse_tf.reranker.reranker import Reranker
from dcse_tf.search.searcher import END_OF_TURN, split_turns
from dcse_tf.serving.serve import ServeOptions

# Kinds of work. EMBED: a text to (embedding, tokens, whether it was truncated). RERANK: (turns of a
# context, [response]) to the re-ranker's logit.
EMBED, RERANK = "embed", "rerank"
_OPEN = "/health"  # for monitoring, which needs no key


def _read_texts(value: Any) -> Any:
    """A list from a string or a list; token ids get a message of their own."""
    values = [value] if isinstance(value, str) else value
    if isinstance(values, list) and any(isinstance(each, int | list) for each in values[:1]):
        raise ValueError(
            "expected texts, found token ids, which another tokenizer made; LangChain's "
            "OpenAIEmbeddings sends texts with check_embedding_ctx_length=False"
        )
    return values


# Encoding half of a surrogate pair is a UnicodeEncodeError, which is a ValueError.
Text = Annotated[str, pydantic.AfterValidator(lambda text: text.encode().decode())]
Texts = Annotated[list[Text], pydantic.BeforeValidator(_read_texts), pydantic.Field(min_length=1)]


class _Form(pydantic.BaseModel, extra="forbid"):
    """A request. Fields that it does not know are refused: they may ask for another answer."""

    model: str = ""  # empty for the server's
    user: str | None = None  # who asks, which changes nothing


class TextsForm(_Form):
    """Texts to be embedded, or labelled by the clusters of a report."""

    input: Texts


class EmbeddingsForm(TextsForm):
    """OpenAI's request for embeddings."""

    encoding_format: Literal["float", "base64"] | None = None  # None: float
    dimensions: int | None = None


class RerankForm(_Form):
    """Cohere's request to rank documents by their relevance to a query."""

    query: Text
    documents: Texts
    top_n: int | None = pydantic.Field(None, ge=1)
    return_documents: bool = False


# A function from a kind and items of that kind to a result for each item.
Compute = Callable[[str, list[Any]], Sequence[Any]]


class QueueFull(Exception):
    """The queue has no room for a request's items."""


class _Item(NamedTuple):
    """An item that waits to be computed; items are computed in ascending order of `turn`."""

    turn: int
    kind: str
    content: Any
    tokens: int
    due: float  # by the event loop's clock, in seconds
    batch: asyncio.Future[Any]  # of the results of its batch, and its place in it


@dataclasses.dataclass(eq=False)
class Batcher:
    """Collects items until there are enough for a batch, or the first has waited long enough.

    Requests take turns, item by item, so that a large request does not hold up small ones. All
    items of a batch are of one kind.
    """

    compute: Compute  # computes a batch; called in a separate thread
    batch_tokens: int  # most tokens in a batch, unless one item has more
    max_wait: float  # how long items wait for a full batch, in seconds
    max_queue: int  # the largest number of waiting items, of which a request may have half

    def __post_init__(self) -> None:
        self._waiting: list[_Item] = []
        self._turn = 0  # that of the items which are computed now
        self._arrival = asyncio.Event()

    async def submit(self, kind: str, contents: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
        """Queues items of a kind, at least one, with an estimate of the tokens of each, and waits
        for their results, in their order, or the error of `compute`. Raises QueueFull if too many
        items are waiting already.
        """
        # A part at a time, so that others find room and no queue is long to sort.
        loop, most, found = asyncio.get_running_loop(), max(1, self.max_queue // 2), list[Any]()
        if self._waiting and len(self._waiting) + min(len(contents), most) > self.max_queue:
            raise QueueFull
        for begin in range(0, len(contents), most):
            part = zip(contents[begin : begin + most], tokens[begin : begin + most], strict=True)
            due = loop.time() + self.max_wait
            # The first item is on a par with those computed now, and each other one a turn later: a
            # request that comes now neither waits for all of a large one nor keeps it waiting.
            items = [
                _Item(self._turn + place, kind, content, cost, due, loop.create_future())
                for place, (content, cost) in enumerate(part)
            ]
            self._waiting += items
            self._arrival.set()
            computed = await asyncio.gather(*(item.batch for item in items))
            found += [results.result()[place] for results, place in computed]
        return found

    async def run(self) -> None:
        """Computes batches until it is cancelled."""
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(1, "model") as thread:
            while True:
                await self._wait_for_batch()
                batch = self._take()
                kind, contents = batch[0].kind, [item.content for item in batch]
                results = loop.run_in_executor(thread, self.compute, kind, contents)
                await asyncio.wait([results])
                for place, item in enumerate(batch):
                    if not item.batch.done():  # its request may have been cancelled
                        item.batch.set_result((results, place))

    async def _wait_for_batch(self) -> None:
        self._waiting = [x for x in self._waiting if not x.batch.done()]  # none that was cancelled
        while not self._waiting:
            self._arrival.clear()
            await self._arrival.wait()
        due = min(item.due for item in self._waiting)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                while sum(item.tokens for item in self._waiting) < self.batch_tokens:
                    self._arrival.clear()
                    await self._arrival.wait()

    def _take(self) -> list[_Item]:
        """Takes the items of the next batch: by turn, of one kind, as many as fit."""
        batch, rest, tokens = list[_Item](), list[_Item](), 0
        for item in sorted(self._waiting, key=lambda item: item.turn):  # in a turn by arrival
            other = bool(batch) and item.kind != batch[0].kind
            # Those that do not fit count too: none of the later ones may go before them.
            tokens += 0 if other else item.tokens
            fits = not batch or (not other and tokens <= self.batch_tokens)
            (batch if fits else rest).append(item)
        self._turn, self._waiting = batch[-1].turn, rest
        return batch


class Service:
    """An encoder and a re-ranker, which one thread uses for all requests; without a re-ranker,
    rerank requests use the encoder's cosine.
    """

    none_below = -math.inf  # the logit that the best document has to exceed
    clusters: Clusters | None = None  # that texts are labelled by

    def __init__(self, options: ServeOptions, encoder: SentenceEncoder, reranker: Reranker | None):
        where = os.path.abspath(options.model.removeprefix("package:"))  # its last part names it
        self.name = options.name or os.path.basename(where)
        self.encoder = encoder
        wait = options.max_wait_ms / 1000
        self.batcher = Batcher(self._compute, options.batch_tokens, wait, options.max_queue)
        self._reranker = reranker
        self.unit_norm = options.unit_norm  # of what /v1/embeddings answers alone
        self._longest = encoder.settings.get("max_sequence_length") or 512

    async def embed(self, texts: list[str]) -> tuple[np.ndarray, int, int]:
        """Embeds texts; returns float32 `[texts, dim]`, the number of tokens, and the number of
        texts that were truncated.
        """
        found = await self.batcher.submit(EMBED, texts, self._estimate(texts))
        rows, tokens, truncated = zip(*found, strict=True)
        return np.stack(rows), sum(tokens), sum(truncated)

    async def relevance(self, query: str, documents: list[str]) -> tuple[np.ndarray, int]:
        """Scores documents by their relevance to a query: probabilities by the re-ranker or,
        without one, the cosines that `evaluate` scores by, with the mean embedding of the query's
        turns. A blank document has the lowest, 0 or -1. Returns float64 `[documents]`, or `[0]` if
        none of them is good enough, and the number of tokens.
        """
        turns = split_turns(query)
        if self._reranker:
            # It reads the whole context with each document.
            of_context = sum(self._estimate(turns))
            tokens = [of_context + own for own in self._estimate(documents)]
            items = [(tuple(turns), [document]) for document in documents]
            logits = await self.batcher.submit(RERANK, items, tokens)
            if max(logits) <= self.none_below:
                return np.zeros(0), sum(tokens)
            return scipy.special.expit(np.array(logits, np.float64)), sum(tokens)
        rows, read, _ = await self.embed([*turns, *documents])
        context = normalize(rows[: len(turns)].mean(axis=0, keepdims=True))
        cosines = normalize(rows[len(turns) :]) @ context[0]
        return np.where([is_blank(text) for text in documents], -1.0, cosines), read

    def _estimate(self, texts: list[str]) -> list[int]:
        """A quick estimate of each text's tokens after truncation, by four bytes a token."""
        return [min(2 + len(text.encode()) // 4, self._longest) for text in texts]

    def _compute(self, kind: str, items: list[Any]) -> Sequence[Any]:
        """The results of items of one kind, in their order; in the batcher's thread."""
        if kind == RERANK:
            assert self._reranker
            contexts, candidates = zip(*items, strict=True)
            scores = self._reranker.score(contexts, candidates, show_progress=False)
            return np.concatenate(scores).tolist()
        rows, truncated, tokens = self.encoder.encode_and_mark(items)
        return list(zip(rows, tokens.tolist(), truncated.tolist(), strict=True))


def create_app(service: Service, keys: Collection[str], max_body: int) -> fastapi.FastAPI:
    """The application: `keys` are the valid API keys, none if no key is needed; `max_body` is the
    longest body of a request, in bytes.
    """

    @contextlib.asynccontextmanager
    async def run_batcher(app: fastapi.FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(service.batcher.run())
        yield
        task.cancel()

    bearer = HTTPBearer(auto_error=False)

    def check_key(
        request: fastapi.Request,
        given: Annotated[HTTPAuthorizationCredentials | None, fastapi.Depends(bearer)],
    ) -> None:
        key = given.credentials.encode() if given else b""
        matches = [hmac.compare_digest(key, known.encode()) for known in keys]
        if keys and not any(matches) and request.url.path != _OPEN:
            message = "Give a key of this server as the header `Authorization: Bearer KEY`."
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    app = fastapi.FastAPI(
        title="dcse_tf",
        lifespan=run_batcher,
        max_body_size=max_body,
        strict_content_type=False,
        dependencies=[fastapi.Depends(check_key)],
    )
    for kind in (HTTPException, RequestValidationError, QueueFull, Exception):
        app.add_exception_handler(kind, _answer_error)
    _add_routes(app, service)
    return app


async def _while_connected(request: fastapi.Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of the work for a request, which is cancelled when its client has gone."""
    task = asyncio.ensure_future(work)
    while not task.done():
        if await request.is_disconnected():
            task.cancel()
            raise HTTPException(499, "The client has gone.")
        await asyncio.wait([task], timeout=1.0)
    return task.result()


def _add_routes(app: fastapi.FastAPI, service: Service) -> None:
    @app.get(_OPEN)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {"id": service.name, "object": "model", "created": 0, "owned_by": "dcse_tf"}
        return {"object": "list", "data": [entry]}

    def check_name(form: _Form) -> None:
        if form.model not in ("", service.name):
            raise HTTPException(404, f"There is no such model; this is {service.name}.")

    @app.post("/v1/embeddings")
    async def embeddings(form: EmbeddingsForm, request: fastapi.Request) -> JSONResponse:
        check_name(form)
        if form.dimensions not in (None, dim := service.encoder.dim):
            raise HTTPException(400, f"dimensions: this model's embeddings have {dim}.")
        rows, tokens, truncated = await _while_connected(request, service.embed(form.input))
        rows = normalize(rows).astype(np.float32) if service.unit_norm else rows
        vectors: list[Any] = rows.tolist()
        if form.encoding_format == "base64":  # of little-endian float32, as OpenAI's clients expect
            vectors = [base64.b64encode(row.astype("<f4")).decode() for row in rows]
        data = [
            {"object": "embedding", "index": place, "embedding": vector}
            for place, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        # Not in OpenAI's answer, which refuses such texts; its clients take further fields.
        usage |= {"truncated_texts": truncated} if truncated else {}
        return JSONResponse({"object": "list", "data": data, "model": service.name, "usage": usage})

    @app.post("/v1/clusters")
    async def clusters(form: TextsForm, request: fastapi.Request) -> dict[str, Any]:
        check_name(form)
        if service.clusters is None:
            raise HTTPException(404, "There are no clusters: start the server with --clusters.")
        rows, _, _ = await _while_connected(request, service.embed(form.input))
        labels = enumerate(service.clusters.label(rows))
        return {"data": [{"index": place, **label._asdict()} for place, label in labels]}

    @app.post("/v1/rerank")
    @app.post("/v2/rerank")
    async def rerank(form: RerankForm, request: fastapi.Request) -> JSONResponse:
        check_name(form)
        if all(map(is_blank, form.query.split(END_OF_TURN))):
            raise HTTPException(400, "query: expected at least one turn that is not blank.")
        relevance = service.relevance(form.query, form.documents)
        scores, tokens = await _while_connected(request, relevance)
        results = []
        for place in np.argsort(-scores, kind="stable").tolist()[: form.top_n]:
            told = {"document": {"text": form.documents[place]}} if form.return_documents else {}
            results.append({"index": place, "relevance_score": float(scores[place]), **told})
        meta = {"api_version": {"version": "2"}, "tokens": {"input_tokens": tokens}}
        return JSONResponse({"id": str(uuid.uuid4()), "results": results, "meta": meta})


def _answer_error(request: fastapi.Request, error: Exception) -> Response:
    """One sentence where OpenAI's and Cohere's clients look for it."""
    status, message = 500, "The server failed; its log says why."
    headers: Mapping[str, str] | None = None
    match error:
        case QueueFull():
            status, message = 429, "Too many texts wait; try again in 1 s."
            headers = {"Retry-After": "1"}
        case RequestValidationError():
            status, first = 400, error.errors()[0]
            field = ".".join(map(str, first["loc"][1:]))
            message = f"{field}: {first['msg'].removeprefix('Value error, ')}."
            if not field or first["type"] == "json_invalid":
                message = "the body: expected JSON, as Content-Type: application/json."
        case HTTPException():
            status, message, headers = error.status_code, str(error.detail), error.headers
        case _:
            logging.error("%s: %r", request.url.path, error)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    openai = {"message": message, "type": kind, "param": None, "code": None}
    return JSONResponse({"error": openai, "message": message}, status, headers)
